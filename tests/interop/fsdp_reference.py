"""The peer of the parity tests: trains a GPT with torch's fully_shard or DistributedDataParallel over Gloo and writes
its losses as JSON.

    python fsdp_reference.py SPEC.json

It runs under torchrun's environment, which peer_server.py sets. SPEC holds the model's sizes and file, the data and the
training options; its keys are those of the YAML.
"""

import contextlib
import json
import math
import pathlib
import re
import sys
import types

import autocast_peer
import ranks_end
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_auto_wrap_policy
from accelerate.utils.other import get_module_children_bottom_up
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import (
    CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, OffloadPolicy, fully_shard)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from gpt import GPT, Block  # noqa: E402


def schedule(spec, step):
    """Returns the factor of transformers' get_cosine_with_min_lr_schedule_with_warmup for this step."""
    warmup, total, floor = spec["warmup_steps"], spec["max_steps"], spec["min_lr_ratio"]
    if step < warmup:
        return step / max(1, warmup)
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1 + math.cos(math.pi * progress)) * (1 - floor) + floor)


def wrapped(model, spec):
    """Returns the modules that become units, bottom-up, as Accelerate chooses them."""
    if "min_num_params" not in spec:
        return [module for module in model.modules() if isinstance(module, Block)]
    plugin = types.SimpleNamespace(auto_wrap_policy=size_based_auto_wrap_policy, min_num_params=spec["min_num_params"])
    policy = fsdp2_prepare_auto_wrap_policy(plugin, model)
    return [module for module in get_module_children_bottom_up(model)[:-1]
            if policy(module) and not isinstance(module, torch.nn.ModuleList)]  # fully_shard refuses ModuleLists.


def ignored_parameters(model, pattern):
    """Returns the parameters of the ignored modules, as Accelerate's get_parameters_from_modules does."""
    modules = [module for name, module in model.named_modules() if pattern and re.fullmatch(pattern, name)]
    return {parameter for module in modules for parameter in module.parameters()}


def clip_(parameters, ignored, max_norm):
    """Clips all gradients by one norm. torch's clip_grad_norm_ takes DTensors or plain tensors, but not both."""
    if not ignored:
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
    norms = [torch.nn.utils.get_total_norm([p.grad for p in parameters if (p in ignored) is whole]) for whole in (False, True)]
    norm = torch.linalg.vector_norm(torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]))
    torch.nn.utils.clip_grads_with_norm_([p for p in parameters if p not in ignored], max_norm, norm)
    torch.nn.utils.clip_grads_with_norm_([p for p in parameters if p in ignored], max_norm, norm)
    return norm


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = GPT(**spec["model"])
    model.load_state_dict(torch.jit.load(spec["path"]).state_dict())
    ignored = ignored_parameters(model, spec.get("ignored"))
    if spec.get("activation_checkpointing") and "fsdp1" not in spec:
        # Accelerate's fsdp2_apply_ac wraps each Block.
        plugin = types.SimpleNamespace(auto_wrap_policy=transformer_auto_wrap_policy,
                                       transformer_cls_names_to_wrap=["Block"],
                                       activation_checkpointing_offload=spec.get("activation_offload", False))
        fsdp2_apply_ac(types.SimpleNamespace(state=types.SimpleNamespace(fsdp_plugin=plugin)), model)
        assert sum(isinstance(module, CheckpointWrapper) for module in model.modules()) == len(model.blocks)
    units = 0
    if "fsdp1" in spec:
        model = autocast_peer.fully_sharded(model, spec["fsdp1"], Block, spec.get("activation_checkpointing"))
    elif "autocast" in spec:
        model = autocast_peer.data_parallel(model, spec["autocast"])
    elif spec.get("ddp"):
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        replicas = spec.get("replicas", 1)
        if replicas == 1:
            mesh = init_device_mesh("cpu", (world,))
        else:
            mesh = init_device_mesh("cpu", (replicas, world // replicas), mesh_dim_names=("dp_replicate", "dp_shard"))
        dtypes = {key: getattr(torch, name) for key, name in spec.get("precision", {}).items()}
        if dtypes:
            # Accelerate's fsdp2_prepare_model does this before it shards.
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.float32)
        policies = {"mp_policy": MixedPrecisionPolicy(**dtypes),
                    "offload_policy": CPUOffloadPolicy(pin_memory=False) if spec.get("offload") else OffloadPolicy(),
                    **({"ignored_params": ignored} if ignored else {})}
        for module in wrapped(model, spec):
            fully_shard(module, mesh=mesh, reshard_after_forward=spec.get("reshard", True), **policies)
        fully_shard(model, mesh=mesh, **policies)
        units = sum(isinstance(module, FSDPModule) for module in model.modules())

    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[not any(part in name for part in spec["no_decay"])].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": spec["weight_decay"]}, {"params": groups[False], "weight_decay": 0.0}],
        lr=spec["lr"], betas=spec["betas"], eps=spec["eps"])
    start = spec.get("start", 0)
    if start:
        model_state = {"model": get_model_state_dict(model)}
        dcp.load(model_state, checkpoint_id=spec["load"] + "/pytorch_model_fsdp_0")
        set_model_state_dict(model, model_state["model"])
        optimizer_state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.load(optimizer_state, checkpoint_id=spec["load"] + "/optimizer_0")
        set_optimizer_state_dict(model, optimizer, optimizer_state["optimizer"])
        assert all(state["step"].item() == start for state in optimizer.state.values())
        for group in optimizer.param_groups:  # LambdaLR takes the base rate from group["lr"].
            assert math.isclose(group["lr"], spec["lr"] * schedule(spec, start), abs_tol=1e-12)
            group["lr"] = spec["lr"]
        assert [group["weight_decay"] for group in optimizer.param_groups] == [spec["weight_decay"], 0.0]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(spec, step + start))

    tokens = torch.frombuffer(bytearray(pathlib.Path(spec["data"]).read_bytes()), dtype=torch.uint8).long()
    length, batch, accumulate = spec["model"]["length"], spec["batch_size"], spec["accumulate"]
    scaler, scales = None, []
    if "scaler" in spec:
        scaler = (ShardedGradScaler if "fsdp1" in spec else torch.amp.GradScaler)("cpu", **spec["scaler"])
    taken = []
    optimizer.register_step_post_hook(lambda *_: taken.append(True))
    losses, norms = [], []
    micro = start * accumulate
    for _ in range(start, spec["max_steps"]):
        loss_sum = 0.0
        for i in range(accumulate):
            first = (micro * world + rank) * batch
            windows = torch.stack([tokens[k * length:k * length + length + 1] for k in range(first, first + batch)])
            micro += 1
            last = i == accumulate - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            with model.no_sync() if not last and hasattr(model, "no_sync") else contextlib.nullcontext():
                # transformers also computes its loss in float32.
                loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1).float(), windows[:, 1:].flatten())
                (scaler.scale(loss / accumulate) if scaler else loss / accumulate).backward()
            loss_sum += loss.item() / accumulate
        for parameter in model.parameters():  # The order is the same on all ranks.
            if parameter in ignored:
                # fully_shard does not reduce these gradients. Gloo has no average.
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(world)
        if scaler:
            scaler.unscale_(optimizer)
        if isinstance(model, FullyShardedDataParallel):
            norms.append(model.clip_grad_norm_(spec["max_grad_norm"]).item())
        else:
            norms.append(clip_(list(model.parameters()), ignored, spec["max_grad_norm"]).item())
        if scaler:
            # AcceleratedScheduler does not advance if AcceleratedOptimizer skipped the step.
            before = len(taken)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            if len(taken) > before:
                scheduler.step()
        else:
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad()
        mean = torch.tensor(loss_sum, dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean.item() / world)

    if "save" in spec:
        # Accelerate puts the model under the root key `model` and the optimizer under `optimizer`.
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=spec["save"] + "/pytorch_model_fsdp_0")
        dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=spec["save"] + "/optimizer_0")
    if rank == 0:
        pathlib.Path(spec["out"]).write_text(json.dumps(
            {"loss": losses, "grad_norm": norms, "units": units, "scale": scales, "taken": len(taken),
             "scaler": scaler.state_dict() if scaler else None}))
    ranks_end.leave()


if __name__ == "__main__":
    main()
