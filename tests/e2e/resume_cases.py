"""Trainings that the resume tests interrupt: what each adds to a small run, and how a run is stopped and goes on."""

import json
import pathlib

import torch

import train_runs

N = 4  # The steps between two checkpoints. A run has three times as many.

# The last steps of an epoch have fewer micro-batches than the others, and the runs end in the third epoch.
SHORT_EPOCHS = {"gradient_accumulation_steps": 3, "drop_last": False}

CASES = {
    "plain": {},
    "1 rank": {"processes": 1},
    "dropout": {"dropout": 0.1},
    "shuffling": {"data.shuffle": True},
    "accumulation, short last group, several epochs": SHORT_EPOCHS,
    "BatchNorm": {"model": "norm", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "NormBlock"},
    "evaluation between": {"eval_every": 2, "dropout": 0.1, "data.shuffle": True},
    "activation checkpointing": {"fsdp_config.fsdp_activation_checkpointing": True, "dropout": 0.1},
    "bf16": {"mixed_precision": "bf16", "dropout": 0.1},
    "fp16 with a loss scale": {"mixed_precision": "fp16", "grad_scaler.init_scale": 2.0**27,
                               "grad_scaler.growth_interval": 3},
    "schedule constant": {"lr_scheduler": {"type": "constant"}},
    "schedule constant_with_warmup": {"lr_scheduler": {"type": "constant_with_warmup", "warmup_steps": 6}},
    "schedule linear": {"lr_scheduler": {"type": "linear", "warmup_steps": 3}},
    "offloaded parameters": {"fsdp_config.fsdp_offload_params": True},
    "HYBRID_SHARD": {"processes": 4, "parallelism_config.dp_shard_size": 2, "dropout": 0.1},
    "MULTI_CPU": {"distributed_type": "MULTI_CPU", "dropout": 0.1},
    "MULTI_CPU, PowerSGD": {"distributed_type": "MULTI_CPU", "ddp.comm_hook": "power_sgd",
                            "ddp.comm_state_option.start_powerSGD_iter": 2},
    "MULTI_CPU, PowerSGD before it begins": {"distributed_type": "MULTI_CPU", "ddp.comm_hook": "power_sgd",
                                             "ddp.comm_state_option.start_powerSGD_iter": 6},
    "MULTI_CPU, PowerSGD without state": {
        "distributed_type": "MULTI_CPU", "ddp.comm_hook": "power_sgd", "ddp.comm_state_option.start_powerSGD_iter": 2,
        "ddp.comm_state_option.use_error_feedback": False, "ddp.comm_state_option.warm_start": False},
    "MULTI_CPU, PowerSGD in bf16": {"distributed_type": "MULTI_CPU", "ddp.comm_hook": "power_sgd",
                                    "ddp.comm_wrapper": "bf16", "ddp.comm_state_option.start_powerSGD_iter": 2},
    "MULTI_CPU, BatchNorm": {"distributed_type": "MULTI_CPU", "model": "norm"},
    "all at once": {**SHORT_EPOCHS, "dropout": 0.1, "data.shuffle": True, "eval_every": 2, "mixed_precision": "fp16",
                    "fsdp_config.fsdp_activation_checkpointing": True},
}

WORKER = """#!/bin/sh
if [ "$RANK" = {rank} ]; then export {variable}; fi
exec {worker}
"""


class NormBlock(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor):
        return x + torch.relu(self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2))


class Norms(torch.nn.Module):
    """A model whose held-out loss depends on running statistics, which differ between ranks."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 16)
        self.block = NormBlock(16)
        self.head = torch.nn.Linear(16, 256)

    def forward(self, input_ids: torch.Tensor):
        return self.head(self.block(self.tokens(input_ids)))


def prepare(directory: pathlib.Path, case: dict) -> None:
    """Writes the model and the data of a case. An epoch has 93 samples."""
    directory.mkdir(parents=True, exist_ok=True)
    if case.get("model") == "norm":
        torch.manual_seed(0)
        torch.jit.script(Norms()).save(str(directory / "gpt.pt"))
    else:
        train_runs.export(directory / "gpt.pt", dropout=case.get("dropout", 0.0))
    (directory / "train.txt").write_bytes(train_runs.TEXT.read_bytes()[:93 * 32 + 1])
    (directory / "eval.txt").write_bytes(train_runs.TEXT.read_bytes()[10_000:11_500])


def config(directory: pathlib.Path, case: dict, steps: int = 3 * N, processes: int | None = None, **more) -> pathlib.Path:
    """Writes the configuration of a run of `steps` steps, whose schedule is that of a run of 3 * N."""
    options = {key: value for key, value in case.items() if key not in ("processes", "dropout", "model", "drop_last")}
    options.setdefault("lr_scheduler", {"type": "cosine", "warmup_steps": 4, "min_lr_ratio": 0.1})
    options["lr_scheduler"] = {**options["lr_scheduler"], "total_steps": 3 * N}
    return train_runs.config(
        directory, processes or case.get("processes", 2), data=directory / "train.txt", max_steps=steps,
        **{"checkpoint": {"every": N, "resume": "auto"},
           "data.eval": {"format": "text", "path": str(directory / "eval.txt"), "sequence_length": 32},
           "data.drop_last": case.get("drop_last", True), "eval_every": 0, **options, **more})


def faulty_worker(directory: pathlib.Path, accel_path: pathlib.Path, rank: int, variable: str) -> str:
    """Returns a program that starts the worker with an environment variable for one rank."""
    script = directory / "worker"
    worker = accel_path.parent.parent / "train/accel-worker"
    script.write_text(WORKER.format(rank=rank, variable=variable, worker=worker))
    script.chmod(0o755)
    return str(script)


def manifest(directory: pathlib.Path, step: int) -> dict:
    return json.loads((directory / f"out/checkpoints/checkpoint_{step}/accel_manifest.json").read_text())


def lines(directory: pathlib.Path) -> list[dict]:
    """The lines of metrics.jsonl without what depends on time, memory and the directory."""
    times = {"time", "attempt", "samples_per_s", "tokens_per_s", "step_time_s", "max_rss_bytes", "eval_time_s"}
    read = [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]
    # The line of a checkpoint comes when it is complete, which may be some steps later.
    return [{key: value for key, value in line.items() if key not in times}
            for line in read if "checkpoint" not in line and "run_time_s" not in line]
