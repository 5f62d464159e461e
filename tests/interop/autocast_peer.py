"""Applies mixed precision as Accelerate's prepare_model does without fully_shard: autocast and FSDP version 1."""

import functools
import os
import types

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils.operations import convert_outputs_to_fp32
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

ACCELERATES = {"bfloat16": "bf16", "float16": "fp16"}


def under_autocast(model, dtype):
    """Repeats prepare_model's lines on native_amp, because Accelerate itself does not support float16 on CPUs."""
    forward = torch.autocast("cpu", dtype=getattr(torch, dtype))(model.forward.__func__)
    model.forward = types.MethodType(forward, model)
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)
    return model


def forget_the_launcher():
    """Removes the variables from which Accelerate reads its configuration: they describe the launch, not the test."""
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


def data_parallel(model, dtype):
    """Puts the model under autocast and, on more than one rank, into DistributedDataParallel."""
    if dtype == "bfloat16":
        forget_the_launcher()
        return Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
    under_autocast(model, dtype)
    return torch.nn.parallel.DistributedDataParallel(model) if torch.distributed.get_world_size() > 1 else model


def fully_sharded(model, dtype, wrapped, checkpoints):
    forget_the_launcher()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1)
    plugin.set_mixed_precision(ACCELERATES[dtype], override=True)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={wrapped})
    model = FullyShardedDataParallel(
        under_autocast(model, dtype), auto_wrap_policy=policy, mixed_precision=plugin.mixed_precision_policy,
        device_id=torch.device("cpu"), use_orig_params=True)
    if checkpoints:
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            auto_wrap_policy=policy)
    return model
