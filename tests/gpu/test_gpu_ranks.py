"""Ranks with a GPU each, whose collectives go through NCCL on streams of its own, beside CPU ranks."""

import json
import os
import re
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

import train_runs
from gpu_runs import CPU, gpus, launch, worst

# A CPU and a GPU sum in different orders, and the difference grows over the steps.
CLOSE = 2e-4
NARROW = 3e-2
POISON = {"ACCEL_POISON": "1"}
CHECKPOINTED = {"fsdp_config.fsdp_activation_checkpointing": True}
ACTIVATIONS = {**CHECKPOINTED, "fsdp_config.fsdp_activation_checkpointing_offload": True}
PARAMS = {"fsdp_config.fsdp_offload_params": True}
MESH = {"parallelism_config.dp_replicate_size": 2, "parallelism_config.dp_shard_size": 2}
VERSION_1 = {"fsdp_config.fsdp_version": 1}
REPLICAS = {"distributed_type": "MULTI"}
FLOAT8 = ["--mixed-precision", "fp8"]

# Name: ranks, flags, options, how far losses may be apart.
CASES = {
    "plain": (2, [], {}, CLOSE),
    "accumulation": (2, [], {"gradient_accumulation_steps": 3}, CLOSE),
    "kept, checkpointing, accumulation": (2, [], {"fsdp_config.fsdp_reshard_after_forward": False, **CHECKPOINTED,
                                                  "gradient_accumulation_steps": 2}, CLOSE),
    "bf16, three ranks": (3, ["--mixed-precision", "bf16"], {}, NARROW),
    "fp16": (2, ["--mixed-precision", "fp16"], {"grad_scaler.init_scale": 1024}, NARROW),
    "linears in float8": (2, [*FLOAT8, "--set", "fp8_config.enable_fsdp_float8_all_gather=false"], CHECKPOINTED, NARROW),
    "gathered in float8": (3, FLOAT8, {**CHECKPOINTED, "gradient_accumulation_steps": 2}, NARROW),
    "gathered in float8, offload": (2, FLOAT8, {**PARAMS, "layers": 6}, NARROW),
    "gathered in float8, kept by two of four": (4, FLOAT8, {"fsdp_config.fsdp_reshard_after_forward": 2}, NARROW),
    "two units ahead": (2, [], {"fsdp_config.prefetch_depth": 2, "fsdp_config.fsdp_forward_prefetch": True, "layers": 4}, CLOSE),
    "version 1 with prefetch, bf16": (2, ["--mixed-precision", "bf16"], {
        **VERSION_1, "fsdp_config.fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_config.fsdp_forward_prefetch": True}, NARROW),
    "replicas of shards": (4, [], MESH, CLOSE),
    "kept by two of four": (4, [], {"fsdp_config.fsdp_reshard_after_forward": 2}, CLOSE),
    # With more layers, memory is freed and used again while gradients are copied to the host.
    "offload": (2, [], {**PARAMS, "layers": 6, "gradient_accumulation_steps": 2}, CLOSE),
    "offload, bf16, replicas of shards": (4, ["--mixed-precision", "bf16"], {**PARAMS, **MESH, "layers": 6}, NARROW),
    "offloaded activations": (2, [], ACTIVATIONS, CLOSE),
    "ignored modules": (2, [], {"fsdp_config.fsdp_ignored_modules": r"tokens|blocks\.0\.attention"}, CLOSE),
    "read by rank 0": (2, [], {"model.broadcast_from_rank0": True}, CLOSE),
    "replicas": (2, [], REPLICAS, CLOSE),
    "replicas with a hook": (2, [], {**REPLICAS, "ddp.comm_hook": "bf16"}, NARROW),
    # The QR decompositions of a CPU and a GPU round differently.
    "replicas with PowerSGD": (2, [], {**REPLICAS, "ddp.comm_hook": "power_sgd", "ddp.comm_state_option.start_powerSGD_iter": 2},
                               NARROW),
    "muon": (2, [], {"optimizer": {"type": "muon", "lr": 2e-2,
                                   "groups": [{"match": "^(tokens|positions|head)", "optimizer": "adamw", "lr": 3e-3}]}}, NARROW),
    "adafactor": (2, [], {"optimizer": {"type": "adafactor", "lr": 1e-2}}, NARROW),
}


@pytest.mark.long(but="sim-plain")
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.gpus(CASES[case][0])) for case in CASES])
def test_ranks_with_a_gpu_each_equal_cpu_ranks(accel, tmp_path, case):
    ranks, flags, options, bound = CASES[case]
    options = dict(options)
    train_runs.export(tmp_path / "gpt.pt", layers=options.pop("layers", train_runs.SIZES["layers"]))
    of = {"cpu": options, "gpu": options}
    if options.get("distributed_type") == "MULTI":
        of = {kind: {**options, "distributed_type": f"MULTI_{kind.upper()}"} for kind in of}
    # First on the device, which names what nothing orders, even where CPU ranks fail as well.
    gpu, said = launch(accel, tmp_path, *flags, where=gpus(ranks), ranks=ranks, env=POISON, max_steps=8, **of["gpu"])
    cpu, _ = launch(accel, tmp_path, *flags, where=CPU, ranks=ranks, max_steps=8, **of["cpu"])
    assert "backend nccl" in said and "destroy_process_group" not in said
    assert worst(gpu, cpu) < bound
    assert gpu["loss"][-1] < gpu["loss"][0] - 0.1


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Skipping(torch.nn.Module):
    """Leaves out its second layer in every third forward, though the engine gathers it ahead."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 48)
        self.first, self.second, self.third, self.fourth = Layer(), Layer(), Layer(), Layer()
        self.head = torch.nn.Linear(48, 256)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = self.first(self.tokens(input_ids))
        if int(self.calls) % 3 != 0:
            x = self.second(x)
        return self.head(self.fourth(self.third(x)))


@pytest.mark.gpus(2)
def test_a_unit_that_is_gathered_and_not_used(accel, tmp_path):
    torch.manual_seed(0)
    torch.jit.script(Skipping()).save(tmp_path / "gpt.pt")
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer", "fsdp_config.fsdp_forward_prefetch": True, **VERSION_1,
               "max_steps": 8}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=2, **options)
    gpu, _ = launch(accel, tmp_path, where=gpus(2), ranks=2, env=POISON, **options)
    assert worst(gpu, cpu) < CLOSE


@pytest.mark.long(but="sim-behind")
@pytest.mark.gpus(2)
@pytest.mark.parametrize("waits", [False, True], ids=["behind", "waiting"])
def test_a_resumed_run_of_two_gpus_goes_on_as_if_it_had_not_ended(accel, accelerator, tmp_path, waits):
    """The checkpoint is written while the next steps change the shards. Dropout needs the state of the GPU's generator."""
    train_runs.export(tmp_path / "gpt.pt", dropout=0.1)
    checkpoint = {"every": 2, "async": not waits}
    options = {"ranks": 2, "where": gpus(2), "max_steps": 6}
    whole, said = launch(accel, tmp_path, checkpoint={**checkpoint, "resume": "none"}, **options)
    if accelerator == "sim":
        # Its copies come late, so the optimizer has waited for them.
        assert all(int(ms) > 0 for ms in re.findall(r"checkpoint_[24] .*training waited (\d+) ms", said)), said
    shutil.rmtree(tmp_path / "out/checkpoints/checkpoint_6")
    accel("verify", tmp_path / "out/checkpoints/checkpoint_4")
    rest, _ = launch(accel, tmp_path, env=POISON, checkpoint={**checkpoint, "resume": "auto"}, **options)
    assert len(rest["loss"]) == 2
    assert max(abs(a - b) for a, b in zip(rest["loss"], whole["loss"][4:], strict=True)) < 1e-5


@pytest.mark.long(but="sim-waiting")
@pytest.mark.gpus(2)
@pytest.mark.parametrize("checkpoint", [{"async": False}, {"async": True}, {"async": True, "host_memory": 100_000}],
                         ids=["waiting", "behind", "little memory"])
def test_a_save_of_shards_on_the_host_and_of_others_on_the_device(accel, tmp_path, checkpoint):
    """Ignored modules stay on the device, and the largest shards take several pieces. The learning rate is 0, so the saved
    weights are those of the model."""
    model = train_runs.export(tmp_path / "gpt.pt", width=256)
    options = {**PARAMS, "fsdp_config.fsdp_ignored_modules": r"norm|tokens", "optimizer.lr": 0, "lr_scheduler": {"type": "constant"}}
    launch(accel, tmp_path, where=gpus(2), ranks=2, max_steps=3, checkpoint={**checkpoint, "every": 2, "resume": "none"}, **options)
    for step in (2, 3):
        directory = tmp_path / f"out/checkpoints/checkpoint_{step}"
        accel("verify", directory)
        accel("merge-weights", directory, tmp_path / f"merged_{step}")
        saved = load_file(tmp_path / f"merged_{step}/model.safetensors")
        assert saved.keys() == dict(model.named_parameters()).keys()
        assert all(torch.equal(saved[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.long
@pytest.mark.gpus(2)
def test_a_rank_that_does_not_come_makes_the_others_end(accel_path, tmp_path):
    """Its collectives do not end within launch.timeout, and the launcher says which."""
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=100000, **{"launch.timeout": 4, "launch.hang_timeout": 2})
    config.write_text(json.dumps({**json.loads(config.read_text()), **gpus(2)}))
    process = train_runs.start(accel_path, config, tmp_path)
    train_runs.wait_for_step(tmp_path, process, 5)
    os.kill(train_runs.worker_of(1, process.pid), signal.SIGSTOP)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 6, said
    assert "rank 1 is stopped, by a signal or a debugger" in said
