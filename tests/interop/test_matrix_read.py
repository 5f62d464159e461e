"""accel's commands read every kind of checkpoint in the zoo, bit for bit."""

import json

import pytest
import safetensors.torch
import torch
from zoo_kinds import KINDS
from zoo_state import difference, short_name

SAFETENSORS_KINDS = [kind for kind in KINDS if kind.in_safetensors]
OTHER_KINDS = [kind for kind in KINDS if not kind.in_safetensors]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_inspect(accel, zoo, reads, kind):
    reads(kind, "inspect")
    (found,) = json.loads(accel("inspect", zoo.path(kind), "--json").stdout)["checkpoints"]
    tensors = {entry["name"]: entry for entry in found["tensors"]}
    for name, tensor in zoo.expected(kind).items():
        entry = tensors.get(name) or tensors[f"model.{name}"]
        assert (entry["dtype"], entry["shape"]) == (short_name(tensor.dtype), list(tensor.shape)), name


@pytest.mark.parametrize("kind", SAFETENSORS_KINDS, ids=str)
def test_merge(accel, zoo, reads, kind, tmp_path):
    reads(kind, "merge")
    accel("merge-weights", zoo.path(kind), tmp_path / "out", "--keep-tied")
    found = safetensors.torch.load_file(tmp_path / "out/model.safetensors")
    assert difference(found, zoo.expected(kind)) == ""


@pytest.mark.parametrize("kind", OTHER_KINDS, ids=str)
def test_merge_refuses_what_safetensors_has_no_name_for(accel, zoo, kind, tmp_path):
    result = accel("merge-weights", zoo.path(kind), tmp_path / "out", "--keep-tied", code=1)
    assert "complex32" in result.stderr or "complex128" in result.stderr
    assert not (tmp_path / "out/model.safetensors").exists()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_merge_to_bin(accel, zoo, reads, kind, tmp_path):
    reads(kind, "merge to `.bin`")
    accel("merge-weights", zoo.path(kind), tmp_path / "out", "--unsafe_serialization", "--keep-tied")
    found = torch.load(tmp_path / "out/pytorch_model.bin", weights_only=True)
    assert difference(found, zoo.expected(kind)) == ""
