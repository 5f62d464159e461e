"""The peer of bench/step.py and bench/gpu_step.py. It trains the same GPT with torch's fully_shard, and writes its step
times and peak memory.

Run step_fsdp2.py SPEC.json in torchrun's environment. SPEC has the keys model (sizes), tokens, batch_size, steps, lr
and out. The keys device (cpu), precision (none) and compile (false) are optional. With transformers (a directory) and
layer (a class) it trains that model of transformers instead.
"""

import json
import os
import pathlib
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, Block  # noqa: E402


def on_device(name):
    if name == "cpu":
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def make(spec):
    """Returns the model and the name of the class of its layers."""
    if "transformers" not in spec:
        return GPT(**spec["model"]), Block.__name__
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(spec["transformers"], use_cache=False).train(), spec["layer"]


def meet(device):
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    device = on_device(spec.get("device", "cpu"))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    with device:
        model, layer = make(spec)
    mesh = init_device_mesh(device.type, (world,))
    policy = {}
    if "precision" in spec:
        dtype = getattr(torch, spec["precision"])
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)
    for module in model.modules():
        if type(module).__name__ == layer:
            if spec.get("compile"):
                module.compile()
            fully_shard(module, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["lr"], fused=True)
    tokens = torch.frombuffer(bytearray(pathlib.Path(spec["tokens"]).read_bytes()), dtype=torch.uint16).long()
    length, batch = spec["model"]["length"], spec["batch_size"]
    seconds, host_seconds = [], []
    for step in range(spec["steps"]):
        first = (step * world + rank) * batch
        windows = torch.stack([tokens[k * length:k * length + length + 1] for k in range(first, first + batch)])
        meet(device)
        begin = time.perf_counter()
        windows = windows.to(device, non_blocking=True)
        result = model(windows[:, :-1])
        logits = result if isinstance(result, torch.Tensor) else result.logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        host_seconds.append(time.perf_counter() - begin)  # Here the host waits for a GPU.
        loss.item()
        meet(device)
        seconds.append(time.perf_counter() - begin)
    peak = torch.tensor(peak_bytes(device), device=device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if rank == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps({
            "seconds": seconds, "host_seconds": host_seconds, "peak_bytes": peak.item(), "loss": loss.item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
