"""Trains the model of test_comm_hook.py with DistributedDataParallel and Accelerate's communication hooks.

    python comm_hook_peer.py SPEC.json

It runs under torchrun's environment and writes the losses and gradient norms of each of the "cases" to "out".
"""

import contextlib
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ranks_end  # noqa: E402
from comm_hook_model import Net  # noqa: E402
from ddp_buffers_peer import windows_of  # noqa: E402


def train(spec, windows, ddp, accumulate):
    """Returns the losses of one run, as means over the ranks, and its gradient norms."""
    rank, world, batch = dist.get_rank(), dist.get_world_size(), spec["batch_size"]
    model = Net()
    model.load_state_dict(torch.jit.load(spec["path"]).state_dict())
    model = torch.nn.parallel.DistributedDataParallel(model)
    options = {"comm_hook": DDPCommunicationHookType(ddp.get("comm_hook", "no")),
               "comm_wrapper": DDPCommunicationHookType(ddp.get("comm_wrapper", "no")),
               "comm_state_option": ddp.get("comm_state_option", {})}
    DistributedDataParallelKwargs(**options).register_comm_hook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["lr"], betas=(0.9, 0.95), eps=spec["eps"], weight_decay=0.1)
    losses, norms, micro = [], [], 0
    for _ in range(spec["max_steps"]):
        loss_sum = 0.0
        for i in range(accumulate):
            first = (micro * world + rank) * batch
            micro += 1
            with contextlib.nullcontext() if i == accumulate - 1 else model.no_sync():
                rows = torch.stack(windows[first:first + batch])
                loss = model(rows[:, :-1], rows[:, 1:])
                (loss / accumulate).backward()
            loss_sum += loss.item() / accumulate
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), spec["max_grad_norm"]).item())
        optimizer.step()
        optimizer.zero_grad()
        total = torch.tensor(loss_sum, dtype=torch.float64)
        dist.all_reduce(total)
        losses.append(total.item() / world)
    return {"loss": losses, "grad_norm": norms}


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    windows = windows_of(spec["data"], spec["length"])
    found = {name: train(spec, windows, case["ddp"], case["accumulate"]) for name, case in spec["cases"].items()}
    if dist.get_rank() == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps(found))
    ranks_end.leave()


if __name__ == "__main__":
    main()
