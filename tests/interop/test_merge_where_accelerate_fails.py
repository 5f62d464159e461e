"""accel merges checkpoints on which `accelerate merge-weights` fails, with the right bits. The tests run both."""

import os
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from zoo_kinds import BY_NAME
from zoo_state import difference


def accelerate_error(*arguments) -> str:
    """Runs `accelerate merge-weights`, which must fail, and returns its stderr."""
    result = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.merge", *map(str, arguments)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert result.returncode != 0, "accelerate merges this now"
    return result.stderr


@pytest.fixture
def sharded(zoos):
    """The parent directory of an Accelerate checkpoint, and the tensors of its model."""
    zoo, kind = zoos("2.11"), BY_NAME["accelerate-sharded"]
    return zoo.directory / kind.name, zoo.expected(kind)


@pytest.mark.long
def test_parent_directory(accel, sharded, tmp_path):
    directory, expected = sharded
    assert "metadata is None" in accelerate_error(directory, tmp_path / "theirs")
    accel("merge-weights", directory, tmp_path / "ours")
    assert difference(safetensors.torch.load_file(tmp_path / "ours/model.safetensors"), expected) == ""


def test_missing_parent_of_the_output(accel, sharded, tmp_path):
    directory, expected = sharded
    error = accelerate_error(directory / "pytorch_model_fsdp_0", tmp_path / "not/there/theirs")
    assert "FileNotFoundError" in error and not (tmp_path / "not").exists()
    accel("merge-weights", directory / "pytorch_model_fsdp_0", tmp_path / "not/there/ours")
    assert difference(safetensors.torch.load_file(tmp_path / "not/there/ours/model.safetensors"), expected) == ""


def test_optimizer_directory(accel, sharded, tmp_path):
    directory, _ = sharded
    error = accelerate_error(directory / "optimizer_0", tmp_path / "theirs")
    assert "Error" in error and not (tmp_path / "theirs/model.safetensors").exists()
    accel("merge-weights", directory / "optimizer_0", tmp_path / "ours")
    expected = torch.load(directory.parent / "accelerate-sharded.optimizer.pt", weights_only=True)["tensors"]
    assert difference(safetensors.torch.load_file(tmp_path / "ours/optimizer.safetensors"), expected) == ""


def test_extras_beside_the_model(accel, zoos, tmp_path):
    zoo, kind = zoos("2.11"), BY_NAME["dcp-extras"]
    error = accelerate_error(zoo.path(kind), tmp_path / "theirs")
    assert "Error" in error and not (tmp_path / "theirs/model.safetensors").exists()
    accel("merge-weights", zoo.path(kind), tmp_path / "ours")
    assert difference(safetensors.torch.load_file(tmp_path / "ours/model.safetensors"), zoo.expected(kind)) == ""
