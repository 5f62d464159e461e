"""Saves DCP checkpoints in every form of torch's own writer, on several ranks. torchrun runs this file."""

import pathlib
import sys

import torch

WORLD_SIZE = 4
FORMS = ["mesh", "columns", "uneven", "threads", "file_per_tensor", "no_collectives", "extras"]


def tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a random tensor, which is the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole_state(form: str) -> dict:
    """Returns the full, unsharded state dict of a checkpoint of this `form`."""
    if form == "mesh":
        return {"even": tensor(1, 4, 6), "odd": tensor(2, 5, 7), "cube": tensor(3, 3, 4, 5, dtype=torch.bfloat16)}
    if form == "columns":
        return {"even": tensor(1, 3, 8), "odd": tensor(2, 3, 7), "one": tensor(3, 5, 1)}
    if form == "uneven":
        return {"few": tensor(1, 3, 4), "row": tensor(2, 1, 2), "none": torch.zeros(0, 5), "scalar": torch.tensor(2.5)}
    if form == "extras":
        return {
            "model": {"layer.weight": tensor(1, 8, 2), "layer.bias": tensor(2, 3)},
            "steps": [{"at": torch.tensor(3)}, {"at": torch.tensor(4)}],
            "rng": tensor(4, 6).to(torch.uint8),
            "epoch": 3,
            "args": {"lr": 0.5, "betas": (0.9, 0.95), "name": None},
        }
    return {f"h.{i}.weight": tensor(i, 6, 4) for i in range(5)} | {"plain": tensor(9, 3), "scalar": torch.tensor(1.5)}


def sharded(form: str):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    line = init_device_mesh("cpu", (WORLD_SIZE,))
    square = init_device_mesh("cpu", (2, 2))
    state = whole_state(form)
    if form == "mesh":
        return {name: distribute_tensor(value, square, [Shard(0), Shard(1)]) for name, value in state.items()}
    if form == "columns":
        return {name: distribute_tensor(value, line, [Shard(1)]) for name, value in state.items()}
    if form == "extras":
        weight = state["model"]["layer.weight"]
        state["model"]["layer.weight"] = distribute_tensor(weight, line, [Shard(0)])
        return state
    keep = ("plain", "scalar", "none")
    return {name: value if name in keep else distribute_tensor(value, line, [Shard(0)]) for name, value in state.items()}


def main() -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    import ranks_end

    dist.init_process_group("gloo")
    for form in FORMS:
        directory = pathlib.Path(sys.argv[1]) / form
        writer = dcp.FileSystemWriter(
            directory, thread_count=3 if form == "threads" else 1, single_file_per_rank=form != "file_per_tensor"
        )
        dcp.save(sharded(form), storage_writer=writer, use_collectives=form != "no_collectives")
    ranks_end.leave()


if __name__ == "__main__":
    main()
