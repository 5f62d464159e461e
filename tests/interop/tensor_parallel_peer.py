"""The peer of the tests of tensor parallelism: trains a model that transformers has cut by its own plan.

    python tensor_parallel_peer.py SPEC.json

It runs under torchrun's environment; all ranks share the model, and transformers shards what it has cut among "shards" groups of
them, which have batches of their own. SPEC has "model" (a directory), "data", "length", "batch_size" (of a group), "shards",
"steps", "optimizer" (options of AdamW) and "out", which gets losses, gradient norms, the whole weights and the names of those that
are cut.
"""

import json
import pathlib
import sys

import ranks_end
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from transformers.distributed import DistributedConfig


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def is_cut(parameter):
    return any(placement.is_shard() for placement in getattr(parameter, "placements", ()))


def norm(parameters):
    return torch.stack([whole(parameter.grad).norm() for parameter in parameters]).norm().item()


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    shards = spec["shards"]
    tp = dist.get_world_size() // shards
    distributed = DistributedConfig(tp_size=tp, tp_plan="auto", **({"fsdp_size": shards} if shards > 1 else {}))
    model = transformers.AutoModelForCausalLM.from_pretrained(spec["model"], distributed_config=distributed).train()
    cut = [name for name, parameter in model.named_parameters() if is_cut(parameter)]
    optimizer = torch.optim.AdamW(model.parameters(), **spec["optimizer"])
    tokens = torch.frombuffer(bytearray(pathlib.Path(spec["data"]).read_bytes()), dtype=torch.uint8).long()
    length, losses, norms = spec["length"], [], []
    for step in range(spec["steps"]):
        begin = (step * shards + dist.get_rank() // tp) * spec["batch_size"]
        numbers = range(begin, begin + spec["batch_size"])
        windows = torch.stack([tokens[k * length:k * length + length + 1] for k in numbers])
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        norms.append(norm(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach() / dist.get_world_size()
        dist.all_reduce(total)
        losses.append(total.item())
    weights = {name: whole(parameter) for name, parameter in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save({"loss": losses, "grad_norm": norms, "weights": weights, "cut": cut}, spec["out"])
    ranks_end.leave()


if __name__ == "__main__":
    main()
