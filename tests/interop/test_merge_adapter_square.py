"""An adapter on square weights, whose shapes do not tell whether they are transposed."""

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from test_merge_adapter import GPT2, assert_same, refused, write_adapter


@pytest.mark.parametrize("targets", ["query|attention.output.dense|.*attn.c_proj", "query|.*c_attn|.*attn.c_proj|.*lm_head"])
def test_square_weights_of_linears_beside_those_of_conv1d(accel, tmp_path, targets):
    """PEFT notes fan_in_fan_out of the layer that it wrapped last alone."""
    torch.manual_seed(0)
    encoder = transformers.BertConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, vocab_size=50)
    decoder = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=2, vocab_size=50, add_cross_attention=True, is_decoder=True,
                                      tie_word_embeddings=False)
    config = transformers.EncoderDecoderConfig(encoder=encoder.to_dict(), decoder=decoder.to_dict(), tie_word_embeddings=False)
    base = transformers.EncoderDecoderModel(config)
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(r=4, lora_alpha=8, target_modules=f".*({targets})"), tmp_path / "adapter")
    accel("merge-weights", "base", "ours", "--adapter", "adapter")
    theirs = PeftModel.from_pretrained(transformers.EncoderDecoderModel.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    theirs.merge_and_unload().save_pretrained(tmp_path / "theirs")
    assert_same(load_file(tmp_path / "ours/model.safetensors"), load_file(tmp_path / "theirs/model.safetensors"))


def test_a_square_weight_of_an_unknown_kind_is_refused(accel, tmp_path):
    """The head, a Linear, was wrapped last; c_proj is a Conv1D in transformers' GPT-2, and a Linear in other models."""
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, tie_word_embeddings=False))
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=r".*(attn\.c_proj|lm_head)"), tmp_path / "adapter")
    said = refused(accel, tmp_path, "it cannot be told whether the square weight of 'transformer.h.0.attn.c_proj' is transposed")
    assert "fan_in_fan_out = false of the layer that was wrapped last" in said
