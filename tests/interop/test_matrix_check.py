"""verify and diff find nothing wrong with any kind of checkpoint in the zoo."""

import pytest
import torch
from zoo_kinds import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_verify_finds_nothing(accel, zoo, reads, kind):
    reads(kind, "verify")
    accel("verify", zoo.path(kind))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_diff(accel, zoo, reads, kind, tmp_path):
    """A checkpoint equals a plain file of the same tensors, and differs from it once one bit is changed."""
    reads(kind, "diff")
    accel("merge-weights", zoo.path(kind), tmp_path / "out", "--unsafe_serialization", "--keep-tied")
    same = tmp_path / "out/pytorch_model.bin"
    accel("diff", zoo.path(kind), same)
    state = torch.load(same, weights_only=True)
    name = sorted(name for name, tensor in state.items() if tensor.numel())[0]
    state[name] = state[name].clone()
    state[name].view(torch.uint8).reshape(-1)[-1] ^= 1
    torch.save(state, tmp_path / "other.bin")
    assert name in accel("diff", zoo.path(kind), tmp_path / "other.bin", code=3).stdout
