"""Trains the model of test_ddp_buffers.py with torch's DistributedDataParallel, and evaluates it.

    python ddp_buffers_peer.py SPEC.json

It runs under torchrun's environment and writes the losses, the held-out loss and each rank's running mean to "out".
"""

import contextlib
import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ranks_end  # noqa: E402
from ddp_buffers_model import Net  # noqa: E402


def windows_of(path, length):
    tokens = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8).long()
    return [tokens[at:at + length + 1] for at in range(0, len(tokens) - length, length)]


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank, world, batch, accumulate = dist.get_rank(), dist.get_world_size(), spec["batch_size"], spec["accumulate"]
    model = Net()
    model.load_state_dict(torch.jit.load(spec["path"]).state_dict())
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    windows = windows_of(spec["data"], spec["length"])
    losses, micro = [], 0

    def loss_of(rows):
        rows = torch.stack(rows)
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def mean(value):
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / world

    for _ in range(spec["max_steps"]):
        loss_sum = 0.0
        for i in range(accumulate):
            first = (micro * world + rank) * batch
            micro += 1
            with contextlib.nullcontext() if i == accumulate - 1 else model.no_sync():
                loss = loss_of(windows[first:first + batch])
                (loss / accumulate).backward()
            loss_sum += loss.item() / accumulate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss_sum))

    model.eval()
    held_out = windows_of(spec["eval"], spec["length"])
    assert len(held_out) % (world * batch) == 0
    with torch.no_grad():
        own = [loss_of(held_out[at + rank * batch:at + (rank + 1) * batch]).item() for at in range(0, len(held_out), world * batch)]
    eval_loss = mean(sum(own) / len(own))
    means = [torch.zeros_like(model.module.norm.running_mean) for _ in range(world)]
    dist.all_gather(means, model.module.norm.running_mean)
    if rank == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps({"loss": losses, "eval_loss": eval_loss,
                                                         "means": [mean.tolist() for mean in means]}))
    ranks_end.leave()


if __name__ == "__main__":
    main()
