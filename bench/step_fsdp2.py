"""The peer of bench/step.py: the same GPT, trained with torch's fully_shard over gloo; prints its step times and peak memory.

step_fsdp2.py SPEC.json, under torchrun's environment. SPEC: model (sizes), path, tokens, batch_size, steps, lr, out.
"""

import json
import pathlib
import resource
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, Block  # noqa: E402


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT(**spec["model"])
    mesh = init_device_mesh("cpu", (world,))
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["lr"], fused=True)
    tokens = torch.from_numpy(numpy.fromfile(spec["tokens"], dtype=numpy.uint16).astype(numpy.int64))
    length, batch = spec["model"]["length"], spec["batch_size"]
    seconds = []
    for step in range(spec["steps"]):
        first = (step * world + rank) * batch
        windows = torch.stack([tokens[k * length:k * length + length + 1] for k in range(first, first + batch)])
        dist.barrier()
        begin = time.perf_counter()
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if rank == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps({"seconds": seconds, "peak_bytes": peak.item(), "loss": loss.item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
