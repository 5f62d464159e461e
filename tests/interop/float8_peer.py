"""The peer of the float8 tests: trains a GPT with torchao's float8 linears, which Accelerate chooses, and writes losses,
gradient norms and weights.

    python float8_peer.py SPEC.json

It runs under torchrun's environment. "kind" is "autocast" (one process, or DistributedDataParallel), "fsdp1" or "fsdp2".
"gather" says whether version 2 of FSDP gathers in float8.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import sys
import types

import autocast_peer
import ranks_end
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils.ao import convert_model_to_fp8_ao
from accelerate.utils.fsdp_utils import fsdp2_apply_ac
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor

# torchao is beside the environment; see make_zoo in tools/dev.
sys.path.append(os.environ.get("ACCEL_ZOO_PACKAGES", ""))
from torchao.float8 import Float8LinearConfig, precompute_float8_dynamic_scale_for_fsdp  # noqa: E402
from torchao.float8.float8_linear import Float8Linear  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from gpt import GPT, Block  # noqa: E402


def convert(model, spec):
    """Converts the model as Accelerate's _prepare_ao does. A CPU has no products with scales of rows."""
    config = Float8LinearConfig.from_recipe_name(spec["recipe"])
    config = dataclasses.replace(config, pad_inner_dim=True, emulate=spec["recipe"] != "tensorwise",
                                 enable_fsdp_float8_all_gather=spec["gather"])
    keeps = spec.get("filter")
    chooses = None if keeps is None else lambda module, name: not any(word in name for word in keeps)
    convert_model_to_fp8_ao(model, config=config, module_filter_func=chooses)
    return [name for name, module in model.named_modules() if isinstance(module, Float8Linear)]


def shard(model, spec):
    """Shards as Accelerate does with mixed_precision fp8 and FSDP version 2."""
    if spec["recompute"]:
        plugin = types.SimpleNamespace(auto_wrap_policy=transformer_auto_wrap_policy, transformer_cls_names_to_wrap=["Block"],
                                       activation_checkpointing_offload=False)
        fsdp2_apply_ac(types.SimpleNamespace(state=types.SimpleNamespace(fsdp_plugin=plugin)), model)
    world, replicas = dist.get_world_size(), spec["replicas"]
    mesh = (init_device_mesh("cpu", (world,)) if replicas == 1 else
            init_device_mesh("cpu", (replicas, world // replicas), mesh_dim_names=("dp_replicate", "dp_shard")))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    shards = functools.partial(fully_shard, mesh=mesh, mp_policy=policy, reshard_after_forward=spec["reshard"])
    for module in [module for module in model.modules() if isinstance(module, Block)]:
        shards(module)
    return shards(model)


def prepared(model, spec):
    if spec["kind"] == "fsdp2":
        return shard(model, spec)
    if spec["kind"] == "fsdp1":
        return autocast_peer.fully_sharded(model, "bfloat16", Block, spec["recompute"])
    return autocast_peer.data_parallel(model, "bfloat16")


def loss_of(model, windows):
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1).float(), windows[:, 1:].flatten())


def windows_of(tokens, length, numbers):
    return torch.stack([tokens[k * length:k * length + length + 1] for k in numbers])


def evaluate(model, tokens, length, batch):
    """Returns the mean loss of all windows, each batch's with the weight of its windows."""
    model.eval()
    count = (len(tokens) - 1) // length
    total = 0.0
    with torch.no_grad():
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            total += loss_of(model, windows_of(tokens, length, numbers)).item() * len(numbers)
    return total / count


def weights_of(model):
    """Returns the whole float32 weights under the names of the model itself."""
    wrappers = re.compile(r"(^|\.)(module|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)")
    is_version_1 = isinstance(model, FullyShardedDataParallel)
    whole = FullyShardedDataParallel.summon_full_params(model) if is_version_1 else contextlib.nullcontext()
    with whole:
        values = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in model.named_parameters()}
        # The weights of float8 linears may be of a class of torchao that wraps a tensor.
        values = {name: getattr(value, "_tensor", value) for name, value in values.items()}
        return {wrappers.sub("", name).lstrip("."): value.detach().clone() for name, value in values.items()}


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = GPT(**spec["model"])
    model.load_state_dict(torch.jit.load(spec["path"]).state_dict())
    converted = convert(model, spec)
    model = prepared(model, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["lr"], weight_decay=0.1, fused=True)
    if spec["gather"] and spec["kind"] == "fsdp2":
        # As Accelerate's _prepare_ao does.
        optimizer.register_step_post_hook(lambda *_: precompute_float8_dynamic_scale_for_fsdp(model))
    tokens = torch.frombuffer(bytearray(pathlib.Path(spec["data"]).read_bytes()), dtype=torch.uint8).long()
    length, batch, accumulate = spec["model"]["length"], spec["batch_size"], spec["accumulate"]
    losses, norms, micro = [], [], 0
    for _ in range(spec["steps"]):
        loss_sum = 0.0
        for i in range(accumulate):
            first = (micro * world + rank) * batch
            micro += 1
            last = i == accumulate - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            with model.no_sync() if not last and hasattr(model, "no_sync") else contextlib.nullcontext():
                loss = loss_of(model, windows_of(tokens, length, range(first, first + batch)))
                (loss / accumulate).backward()
            loss_sum += loss.item() / accumulate
        clip = getattr(model, "clip_grad_norm_", functools.partial(torch.nn.utils.clip_grad_norm_, model.parameters()))
        norm = clip(spec["max_norm"] or float("inf"))
        norms.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.tensor(loss_sum, dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    weights = weights_of(model)
    held_out = evaluate(model, tokens[:32 * 14 + 1], length, batch) if spec["kind"] != "fsdp1" else None
    if rank == 0:
        torch.save({"loss": losses, "grad_norm": norms, "weights": weights, "converted": converted,
                    "eval_loss": held_out}, spec["out"])
    ranks_end.leave()


if __name__ == "__main__":
    main()
