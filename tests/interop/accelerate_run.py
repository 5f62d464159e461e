"""Trains the model of train_runs with Accelerate's FSDP on CPU ranks, from or to a state of Accelerator.save_state.

Run accelerate_run.py SPEC.json in torchrun's environment. SPEC has the keys directory (with train.txt), first, last (the
steps), load (null, or a directory and SHARDED_STATE_DICT or FULL_STATE_DICT), save (null, or a step and the directories
by those names), lr, total (the steps of the schedule), version (of FSDP) and out, which gets the losses.
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import DistributedType, PartialState

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ranks_end  # noqa: E402
import train_runs  # noqa: E402
import zoo_write  # noqa: E402

BATCH = 4
LENGTH = 32


def batch_of(tokens, step, rank, world):
    first = ((step - 1) * world + rank) * BATCH
    return torch.stack([tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(first, first + BATCH)])


def linear(step, warmup, total):
    """transformers' linear schedule with warm-up."""
    return step / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    directory = pathlib.Path(spec["directory"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tokens = torch.tensor(list((directory / "train.txt").read_bytes()))
    model = train_runs.export(directory / f"unused_{rank}.pt")
    with zoo_write.under_accelerate(model, spec["version"]) as (plugin, accelerator, model, _):
        # Every new AcceleratorState copies this.
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        names = dict(model.named_parameters())
        plain = [p for name, p in names.items() if "bias" in name or "norm" in name]
        decayed = [p for name, p in names.items() if "bias" not in name and "norm" not in name]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                                      lr=spec["lr"], betas=(0.9, 0.95))
        accelerator._models.append(model)
        optimizer = accelerator.prepare_optimizer(optimizer, device_placement=False)
        # AcceleratedScheduler makes a step for each rank.
        scheduler = accelerator.prepare_scheduler(
            torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda n: linear(n, 4 * world, spec["total"] * world)))
        if spec["load"]:
            source, state = spec["load"]
            zoo_write.set_state_type(plugin, state)
            accelerator.load_state(source)
        losses = []
        for step in range(spec["first"], spec["last"] + 1):
            samples = batch_of(tokens, step, rank, world)
            logits = model(samples[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
            loss.backward()
            if spec["version"] == 1:
                model.clip_grad_norm_(1.0)  # torch.nn.utils would take the norm of this rank's shards.
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            value = loss.detach().clone()
            dist.all_reduce(value)
            losses.append(value.item() / world)
            if spec["save"] and step == spec["save"][0]:
                for state, target in spec["save"][1].items():
                    zoo_write.set_state_type(plugin, state)
                    accelerator.save_state(target, safe_serialization=False)
    if rank == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps(losses))
    ranks_end.leave()


if __name__ == "__main__":
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    main()
