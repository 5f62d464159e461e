"""Loads checkpoints with the real packages and compares them with the tensors that they must hold, bit for bit.

    python zoo_judge.py

It reads one job per line, `{"load": METHOD, "path": PATH, "expected": FILE}`, and answers each with a line
`{"problem": TEXT}`, whose text is empty if nothing is wrong. It runs under any torch version. Judge in judges.py is its
client.
"""

import json
import os
import pathlib
import sys

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
import torch.distributed.checkpoint as dcp

from zoo_state import difference

State = dict[str, torch.Tensor]


def unread(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same dtype and shape with wrong bytes, so that elements that are not read are found."""
    bytes_of = torch.full((tensor.numel() * tensor.element_size(),), 0x55, dtype=torch.uint8)
    if tensor.dtype == torch.bool:
        bytes_of.fill_(1)
    return bytes_of.view(tensor.dtype).reshape(tensor.shape)


def load_dcp(path: pathlib.Path, expected: State, reader=None, root: str | None = "model") -> State:
    state = {name: unread(tensor) for name, tensor in expected.items()}
    dcp.load({root: state} if root else state, storage_reader=reader or dcp.FileSystemReader(path), no_dist=True)
    return state


def load_nested_dcp(path: pathlib.Path, expected: State) -> State:
    """Rebuilds the state dict from the metadata alone, as Accelerate and torch's own converter do."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.format_utils import _load_state_dict

    state: dict = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert list(state) == ["model"], list(state)
    return state["model"]


def load_torch(path: pathlib.Path, expected: State) -> State:
    state = torch.load(path, weights_only=True)
    return state["model"] if list(state) == ["model"] else state


def load_mapped(path: pathlib.Path, expected: State) -> State:
    return torch.load(path, weights_only=True, mmap=True)


def load_local(directory: pathlib.Path, expected: State) -> State:
    """Assembles a local checkpoint of accel from every rank's range of elements."""
    state = {name: unread(tensor).reshape(-1) for name, tensor in expected.items()}
    covered = dict.fromkeys(expected, 0)
    ranks = sorted(directory.glob("pytorch_model_fsdp_rank*.bin"))
    for path in ranks:
        tensors, description = torch.load(path, weights_only=True), json.loads(path.with_suffix(".json").read_text())
        assert description["world_size"] == len(ranks)
        assert tensors.keys() == description["tensors"].keys() == expected.keys()
        for name, entry in description["tensors"].items():
            begin, end = entry["begin"], entry["end"]
            assert tensors[name].shape == (end - begin,) and entry["shape"] == list(expected[name].shape)
            state[name][begin:end] = tensors[name]
            covered[name] += end - begin
    assert covered == {name: tensor.numel() for name, tensor in expected.items()}
    return {name: tensor.reshape(expected[name].shape) for name, tensor in state.items()}


def load_safetensors(path: pathlib.Path, expected: State) -> State:
    from safetensors.torch import load_file

    return load_file(path)


def load_safetensors_index(directory: pathlib.Path, expected: State) -> State:
    from safetensors.torch import load_file

    index = json.loads((directory / "model.safetensors.index.json").read_text())
    state = {}
    for name in sorted(set(index["weight_map"].values())):
        part = load_file(directory / name)
        assert all(index["weight_map"][key] == name for key in part)
        state |= part
    assert state.keys() == index["weight_map"].keys()
    return state


def load_safetensors_dcp(directory: pathlib.Path, expected: State) -> State:
    """Loads with torch's reader of safetensors directories."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    return load_dcp(directory, expected, HuggingFaceStorageReader(str(directory)), root=None)


def load_script(path: pathlib.Path, expected: State) -> State:
    return torch.jit.load(path).state_dict()


def load_optimizer_dcp(path: pathlib.Path, expected: dict) -> State:
    """Returns the tensors, and compares the param_groups with `expected`."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.format_utils import _load_state_dict

    state: dict = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return flat_optimizer(state["optimizer"], expected)


def load_optimizer_torch(path: pathlib.Path, expected: dict) -> State:
    return flat_optimizer(torch.load(path, weights_only=True), expected)


def flat_optimizer(state: dict, expected: dict) -> State:
    assert state["param_groups"] == expected["param_groups"], state["param_groups"]
    return {f"state.{fqn}.{key}": value for fqn, values in state["state"].items() for key, value in values.items()}


LOADERS = {name.removeprefix("load_"): function for name, function in globals().items() if name.startswith("load_")}


def judge(job: dict) -> str:
    expected = torch.load(job["expected"], weights_only=True)
    found = LOADERS[job["load"]](pathlib.Path(job["path"]), expected)
    return difference(dict(found), expected["tensors"] if "param_groups" in expected else expected)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # Standard output has only answers.
    print(json.dumps({"torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            problem = judge(json.loads(line))
        except BaseException as error:  # DCP's own error is not an Exception.
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps({"problem": problem}), file=answers, flush=True)


if __name__ == "__main__":
    main()
