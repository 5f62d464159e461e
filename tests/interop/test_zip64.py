"""accel reads and writes archives over 4 GiB, whose sizes and offsets are in zip64 fields."""

import json
import os
import shutil

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from zoo_state import bits, difference, tensor_of

LARGE = 2**32 + 100


def sparse_archive(path) -> dict[str, torch.Tensor]:
    """Writes a torch.save file of two small tensors around one of 4 GiB, which is a hole. Returns the small ones."""
    small = {"before": tensor_of(1, (5,)), "after": tensor_of(2, (3, 4))}
    state = {"before": small["before"], "large": torch.empty(LARGE, dtype=torch.uint8), "after": small["after"]}
    with torch.serialization.skip_data():
        torch.save(state, path)
    records = torch._C.PyTorchFileReader(str(path))
    with path.open("r+b") as file:
        for i, name in enumerate(state):
            if name in small:
                file.seek(records.get_record_offset(f"data/{i}"))
                file.write(bits(small[name]))
    return small


def test_reads_beyond_4_gib(accel, tmp_path):
    small = sparse_archive(tmp_path / "model.bin")
    assert (tmp_path / "model.bin").stat().st_blocks * 512 < 1 << 20
    (found,) = json.loads(accel("inspect", tmp_path / "model.bin", "--json").stdout)["checkpoints"]
    assert {entry["name"]: entry["shape"] for entry in found["tensors"]} == {"before": [5], "large": [LARGE], "after": [3, 4]}
    accel("merge-weights", tmp_path / "model.bin", tmp_path / "out", "--include", "before", "--include", "after")
    assert difference(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), small) == ""


@pytest.fixture
def whole_archive(tmp_path):
    """A file of 4 GiB without holes, and its state dict."""
    if not os.environ.get("ACCEL_SLOW_TESTS"):
        pytest.skip("writes 17 GB; ACCEL_SLOW_TESTS=1 runs it")
    free = shutil.disk_usage(tmp_path).free
    if free < 20e9:
        pytest.skip(f"needs 20 GB of disk, {free / 1e9:.0f} GB are free")
    large = torch.arange(LARGE // 4 + 1, dtype=torch.int32).view(torch.uint8)[:LARGE]
    state = {"before": tensor_of(1, (5,)), "large": large, "after": tensor_of(2, (3, 4))}
    torch.save(state, tmp_path / "model.bin")
    yield tmp_path / "model.bin", state
    shutil.rmtree(tmp_path)


def test_whole_archives_both_ways(accel, whole_archive, tmp_path):
    path, state = whole_archive
    accel("merge-weights", path, tmp_path / "out", timeout=600)
    assert difference(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), state) == ""
    accel("save", tmp_path / "out/model.safetensors", tmp_path / "full.bin", "--type", "full", timeout=600)
    shutil.rmtree(tmp_path / "out")
    assert difference(torch.load(tmp_path / "full.bin", weights_only=True, mmap=True), state) == ""
    # The file of a single rank also has the whole large tensor in one archive.
    accel("save", path, tmp_path / "sharded", "--type", "sharded", "--ranks", 1, timeout=600)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load({"model": loaded}, checkpoint_id=tmp_path / "sharded/pytorch_model_fsdp_0", no_dist=True)
    assert difference(loaded, state) == ""
