"""Programs of torch.export, PowerSGD, resumed runs and the record of NCCL's collectives, on CUDA."""

import json
import shutil
import signal

import pytest
import torch
from safetensors.torch import save_file

import train_runs
from gpu_runs import CPU, GPU, launch, worst

POISON = {"ACCEL_POISON": "1"}


@pytest.mark.long(but="sim-1-no")
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exported_program_trains_as_on_a_cpu(accel, tmp_path, ranks, precision):
    train_runs.export_pt2(tmp_path / "gpt.pt2", train_runs.export(tmp_path / "gpt.pt"))
    options = {"model.path": str(tmp_path / "gpt.pt2"), "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Block"}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, **options)
    gpu, _ = launch(accel, tmp_path, "--mixed-precision", precision, ranks=ranks, env=POISON, **options)
    assert worst(gpu, cpu) < (2e-4 if precision == "no" else 3e-2)


def test_power_sgd_equals_that_of_cpu_ranks(accel, tmp_path):
    """The losses differ more than without PowerSGD: the QR decompositions of a CPU and a GPU round differently."""
    train_runs.export(tmp_path / "gpt.pt")
    options = {"ddp.comm_hook": "power_sgd", "ddp.comm_state_option.start_powerSGD_iter": 2}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=2, distributed_type="MULTI_CPU", **options)
    gpu, _ = launch(accel, tmp_path, ranks=2, env=POISON, distributed_type="MULTI_GPU", **options)
    assert worst(gpu, cpu) < 2e-2


@pytest.mark.long(but="sim-1-behind")
@pytest.mark.parametrize("waits", [False, True], ids=["behind", "waiting"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(accel, tmp_path, ranks, waits):
    """Dropout is on, so the checkpoint must have the state of the GPU's generator."""
    train_runs.export(tmp_path / "gpt.pt", dropout=0.1)
    checkpoint = {"every": 3, "async": not waits}
    whole, _ = launch(accel, tmp_path, ranks=ranks, max_steps=6, checkpoint={**checkpoint, "resume": "none"})
    shutil.rmtree(tmp_path / "out/checkpoints/checkpoint_6")
    rest, _ = launch(accel, tmp_path, ranks=ranks, max_steps=6, env=POISON, checkpoint={**checkpoint, "resume": "auto"})
    assert len(rest["loss"]) == 3
    assert max(abs(a - b) for a, b in zip(rest["loss"], whole["loss"][3:], strict=True)) < 1e-5


def test_doctor_shows_the_collectives_of_nccl(accel, accel_path, tmp_path):
    """The host enqueues a collective and goes on, so it has not ended until a wait of the host says so."""
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=100000)
    config.write_text(json.dumps({**json.loads(config.read_text()), **GPU, "launch": {"backend": "nccl"}}))
    process = train_runs.start(accel_path, config, tmp_path)
    train_runs.wait_for_step(tmp_path, process, 20)
    events = json.loads(accel("doctor", tmp_path / "out", "--json", "--no-stacks").stdout)["ranks"][0]["events"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    waits = [event["begun_ns"] for event in events if event["operation"] == "host sync"]
    ended = [event for event in events if event["operation"] in ("all-reduce", "reduce-scatter") and event["ended_ns"]]
    assert {event["operation"] for event in ended} == {"all-reduce", "reduce-scatter"}
    for event in ended:
        assert any(event["begun_ns"] <= wait <= event["ended_ns"] for wait in waits), event


class Headed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(64, 48)
        self.head = torch.nn.Linear(48, 64)
        torch.nn.init.normal_(self.head.weight, std=0.3)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.tokens(input_ids)))


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_the_gradient_behind_a_fused_head_is_divided_exactly(accel, tmp_path, precision):
    """Of 256 labels 233 count. In bfloat16, 1/233 is 0.26 % more, by which all of the gradient behind the head would be
    larger. The roundings of its elements differ, and nearly cancel out in the norm."""
    torch.manual_seed(0)
    torch.jit.script(Headed()).save(tmp_path / "gpt.pt")
    tensors = {name: torch.randint(64, (4, 64)) for name in ("input_ids", "labels")}
    tensors["labels"][0, :23] = -100
    save_file(tensors, tmp_path / "data.safetensors")
    options = {"data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")}, "max_steps": 1, "loss_mean": "batches",
               "optimizer.groups": [{"match": "^head", "frozen": True}], "fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"}
    norms = {}
    for head, flags in (("always", ("--mixed-precision", precision)), ("never", ())):
        model = {"path": str(tmp_path / "gpt.pt"), "fused_head": head}
        scaled = {"grad_scaler.init_scale": 1024} if "fp16" in flags else {}
        launched, _ = launch(accel, tmp_path, *flags, model=model, **options, **scaled)
        [norms[head]] = launched["grad_norm"]
    assert norms["always"] == pytest.approx(norms["never"], rel=1e-3)
