"""Training on CUDA beside the same on CPU ranks, whose losses equal fully_shard's (tests/interop/test_parity.py)."""

import json

import pytest
import torch

import train_runs
from gpu_runs import CPU, GPU, launch, worst

CHECKPOINTED = {"fsdp_config.fsdp_activation_checkpointing": True}
CASES = {
    "plain": {},
    "checkpointing": CHECKPOINTED,
    "accumulation": {"gradient_accumulation_steps": 3},
    "kept": {"fsdp_config.fsdp_reshard_after_forward": False},
    "kept, checkpointing, accumulation": {"fsdp_config.fsdp_reshard_after_forward": False, **CHECKPOINTED,
                                          "gradient_accumulation_steps": 2},
}
# The two add up in other orders, 20 steps long.
CLOSE = 2e-4
POISON = {"ACCEL_POISON": "1"}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_those_of_a_cpu(accel, tmp_path, case):
    train_runs.export(tmp_path / "gpt.pt")
    cpu, _ = launch(accel, tmp_path, where=CPU, **CASES[case])
    gpu, _ = launch(accel, tmp_path, env=POISON, **CASES[case])
    assert abs(gpu["loss"][0] - cpu["loss"][0]) < 1e-5
    assert worst(gpu, cpu) < CLOSE
    assert worst(gpu, cpu, "grad_norm") < 1e-2
    assert gpu["loss"][-1] < gpu["loss"][0] - 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_share_the_gpu_equal_cpu_ranks(accel, tmp_path, ranks, case):
    """Gathers and reductions as with a GPU a rank, but for NCCL. What is not gathered in time is NaN."""
    train_runs.export(tmp_path / "gpt.pt")
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, **CASES[case])
    gpu, _ = launch(accel, tmp_path, ranks=ranks, env=POISON, **CASES[case])
    assert worst(gpu, cpu) < CLOSE


def test_replicas_that_share_the_gpu_equal_cpu_ranks(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    mesh = {"parallelism_config.dp_replicate_size": 2, "parallelism_config.dp_shard_size": 2}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=4, **mesh)
    gpu, _ = launch(accel, tmp_path, ranks=4, env=POISON, **mesh)
    assert worst(gpu, cpu) < CLOSE


@pytest.mark.parametrize("ranks", [1, 2])
def test_bfloat16_is_near_float32(accel, tmp_path, ranks):
    train_runs.export(tmp_path / "gpt.pt")
    exact, _ = launch(accel, tmp_path, ranks=ranks)
    bf16, _ = launch(accel, tmp_path, "--mixed-precision", "bf16", ranks=ranks, env=POISON)
    assert 0 < worst(bf16, exact) < 3e-2
    assert bf16["loss"][-1] < bf16["loss"][0] - 1


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_checkpointing_changes_no_bit(accel, tmp_path, precision):
    """Dropout draws the same numbers again, of the GPU's generator."""
    train_runs.export(tmp_path / "gpt.pt", dropout=0.1)
    flags = ("--mixed-precision", precision)
    plain, _ = launch(accel, tmp_path, *flags, max_steps=5)
    again, _ = launch(accel, tmp_path, *flags, max_steps=5, **CHECKPOINTED)
    none, _ = launch(accel, tmp_path, *flags, max_steps=5, seed=1)
    assert worst(again, plain) < 1e-5
    assert again["loss"][0] == plain["loss"][0]
    assert none["loss"] != plain["loss"]


def test_poison_changes_no_bit(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    plain, _ = launch(accel, tmp_path, ranks=2, max_steps=3)
    poisoned, _ = launch(accel, tmp_path, ranks=2, max_steps=3, env=POISON)
    assert poisoned["loss"][0] == plain["loss"][0]
    assert worst(poisoned, plain) < 1e-5


def test_checkpoint_and_evaluation_equal_those_of_a_cpu(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    options = {"max_steps": 1, "optimizer.lr": 0, "lr_scheduler": {"type": "constant"}, "eval_every": 1,
               "checkpoint": {"every": 1, "resume": "none"},
               "data.eval": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 32}}
    found = {}
    for name, where in (("cpu", CPU), ("gpu", GPU)):
        found[name], _ = launch(accel, tmp_path, where=where, **options)
        (tmp_path / "out/checkpoints/checkpoint_1").rename(tmp_path / name)
    assert len(found["gpu"]["eval_loss"]) == 1
    assert worst(found["gpu"], found["cpu"], "eval_loss") < 1e-5
    accel("verify", tmp_path / "gpu")
    accel("diff", tmp_path / "cpu/pytorch_model_fsdp_0", tmp_path / "gpu/pytorch_model_fsdp_0")


class Positions(torch.nn.Module):
    """Tracing writes the device of `arange` into the model: the CPU."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 48)
        self.places = torch.nn.Embedding(32, 48)
        self.head = torch.nn.Linear(48, 256)

    def forward(self, input_ids):
        places = self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        return self.head(torch.tanh(self.tokens(input_ids) + places))


def test_a_model_traced_on_the_cpu_trains_on_the_gpu(accel, tmp_path):
    torch.manual_seed(0)
    torch.jit.trace(Positions(), torch.zeros(4, 32, dtype=torch.long)).save(tmp_path / "gpt.pt")
    options = {"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"}
    cpu, _ = launch(accel, tmp_path, where=CPU, max_steps=5, **options)
    gpu, _ = launch(accel, tmp_path, max_steps=5, **options)
    assert worst(gpu, cpu) < CLOSE


def test_a_profile_shows_kernels(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    launch(accel, tmp_path, max_steps=4, profile={"steps": [2, 3]})
    events = json.loads((tmp_path / "out/profile/rank_0.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert any("unit blocks.0" in event.get("name", "") for event in events)
