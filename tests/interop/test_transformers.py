"""merge-weights writes shards and index as transformers does, and transformers loads models from its output."""

import filecmp
import json
import os
import subprocess

import judges
import pytest
import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from matrix import WRITES
from zoo_state import tensor_of

SIZES = ["0.001KB", "0.64KB", "1KB", "5KB", "12KB", "100KB", "1MB", "5GB"]


def many_tensors() -> dict[str, torch.Tensor]:
    """Returns tensors whose names sort differently as text and as numbers. Some tensors are larger than a shard."""
    state = {}
    for i in range(13):
        state[f"model.layers.{i}.mlp.weight"] = tensor_of(i, (16, 8 + i))
        state[f"model.layers.{i}.norm.weight"] = tensor_of(100 + i, (8,), torch.bfloat16)
    state["model.embed_tokens.weight"] = tensor_of(200, (96, 32))
    state["lm_head.weight"] = tensor_of(201, (96, 32), torch.float16)
    state["counts"] = tensor_of(202, (3,), torch.int64)
    state["scalar"] = torch.tensor(2.5)
    return state


def write_with_transformers(state, directory, size) -> None:
    """Writes a state dict with the calls that save_pretrained makes, but without a model."""
    split = split_torch_state_dict_into_shards(state, max_shard_size=size)
    directory.mkdir()
    for name, keys in split.filename_to_tensors.items():
        safetensors.torch.save_file({key: state[key] for key in keys}, directory / name, metadata={"format": "pt"})
    if split.is_sharded:
        total = {"total_parameters": sum(tensor.numel() for tensor in state.values()), **split.metadata}
        index = {"metadata": total, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


@pytest.mark.parametrize("size", SIZES)
def test_same_files_as_transformers(accel, tmp_path, size):
    state = many_tensors()
    torch.save(state, tmp_path / "all.bin")  # The file keeps the order of the state dict, which the split follows.
    write_with_transformers(state, tmp_path / "theirs", size)
    accel("merge-weights", tmp_path / "all.bin", tmp_path / "ours", "--max-shard-size", size)
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == names
    assert filecmp.cmpfiles(tmp_path / "theirs", tmp_path / "ours", names, shallow=False) == (names, [], [])


MODELS = """
import pathlib, sys, torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
def build(name):
    torch.manual_seed(0)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=96, max_position_embeddings=64, tie_word_embeddings=True)).eval()
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=64)).eval()
def logits(model):
    with torch.no_grad():
        return model(torch.arange(40).reshape(2, 20)).logits
"""

# Saves each model with its config, and its state dict as DCP, where tied tensors are under both names.
WRITE = MODELS + """
import torch.distributed.checkpoint as dcp
for name in ("llama", "gpt2"):
    out = pathlib.Path(sys.argv[1], name)
    model = build(name)
    model.save_pretrained(out / "original")
    dcp.save({"model": model.state_dict()}, checkpoint_id=out / "checkpoint/pytorch_model_fsdp_0", no_dist=True)
    torch.save(logits(model), out / "logits.pt")
"""

# Loads every merged directory and compares the logits.
READ = MODELS + """
for merged in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(merged).eval()
    assert torch.equal(logits(model), torch.load(pathlib.Path(merged).parent / "logits.pt")), merged
"""


def run_python(version: str, code: str, *arguments) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [judges.interpreter(version), "-c", code, *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr[-4000:]


def names_in(directory) -> set[str]:
    return {name for path in directory.glob("*.safetensors") for name in safetensors.torch.load_file(path)}


@pytest.mark.parametrize("version", judges.EACH_TORCH)
def test_from_pretrained_gives_the_same_logits(accel, judge_of, cell, tmp_path, version):
    judge_of(version)  # It fails or skips if this torch version is not installed.
    for row in ("`merge-weights`", "`merge-weights --max-shard-size`"):
        cell(WRITES, row, "`from_pretrained`", version)
    run_python(version, WRITE, tmp_path)
    merged = []
    for name in ("llama", "gpt2"):
        original = tmp_path / name / "original"
        (original / "tokenizer.json").write_text('{"none": true}')
        for size in ("20KB", "5GB"):
            out = tmp_path / name / f"merged-{size}"
            # The checkpoint has tied tensors under both names, and does not say that they are one.
            ties = ["--drop-equal"] if size == "20KB" else []
            accel("merge-weights", tmp_path / name / "checkpoint", out, "--max-shard-size", size, "--copy-assets", original, *ties)
            assert (out / "model.safetensors.index.json").exists() == (size == "20KB")
            for asset in ("config.json", "generation_config.json", "tokenizer.json"):
                assert filecmp.cmp(original / asset, out / asset, shallow=False), asset
            (out / "tokenizer.json").unlink()  # transformers would read this file, which is not a real tokenizer.
            if ties:
                assert names_in(out) == names_in(original)  # Both leave out the same one of two tied tensors.
            else:
                assert names_in(out) >= names_in(original)
            merged.append(out)
    run_python(version, READ, *merged)
