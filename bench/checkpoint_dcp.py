"""The peer of bench/checkpoint.py. It shards the same model with torch's fully_shard, and measures DCP's save,
async_save by a thread and by a process, and load.

Run checkpoint_dcp.py SPEC.json in torchrun's environment. SPEC has the keys width, layers, repeat, folder and out.
"""

import json
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from checkpoint_model import Stack  # noqa: E402


def step(model, optimizer, width):
    model(torch.ones(4, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def timed(work):
    dist.barrier()
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    torch.manual_seed(0)
    model = Stack(spec["width"], spec["layers"])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step(model, optimizer, spec["width"])
    # The thread of async_save has collectives of its own, which must not meet those of the next step.
    group = dist.new_group(backend="gloo")
    folder = pathlib.Path(spec["folder"]) / "dcp"
    found = {"save": [], "async_save, blocking": [], "async_save, in all": [], "process, blocking": [], "process, in all": [],
             "load": [], "load, cached": []}

    def fresh():
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()

    for _ in range(spec["repeat"]):
        fresh()
        found["save"].append(timed(lambda: dcp.save(state_of(model, optimizer), checkpoint_id=folder))[0])

        def load():
            state = state_of(model, optimizer)
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

        # Like accel's, whose files bypass the page cache, these are read from the disk.
        for path in folder.rglob("*.distcp"):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for name in ("load", "load, cached"):
            found[name].append(timed(load)[0])
        for name, kind in (("async_save", AsyncCheckpointerType.THREAD), ("process", AsyncCheckpointerType.PROCESS)):
            fresh()
            begin = time.perf_counter()
            blocking, future = timed(lambda: dcp.async_save(state_of(model, optimizer), checkpoint_id=folder,
                                                            process_group=group, async_checkpointer_type=kind))
            step(model, optimizer, spec["width"])
            future = getattr(future, "upload_completion", future)
            future.result()
            found[f"{name}, blocking"].append(blocking)
            found[f"{name}, in all"].append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
