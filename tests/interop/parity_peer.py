"""The peer of the parity table: it makes the runs of parity_tool.cpp in Python, with torch's fully_shard over Gloo.

    python parity_peer.py JOB.json

It runs under torchrun's environment. JOB is that of parity_tool, but each case also has "eager" (a pickled module),
"peer_classes" (the classes to wrap here) and "peer_out".
"""

import json
import pathlib
import sys
import types

import torch
import torch.distributed as dist
from accelerate.utils.fsdp_utils import fsdp2_apply_ac
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ranks_end  # noqa: E402
import zoo_models  # noqa: E402, F401  The pickled modules need it.


def layers_of(model, classes):
    return [module for module in model.modules() if type(module).__name__ in classes]


def shard(model, case, mesh):
    """Shards the model bottom-up, as Accelerate does."""
    layers = layers_of(model, case["peer_classes"])
    assert layers
    if case["recompute"]:
        plugin = types.SimpleNamespace(auto_wrap_policy=transformer_auto_wrap_policy, activation_checkpointing_offload=False,
                                       transformer_cls_names_to_wrap=case["peer_classes"])
        fsdp2_apply_ac(types.SimpleNamespace(state=types.SimpleNamespace(fsdp_plugin=plugin)), model)
    for layer in reversed(layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=case["reshard"])
    fully_shard(model, mesh=mesh)


def optimizer_of(job, model, lr):
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[not any(part in name for part in job["no_decay"])].append(parameter)
    return torch.optim.AdamW([{"params": groups[True], "weight_decay": job["weight_decay"]},
                              {"params": groups[False], "weight_decay": 0.0}],
                             lr=lr, betas=job["betas"], eps=job["eps"])


def run_case(job, case, mesh):
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.load(case["eager"], weights_only=False).train()
    shard(model, case, mesh)
    optimizer = optimizer_of(job, model, case["lr"])
    buffers = [buffer for _, buffer in torch.jit.load(case["inputs"].format(rank=rank)).named_buffers()]
    count = case["arguments"]
    batches = [buffers[i:i + count] for i in range(0, len(buffers), count)]
    used, losses, norms = 0, [], []
    for _ in range(job["steps"]):
        loss_sum = 0.0
        for micro_batch in range(case["accumulate"]):
            model.set_requires_gradient_sync(micro_batch == case["accumulate"] - 1)
            loss = model(*batches[used % len(batches)]) / case["accumulate"]
            used += 1
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"] or float("inf"))
        norms.append(norm.full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.tensor(loss_sum, dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    if rank == 0:
        pathlib.Path(case["peer_out"]).write_text(json.dumps({"loss": losses, "grad_norm": norms}))


def main():
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for case in job["cases"]:
        try:
            run_case(job, case, mesh)
        except Exception as error:
            raise RuntimeError(f"{case['name']}, {case['variant']}") from error
    ranks_end.leave()


if __name__ == "__main__":
    main()
