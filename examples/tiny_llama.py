#!/usr/bin/env python3
"""Write a tiny Llama with a tokenizer, as a directory like those of the Hugging Face Hub.

    python examples/tiny_llama.py DIRECTORY

It stands for a model that you have downloaded, so that the examples of the guide run without a network. The weights are
random. The tokenizer has 1000 tokens, is made from examples/data/genesis-exodus.txt, and has a chat template.
"""

import argparse
import pathlib

import tokenizers
import torch
import transformers

TEXT = pathlib.Path(__file__).resolve().parent / "data/genesis-exodus.txt"
TOKENS = 1000
# The marks around the answer say which tokens are learned from a chat.
CHAT_TEMPLATE = """{% for message in messages %}{{ message['role'] + ':\n' }}\
{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}\
{% else %}{{ message['content'] + '\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    directory = parser.parse_args().directory
    transformers.utils.logging.disable_progress_bar()

    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=["<|end|>"], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pairs.train([str(TEXT)], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=pairs, eos_token="<|end|>",
                                         chat_template=CHAT_TEMPLATE).save_pretrained(directory)

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(directory)
    print(f"{directory}: {model.num_parameters():,} parameters, {TOKENS} tokens")


if __name__ == "__main__":
    main()
