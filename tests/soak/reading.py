"""The oracle: it reads checkpoints with torch and safetensors. Each read runs in a process of its own, because a
changed file may crash the reader or make it allocate any amount of memory."""

import hashlib
import json
import os
import pathlib
import pickle
import resource
import signal
import sys

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import _load_state_dict

LIMIT_S = 20


def read_torch(path):
    state = torch.load(path, weights_only=True)
    return state["model"] if list(state) == ["model"] else state


def read_script(path):
    return torch.jit.load(path).state_dict()


def read_indexed(directory):
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: load_file(directory / name) for name in sorted(set(index.values()))}
    return {name: files[file][name] for name, file in index.items()}


def read_dcp(directory):
    dcp.FileSystemReader(directory).read_metadata()  # An error from here is not wrapped, unlike one from below.
    state: dict = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(directory), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state["model"] if list(state) == ["model"] else state


def read_local(directory):
    """Concatenates the ranks' ranges of elements, as the JSON file beside each rank's file describes them."""
    ranks = sorted(directory.glob("pytorch_model_fsdp_rank*.bin"))
    parts: dict[str, list] = {}
    shapes = {}
    for path in ranks:
        tensors, description = torch.load(path, weights_only=True), json.loads(path.with_suffix(".json").read_text())
        if description["world_size"] != len(ranks):
            raise ValueError("ranks are missing")
        for name, entry in description["tensors"].items():
            parts.setdefault(name, []).append((entry["begin"], entry["end"], tensors[name]))
            shapes[name] = entry["shape"]
    state = {}
    for name, pieces in parts.items():
        at = 0
        for begin, end, tensor in sorted(pieces, key=lambda piece: piece[:2]):
            if begin != at or tensor.shape != (end - begin,):
                raise ValueError(f"{name} is not covered")
            at = end
        state[name] = torch.cat([piece[2] for piece in sorted(pieces, key=lambda piece: piece[:2])]).reshape(shapes[name])
    return state


READERS = {"torch": read_torch, "script": read_script, "safetensors": load_file, "indexed": read_indexed, "dcp": read_dcp,
           "local": read_local}


def digest(state) -> dict[str, str]:
    """Maps the name of each tensor to its type, shape and a hash of its bytes. Other values are skipped."""
    found = {}
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[name] = f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(data).hexdigest()}"
    return found


def read_file(path: pathlib.Path):
    """Returns the digest from the first reader of single files that succeeds, or the error of the last one."""
    for kind in ("torch", "safetensors", "script"):
        if isinstance(found := read(kind, path), dict):
            return found
    return found


def same(ours, theirs) -> bool:
    """Whether both digests are equal. `ours` may have only one of several names whose tensors are equal."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return False
    return set(ours.items()) <= set(theirs.items()) and set(theirs.values()) == set(ours.values())


def read(kind: str, path: pathlib.Path) -> dict[str, str] | str:
    """Returns the digest of the checkpoint at `path`, or the reason why it cannot be read."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 2)
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
            signal.alarm(LIMIT_S)
            answer = digest(READERS[kind](path))
        except BaseException as error:  # noqa: BLE001  Any error is an answer.
            answer = f"{type(error).__name__}: {str(error).strip()[-300:]}"
        try:
            with os.fdopen(sink, "wb") as out:
                pickle.dump(answer, out)
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answers:
        data = answers.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else f"the reader ended with status {status}"


if __name__ == "__main__":
    print(read(sys.argv[1], pathlib.Path(sys.argv[2])))
