"""torch loads the metadata that `accel repair` rebuilds."""

import json
import shutil
import subprocess

import ckpt_peers
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


@pytest.fixture
def ours(accel_path, tmp_path):
    """A checkpoint that accel's own writer made on three ranks."""
    tool = accel_path.parents[2] / "tests/unit/ckpt/dcp-writer-tool"
    subprocess.run([tool, tmp_path / "run/ours", "3"], check=True)
    return tmp_path / "run/ours"


def load(directory):
    state = {}
    _load_state_dict(state, dcp.FileSystemReader(directory), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def flat(value, name=""):
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{name}/{key}").items()}
    return {name: value}


def test_torch_loads_the_same_after_a_repair(accel, ours):
    metadata = (ours / ".metadata").read_bytes()
    before = flat(load(ours))
    (ours / ".metadata").unlink()
    accel("verify", ours, code=3)
    assert "rebuilt" in accel("repair", ours.parent).stdout
    assert (ours / ".metadata").read_bytes() == metadata
    after = flat(load(ours))
    assert sorted(before) == sorted(after)
    assert any(isinstance(value, torch.Tensor) for value in before.values())
    for name, value in before.items():
        if isinstance(value, torch.Tensor):
            ckpt_peers.assert_same({name: after[name]}, {name: value})
        else:
            assert after[name] == value
    accel("verify", ours)


def test_a_dry_run_writes_nothing(accel, ours):
    (ours / ".metadata").unlink()
    names = sorted(ours.iterdir())
    assert "would be rebuilt" in accel("repair", "--dry-run", ours).stdout
    assert sorted(ours.iterdir()) == names


def test_sound_metadata_is_left_alone(accel, ours):
    metadata = ours / ".metadata"
    metadata.write_bytes(metadata.read_bytes() + b"")
    before = metadata.stat().st_ino
    assert "needs no repair" in accel("repair", ours, code=1).stderr
    assert metadata.stat().st_ino == before
    accel("repair", "--force", ours)
    assert metadata.stat().st_ino != before


def test_a_missing_rank_is_refused(accel, ours):
    (ours / ".metadata").unlink()
    (ours / "__1_0.distcp").unlink()
    result = accel("--json", "repair", ours, code=4)
    (found,) = json.loads(result.stdout)["checkpoints"]
    assert not found["written"]
    assert {"missing-file", "hole"} == {finding["kind"] for finding in found["findings"]}
    assert not (ours / ".metadata").exists()


def test_torchs_own_checkpoint_has_no_records(accel, torch_checkpoints, tmp_path):
    directory = tmp_path / "rows"
    shutil.copytree(torch_checkpoints / "rows/pytorch_model_fsdp_0", directory)
    (directory / ".metadata").unlink()
    assert "only accel writes them" in accel("repair", directory, code=5).stdout
