"""Writes a tiny model with the release of transformers that is in PYTHONPATH, exports it, and prints transformers' own loss.

Usage: release_writer.py FAMILY DIRECTORY FILE
"""

import json
import sys

import torch
import train_runs
import transformers
from accel_export import cli

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 256, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2}}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2,
        "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}


def main(family, directory, file):
    sizes = GPT2 if family == "gpt2" else {**SIZES, **EXPERTS.get(family, {})}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes))
    model.save_pretrained(directory)
    cli.main([directory, file])
    tokens = torch.tensor(list(train_runs.TEXT.read_bytes()[:8 * 32 + 1]))
    with torch.no_grad():
        logits = model.eval()(tokens[:-1].view(8, 32)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:]).item()
    print(json.dumps({"release": transformers.__version__, "loss": loss}))


if __name__ == "__main__":
    main(*sys.argv[1:])
