"""`accel verify` of a checkpoint with a manifest: a lost .metadata, and changed bytes that no tensor has."""

import json
import pathlib
import pickle
import shlex
import shutil
import subprocess
import zlib

import ckpt_peers
import pytest
import torch
import torch.distributed.checkpoint as dcp


@pytest.fixture
def ours(accel_path, tmp_path):
    """A checkpoint that accel's own writer made on two ranks."""
    tool = accel_path.parents[2] / "tests/unit/ckpt/dcp-writer-tool"
    subprocess.run([tool, tmp_path / "ours", "2"], check=True)
    return tmp_path / "ours"


def write_manifest(root):
    """A manifest of the files below `root`, as a training writes it."""
    files = [{"name": str(path.relative_to(root)), "bytes": path.stat().st_size, "crc32": zlib.crc32(path.read_bytes())}
             for path in sorted(root.rglob("*")) if path.is_file()]
    metadata = dcp.FileSystemReader(root / "pytorch_model_fsdp_0").read_metadata().state_dict_metadata
    tensors = {name: {"dtype": str(entry.properties.dtype).removeprefix("torch."), "shape": list(entry.size)}
               for name, entry in metadata.items()}
    (root / "accel_manifest.json").write_text(
        json.dumps({"version": 1, "step": 1, "world_size": 2, "files": files, "tensors": tensors}))


@pytest.fixture
def saved(torch_checkpoints, tmp_path):
    """A checkpoint of a training with a blank in its name."""
    root = tmp_path / "a run/checkpoint_1"
    shutil.copytree(torch_checkpoints / "net/pytorch_model_fsdp_0", root / "pytorch_model_fsdp_0")
    write_manifest(root)
    return root


def test_a_lost_metadata_is_one_line_with_the_command_that_rebuilds_it(accel, saved):
    accel("verify", saved)
    (saved / "pytorch_model_fsdp_0/.metadata").unlink()
    for path in (saved, saved / "pytorch_model_fsdp_0", saved.parent):
        lines = accel("verify", path, code=3).stdout.splitlines()
        assert [line.split(": ")[0] for line in lines if line.startswith("  ")] == ["  missing-file"] * 2
        (command,) = [line.split("rebuilds it: ")[1] for line in lines if "accel repair" in line]
        # torch wrote this checkpoint, whose files do not say which tensors they hold.
        assert shlex.split(command)[:2] == ["accel", "repair"]
        assert pathlib.Path(shlex.split(command)[2]).samefile(saved / "pytorch_model_fsdp_0")


def test_the_command_that_is_named_rebuilds_what_accel_wrote(accel, ours):
    before = (ours / ".metadata").read_bytes()
    (ours / ".metadata").unlink()
    (line,) = [line for line in accel("verify", ours, code=3).stdout.splitlines() if "accel repair" in line]
    program, *arguments = shlex.split(line.split("rebuilds it: ")[1])
    assert program == "accel"
    accel(*arguments)
    assert pickle.loads((ours / ".metadata").read_bytes()) == pickle.loads(before)
    accel("verify", ours)


@pytest.mark.long
def test_a_changed_byte_in_padding_touches_no_tensor(accel, saved):
    """Judged by torch, which loads other values of some changes, but of none for which verify says so."""
    directory = saved / "pytorch_model_fsdp_0"
    stored = dcp.FileSystemReader(directory).read_metadata().storage_data
    place = next(info for index, info in stored.items() if index.fqn == "model.blocks.0.weight")
    path = directory / place.relative_path
    original = path.read_bytes()

    def loaded():
        state = {"model.blocks.0.weight": torch.zeros(6, 6)}
        dcp.load(state, storage_reader=dcp.FileSystemReader(directory), no_dist=True)
        return ckpt_peers.bits(state["model.blocks.0.weight"])

    expected = loaded()
    untouched, touched = 0, 0
    for at in range(place.offset, place.offset + place.length, 13):
        path.write_bytes(original[:at] + bytes([original[at] ^ 0x10]) + original[at + 1:])
        (manifest, own) = json.loads(accel("verify", saved, "--json", code=3).stdout)["checkpoints"]
        (finding,) = manifest["findings"]
        is_untouched = "no tensor is touched" in finding["text"]
        assert finding["kind"] == "checksum" and is_untouched == own["ok"]
        if is_untouched:
            untouched += 1
            assert loaded() == expected, at
        elif "data/0' has CRC" in own["findings"][0]["text"]:
            touched += loaded() != expected
        path.write_bytes(original)
    assert untouched > 3 and touched > 3
