"""accel reads `.metadata` in every form of torch's own writer as torch reads it."""

import json
import os
import pickle
import subprocess
import sys

import dcp_forms
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dcp_forms")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={dcp_forms.WORLD_SIZE}",
         dcp_forms.__file__, directory],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return directory


def as_torch_says(metadata):
    """Returns {tensor: (dtype, shape, number of chunks with elements, their files)} and the names of the objects."""
    tensors, objects = {}, set()
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, BytesStorageMetadata):
            objects.add(name)
            continue
        full = [chunk for chunk in entry.chunks if 0 not in chunk.sizes or 0 in entry.size]
        offsets = {tuple(chunk.offsets) for chunk in full}
        files = {
            place.relative_path
            for index, place in metadata.storage_data.items()
            if index.fqn == name and tuple(index.offset) in offsets
        }
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        tensors[name] = (dtype, list(entry.size), len(full), sorted(files))
    return tensors, objects


def as_accel_says(accel, path):
    (found,) = json.loads(accel("inspect", path, "--json").stdout)["checkpoints"]
    assert found["kind"] == "dcp"
    tensors = {e["name"]: (e["dtype"], e["shape"], e["chunks"], e["files"]) for e in found["tensors"]}
    return tensors, {entry["name"] for entry in found["objects"]}


@pytest.mark.long(but="columns")
@pytest.mark.parametrize("form", [form for form in dcp_forms.FORMS if form != "no_collectives"])
def test_metadata_is_read_as_torch_reads_it(accel, forms, form):
    assert as_accel_says(accel, forms / form) == as_torch_says(FileSystemReader(forms / form).read_metadata())


def test_the_forms_are_what_they_should_be(accel, forms):
    tensors, _ = as_accel_says(accel, forms / "mesh")
    assert tensors["odd"][2] == 4
    tensors, _ = as_accel_says(accel, forms / "uneven")
    assert tensors["few"][2] == 3
    assert tensors["scalar"][1] == []
    assert len({file for entry in as_accel_says(accel, forms / "threads")[0].values() for file in entry[3]}) > 4
    assert len({file for entry in as_accel_says(accel, forms / "file_per_tensor")[0].values() for file in entry[3]}) > 12
    _, objects = as_accel_says(accel, forms / "extras")
    assert objects >= {"epoch", "args.lr"}


def test_saves_without_collectives_are_merged(accel, forms):
    """Each rank writes a metadata file of its own. A global one does not exist."""
    directory = forms / "no_collectives"
    assert not (directory / ".metadata").exists()
    tensors, _ = as_accel_says(accel, directory)
    for name, value in dcp_forms.whole_state("no_collectives").items():
        dtype, shape, pieces, files = tensors[name]
        assert dtype == str(value.dtype).removeprefix("torch.")
        assert shape == list(value.shape)
        sharded = name.startswith("h.")
        assert pieces == (3 if sharded else 1)
        assert files == [f"__{rank}_0.distcp" for rank in range(3 if sharded else 1)]


def test_a_missing_rank_is_an_error(accel, forms, tmp_path):
    directory = tmp_path / "copy"
    subprocess.run(["cp", "-r", forms / "no_collectives", directory], check=True)
    (directory / "__2.metadata").unlink()
    assert "has no __2.metadata" in accel("inspect", directory, code=4).stderr


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(accel, forms, tmp_path, protocol):
    metadata = FileSystemReader(forms / "extras").read_metadata()
    directory = tmp_path / "copy"
    subprocess.run(["cp", "-r", forms / "extras", directory], check=True)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata, protocol))
    assert as_accel_says(accel, directory) == as_accel_says(accel, forms / "extras")


@pytest.mark.parametrize("tensors, chunks", [(1, 12000), (40, 300), (6000, 2)])
def test_large_metadata_is_read_by_two_threads(accel, tmp_path, tensors, chunks):
    """From a megabyte on, two threads read state_dict_metadata and storage_data at the same time."""
    state, places = {}, {}
    for i in range(tensors):
        size = torch.Size([4 * chunks, 1000 + i])
        parts = [ChunkStorageMetadata(torch.Size([4 * c, 0]), torch.Size([4, 1000 + i])) for c in range(chunks)]
        state[f"layers.{i}.weight"] = TensorStorageMetadata(TensorProperties(torch.bfloat16), size, parts)
    state["step"] = BytesStorageMetadata()
    for c in range(chunks):
        for i, name in enumerate(state):
            offset = torch.Size([4 * c, 0]) if name != "step" else None
            places[MetadataIndex(name, offset, c)] = _StorageInfo(f"__{c % 50}_0.distcp", 70_000 * i + c, 70_000)
    (tmp_path / "ck").mkdir()
    data = pickle.dumps(Metadata(state, None, places), protocol=4)
    assert len(data) > 1 << 20
    (tmp_path / "ck" / ".metadata").write_bytes(data)
    for number in range(min(chunks, 50)):
        (tmp_path / "ck" / f"__{number}_0.distcp").touch()
    metadata = FileSystemReader(tmp_path / "ck").read_metadata()
    (found,) = json.loads(accel("inspect", tmp_path / "ck", "--json").stdout)["checkpoints"]
    assert {e["name"]: (e["dtype"], e["shape"], e["chunks"], e["files"]) for e in found["tensors"]} == {
        name: ("bfloat16", list(entry.size), chunks, sorted({f"__{c % 50}_0.distcp" for c in range(chunks)}))
        for name, entry in metadata.state_dict_metadata.items() if name != "step"
    }  # fmt: skip


def test_six_properties_and_three_fields(accel, forms, tmp_path):
    """torch 2.15 also pickles strides; torch 2.2 writes neither storage_meta nor version."""
    metadata = FileSystemReader(forms / "mesh").read_metadata()
    directory = tmp_path / "copy"
    subprocess.run(["cp", "-r", forms / "mesh", directory], check=True)
    del metadata.storage_meta, metadata.version

    class Properties(torch.distributed.checkpoint.metadata.TensorProperties):
        def __getstate__(self):
            return (*super().__getstate__(), (7, 1))

    Properties.__module__, Properties.__qualname__ = "torch.distributed.checkpoint.metadata", "TensorProperties"
    original = torch.distributed.checkpoint.metadata.TensorProperties
    for entry in metadata.state_dict_metadata.values():
        entry.properties.__class__ = Properties
    torch.distributed.checkpoint.metadata.TensorProperties = Properties
    try:
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    finally:
        torch.distributed.checkpoint.metadata.TensorProperties = original
    assert as_accel_says(accel, directory) == as_accel_says(accel, forms / "mesh")
