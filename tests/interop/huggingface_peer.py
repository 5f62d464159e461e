"""The peer of the tests of Hugging Face models in 16 bits: it trains directories of transformers with torch's fully_shard
over Gloo and writes the losses of each as JSON.

    python huggingface_peer.py SPEC.json

It runs under torchrun's environment. The keys of SPEC are those of the YAML, beside "out" and "runs", a list of a directory,
the class to wrap and a dtype each.
"""

import json
import pathlib
import sys

import ranks_end
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def windows(spec, step):
    tokens = torch.frombuffer(bytearray(pathlib.Path(spec["data"]).read_bytes()), dtype=torch.uint8).long()
    first, length = (step * dist.get_world_size() + dist.get_rank()) * spec["batch_size"], spec["length"]
    return torch.stack([tokens[i * length:(i + 1) * length + 1] for i in range(first, first + spec["batch_size"])])


def train(spec, directory, layer, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train()
    policy = MixedPrecisionPolicy(*[getattr(torch, dtype)] * 3)
    for module in model.modules():
        if type(module).__name__ == layer:
            fully_shard(module, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), **spec["optimizer"])
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    losses = []
    for step in range(spec["max_steps"]):
        for group in optimizer.param_groups:
            group["lr"] = 0.0 if step == 0 else spec["optimizer"]["lr"]
        batch = windows(spec, step)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec["max_grad_norm"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        mean = torch.tensor(loss.item(), dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    losses = [train(spec, *run) for run in spec["runs"]]
    if dist.get_rank() == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps(losses))
    ranks_end.leave()


if __name__ == "__main__":
    main()
