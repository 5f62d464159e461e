"""Trains a GPT as a script under Accelerate does, with float8 and FSDP version 2, and writes losses and weights.

    python accelerate_float8_peer.py SPEC.json

It runs under torchrun's environment. "variables" are those by which `accelerate launch` passes a configuration on. On CPU
ranks Accelerate makes another distributed type of FSDP unless its state is set by hand.
"""

import json
import os
import pathlib
import sys

import float8_peer
import ranks_end
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType, PartialState

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from gpt import GPT  # noqa: E402


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    os.environ.update(spec["variables"])
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator()
    assert accelerator.is_fsdp2 and accelerator.fp8_backend == "AO"
    model = GPT(**spec["model"])
    model.load_state_dict(torch.jit.load(spec["path"]).state_dict())
    model, optimizer = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=spec["lr"], weight_decay=0.1, fused=True))
    tokens = torch.frombuffer(bytearray(pathlib.Path(spec["data"]).read_bytes()), dtype=torch.uint8).long()
    length, batch = spec["model"]["length"], spec["batch_size"]
    losses = []
    for step in range(spec["steps"]):
        first = (step * accelerator.num_processes + accelerator.process_index) * batch
        loss = float8_peer.loss_of(model, float8_peer.windows_of(tokens, length, range(first, first + batch)))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / accelerator.num_processes)
    weights = float8_peer.weights_of(model)
    if accelerator.is_main_process:
        torch.save({"loss": losses, "weights": weights}, spec["out"])
    ranks_end.leave()


if __name__ == "__main__":
    main()
