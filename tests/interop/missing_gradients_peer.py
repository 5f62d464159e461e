"""Trains the model of test_missing_gradients.py with torch's fully_shard, or with DistributedDataParallel.

    python missing_gradients_peer.py SPEC.json

It runs under torchrun's environment. It writes losses, gradient norms, weights and optimizer states to "out" with
torch.save.
"""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ranks_end  # noqa: E402
from ddp_buffers_peer import windows_of  # noqa: E402
from missing_gradients_model import Layer, Net  # noqa: E402


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank, world, batch, accumulate = dist.get_rank(), dist.get_world_size(), spec["batch_size"], spec["accumulate"]
    model = Net(spec["by_data"])
    model.load_state_dict(torch.jit.load(spec["path"]).state_dict())
    run = model
    if spec["ddp"]:
        run = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    else:
        mesh = init_device_mesh("cpu", (world,))
        for module in model.modules():
            if isinstance(module, Layer):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=spec["weight_decay"])
    windows = windows_of(spec["data"], spec["length"])
    losses, norms, micro, ranks_with = [], [], 0, []
    for _ in range(spec["max_steps"]):
        loss_sum = 0.0
        for i in range(accumulate):
            first = (micro * world + rank) * batch
            micro += 1
            rows = torch.stack(windows[first:first + batch])
            if not spec["ddp"]:
                model.set_requires_gradient_sync(i == accumulate - 1)
            loss = F.cross_entropy(run(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            (loss / accumulate).backward()
            loss_sum += loss.item() / accumulate
        ranks_with.append(int(int(rows[0, 0]) % 2 == 0))
        norms.append(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)).item())
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.tensor([loss_sum, ranks_with[-1]], dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean[0].item() / world)
        ranks_with[-1] = int(mean[1].item())
    weights = {name: whole(parameter) for name, parameter in model.named_parameters()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    states = {names[parameter]: {key: whole(value) for key, value in state.items()} for parameter, state in optimizer.state.items()}
    if rank == 0:
        torch.save({"loss": losses, "grad_norm": norms, "weights": weights, "states": states, "ranks_with": ranks_with}, spec["out"])
    ranks_end.leave()


if __name__ == "__main__":
    main()
