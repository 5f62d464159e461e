"""Writes and reads `.metadata` with torch, for the benchmark of `.metadata`.

metadata.py write DIRECTORY TENSORS CHUNKS   writes TENSORS tensors of CHUNKS chunks each, as CHUNKS ranks save them
metadata.py read DIRECTORY                   reads it with torch; prints seconds and peak bytes as JSON
"""

import json
import pathlib
import pickle
import sys
import time

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

ITEM_BYTES = 70_000


def names_of(tensors):
    return [f"model.layers.{i // 100}.experts.{i % 100}.w1.weight" for i in range(tensors)]


def write(directory, tensors, chunks):
    """Writes what a coordinator pickles after it gathered the plans of `chunks` ranks. Ranks share no strings."""
    names = names_of(tensors)
    properties = TensorProperties(torch.bfloat16)
    state, places = {}, {}
    for name in names:
        state[name] = TensorStorageMetadata(pickle.loads(pickle.dumps(properties)), torch.Size([64 * chunks, 4096]), [])
    for rank in range(chunks):
        file = f"__{rank}_0.distcp"
        own_names = names_of(tensors)
        for i, name in enumerate(own_names):
            offset = torch.Size([64 * rank, 0])
            state[names[i]].chunks.append(ChunkStorageMetadata(offset, torch.Size([64, 4096])))
            index = MetadataIndex(name, torch.Size([64 * rank, 0]), rank)
            places[index] = _StorageInfo(file, i * ITEM_BYTES, ITEM_BYTES)
    paths = {name: ("model", name.removeprefix("model.")) for name in names}
    meta = Metadata(state, paths, places, StorageMeta(checkpoint_id=str(directory), save_id="0"), "1.0.0")
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    with open(pathlib.Path(directory) / ".metadata", "wb") as file:
        pickle.dump(meta, file)


def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def read(directory):
    before = peak_bytes()
    begin = time.perf_counter()
    metadata = FileSystemReader(directory).read_metadata()
    seconds = time.perf_counter() - begin
    chunks = sum(len(tensor.chunks) for tensor in metadata.state_dict_metadata.values())
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "before_bytes": before, "chunks": chunks}))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        read(sys.argv[2])
