"""Training on CUDA equals training on CPU ranks, whose losses equal fully_shard's (tests/interop/test_parity.py)."""

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
# A CPU and a GPU sum in different orders, and the difference grows over 20 steps.
CLOSE = 2e-4
POISON = {"ACCEL_POISON": "1"}


@pytest.mark.long(but="sim-plain")
@pytest.mark.parametrize("case", CASES)
def test_losses_equal_those_of_a_cpu(accel, tmp_path, case):
    train_runs.export(tmp_path / "gpt.pt")
    cpu, _ = launch(accel, tmp_path, where=CPU, **CASES[case])
    gpu, _ = launch(accel, tmp_path, env=POISON, **CASES[case])
    assert abs(gpu["loss"][0] - cpu["loss"][0]) < 1e-5
    assert worst(gpu, cpu) < CLOSE
    assert worst(gpu, cpu, "grad_norm") < 1e-2
    assert gpu["loss"][-1] < gpu["loss"][0] - 1


@pytest.mark.long(but="sim-2-accumulation")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_share_the_gpu_equal_cpu_ranks(accel, tmp_path, ranks, case):
    """Collectives run as with one GPU per rank, but over Gloo. A parameter that is not gathered in time is NaN."""
    train_runs.export(tmp_path / "gpt.pt")
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, **CASES[case])
    gpu, _ = launch(accel, tmp_path, ranks=ranks, env=POISON, **CASES[case])
    assert worst(gpu, cpu) < CLOSE


@pytest.mark.long
def test_replicas_that_share_the_gpu_equal_cpu_ranks(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    mesh = {"parallelism_config.dp_replicate_size": 2, "parallelism_config.dp_shard_size": 2}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=4, **mesh)
    gpu, _ = launch(accel, tmp_path, ranks=4, env=POISON, **mesh)
    assert worst(gpu, cpu) < CLOSE


@pytest.mark.long(but="sim-1")
@pytest.mark.parametrize("ranks", [1, 2])
def test_bfloat16_is_near_float32(accel, tmp_path, ranks):
    train_runs.export(tmp_path / "gpt.pt")
    exact, _ = launch(accel, tmp_path, ranks=ranks)
    bf16, _ = launch(accel, tmp_path, "--mixed-precision", "bf16", ranks=ranks, env=POISON)
    assert 0 < worst(bf16, exact) < 3e-2
    assert bf16["loss"][-1] < bf16["loss"][0] - 1


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_checkpointing_changes_no_bit(accel, tmp_path, precision):
    """Recomputation draws the same dropout numbers again from the GPU's generator."""
    train_runs.export(tmp_path / "gpt.pt", dropout=0.1)
    flags = ("--mixed-precision", precision)
    plain, _ = launch(accel, tmp_path, *flags, max_steps=5)
    again, _ = launch(accel, tmp_path, *flags, max_steps=5, **CHECKPOINTED)
    none, _ = launch(accel, tmp_path, *flags, max_steps=5, seed=1)
    assert worst(again, plain) < 1e-5
    assert again["loss"][0] == plain["loss"][0]
    assert none["loss"] != plain["loss"]


VERSION_1 = {"fsdp_config.fsdp_version": 1}
# Units compute in 16 bits in FSDP version 2, and autocast does in the other cases: with shards in version 1, and with
# replicated parameters under MULTI_GPU.
NARROW = {
    "fp16": ("fp16", {}, "FSDP"),
    "bf16, version 1": ("bf16", VERSION_1, "FSDP"),
    "fp16, version 1": ("fp16", VERSION_1, "FSDP"),
    "bf16, MULTI_GPU": ("bf16", {}, "MULTI"),
    "fp16, MULTI_GPU": ("fp16", {}, "MULTI"),
}


@pytest.mark.long(but="sim-1-bf16, version 1")
@pytest.mark.parametrize("case", NARROW)
@pytest.mark.parametrize("ranks", [1, 2])
def test_16_bits_are_near_32(accel, tmp_path, ranks, case):
    """float16 starts with a scale of 1024, with which no step overflows."""
    precision, options, kind = NARROW[case]
    train_runs.export(tmp_path / "gpt.pt")
    types = {"cpu": "MULTI_CPU", "gpu": "MULTI_GPU"} if kind == "MULTI" else {"cpu": "FSDP", "gpu": "FSDP"}
    exact, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, distributed_type=types["cpu"])
    scaled = {"grad_scaler.init_scale": 1024} if precision == "fp16" else {}
    narrow, _ = launch(accel, tmp_path, "--mixed-precision", precision, ranks=ranks, env=POISON,
                       **{"distributed_type": types["gpu"], **options, **scaled})
    assert 0 < worst(narrow, exact) < 3e-2
    assert narrow["loss"][-1] < narrow["loss"][0] - 1
    assert narrow["scale"] == ([1024] * 20 if precision == "fp16" else [])


def test_a_step_that_overflows_is_skipped_and_the_scale_halved(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    narrow, said = launch(accel, tmp_path, "--mixed-precision", "fp16", **{"grad_scaler.init_scale": 2.0**40})
    assert sum(train_runs.metrics(tmp_path, "skipped")) > 5
    assert all(after in (before, before / 2) for before, after in zip(narrow["scale"], narrow["scale"][1:]))
    assert "skipped" in said


@pytest.mark.long
def test_units_kept_by_some_of_the_ranks_equal_cpu_ranks(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    kept = {"fsdp_config.fsdp_reshard_after_forward": 2}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=4, **kept)
    gpu, _ = launch(accel, tmp_path, ranks=4, env=POISON, **kept)
    assert worst(gpu, cpu) < CLOSE


def test_what_rank_0_reads_for_all_is_what_each_reads(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    each, _ = launch(accel, tmp_path, ranks=2, max_steps=3)
    first, _ = launch(accel, tmp_path, ranks=2, max_steps=3, **{"model.broadcast_from_rank0": True})
    assert first["loss"][0] == each["loss"][0]
    assert worst(first, each) < 1e-5


def test_poison_changes_no_bit(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    plain, _ = launch(accel, tmp_path, ranks=2, max_steps=3)
    poisoned, _ = launch(accel, tmp_path, ranks=2, max_steps=3, env=POISON)
    assert poisoned["loss"][0] == plain["loss"][0]
    assert worst(poisoned, plain) < 1e-5


def test_checkpoint_and_evaluation_equal_those_of_a_cpu(accel, accelerator, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    held_out = tmp_path / "held_out"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[:5000])
    options = {"max_steps": 1, "optimizer.lr": 0, "lr_scheduler": {"type": "constant"}, "eval_every": 1,
               "checkpoint": {"every": 1, "resume": "none"},
               "data.eval": {"format": "text", "path": str(held_out), "sequence_length": 32}}
    found = {}
    for name, where in (("cpu", CPU), ("gpu", GPU)):
        found[name], _ = launch(accel, tmp_path, where=where, **options)
        (tmp_path / "out/checkpoints/checkpoint_1").rename(tmp_path / name)
    assert len(found["gpu"]["eval_loss"]) == 1
    assert worst(found["gpu"], found["cpu"], "eval_loss") < 1e-5
    accel("verify", tmp_path / "gpu")
    for name in found:
        state = json.loads((tmp_path / name / "random_states_0.json").read_text())
        assert (accelerator in state) == (name == "gpu")
    accel("diff", tmp_path / "cpu/pytorch_model_fsdp_0", tmp_path / "gpu/pytorch_model_fsdp_0")


SCALES = {"cpu": torch.linspace(0.5, 1.5, 48)}


class Positions(torch.nn.Module):
    """Tracing stores the device of `arange` in the model, and a tensor that is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 48)
        self.places = torch.nn.Embedding(32, 48)
        self.head = torch.nn.Linear(48, 256)

    def forward(self, input_ids):
        places = self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        return self.head(torch.tanh(self.tokens(input_ids) + places) * SCALES[input_ids.device.type])


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_where_a_model_was_traced_does_not_matter(accel, tmp_path, device):
    place = "cuda" if device == "gpu" and torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Positions().to(place)
    SCALES[place] = SCALES["cpu"].to(place)
    torch.jit.trace(model, torch.zeros(4, 32, dtype=torch.long, device=place)).save(tmp_path / "gpt.pt")
    if device == "gpu" and place == "cpu":
        train_runs.as_if_from_a_gpu(tmp_path / "gpt.pt")
    options = {"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"}
    cpu, _ = launch(accel, tmp_path, where=CPU, max_steps=5, **options)
    gpu, _ = launch(accel, tmp_path, max_steps=5, **options)
    assert worst(gpu, cpu) < CLOSE


class Normed(torch.nn.Module):
    """Has running statistics. Each rank has its own; with replicated parameters, rank 0 broadcasts its statistics."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 48)
        self.norm = torch.nn.BatchNorm1d(48)
        self.head = torch.nn.Linear(48, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        return self.head(torch.tanh(self.norm(x.flatten(0, 1)).view_as(x)))


@pytest.mark.long(but="sim-1-FSDP")
@pytest.mark.parametrize("kind", ["FSDP", "MULTI"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_with_running_statistics_equals_a_cpus(accel, tmp_path, ranks, kind):
    torch.manual_seed(0)
    torch.jit.script(Normed()).save(tmp_path / "gpt.pt")
    (tmp_path / "held_out").write_bytes(train_runs.TEXT.read_bytes()[:2000])
    options = {"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "eval_every": 20,
               "data.eval": {"format": "text", "path": str(tmp_path / "held_out"), "sequence_length": 32}}
    types = ("MULTI_CPU", "MULTI_GPU") if kind == "MULTI" else ("FSDP", "FSDP")
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, distributed_type=types[0], **options)
    gpu, _ = launch(accel, tmp_path, ranks=ranks, env=POISON, distributed_type=types[1], **options)
    assert worst(gpu, cpu) < CLOSE
    assert len(gpu["eval_loss"]) == 1
    assert worst(gpu, cpu, "eval_loss") < 2e-3


NCCL = {**GPU, "launch": {"backend": "nccl"}}


@pytest.mark.long(but="sim-plain-no")
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_a_rank_whose_collectives_go_through_nccl_changes_no_loss(accel, tmp_path, case, precision):
    """With backend: nccl a single rank gathers and reduces through NCCL, on NCCL's streams."""
    train_runs.export(tmp_path / "gpt.pt")
    flags = ("--mixed-precision", precision)
    plain, _ = launch(accel, tmp_path, *flags, max_steps=8, **CASES[case])
    nccl, said = launch(accel, tmp_path, *flags, where=NCCL, env=POISON, max_steps=8, **CASES[case])
    assert "backend nccl" in said and "destroy_process_group" not in said
    assert nccl["loss"][0] == plain["loss"][0]
    assert worst(nccl, plain) < 1e-5


@pytest.mark.cuda
def test_the_version_of_nccl_is_that_of_libtorch(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=2)
    config.write_text(json.dumps({**json.loads(config.read_text()), **NCCL}))
    version = ".".join(map(str, torch.cuda.nccl.version()))
    assert f"NCCL version {version}" in accel("launch", config, env={"NCCL_DEBUG": "VERSION"}).stdout


@pytest.mark.cuda
def test_a_profile_shows_kernels(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    launch(accel, tmp_path, max_steps=4, profile={"steps": [2, 3]})
    events = json.loads((tmp_path / "out/profile/rank_0.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert any("unit blocks.0" in event.get("name", "") for event in events)
