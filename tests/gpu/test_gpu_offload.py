"""Offload on CUDA gives the losses of plain runs, and each run reports what it keeps in the host's memory."""

import pytest

import train_runs
from gpu_runs import CPU, GPU, launch, worst

PARAMS = {"fsdp_config.fsdp_offload_params": True}
CHECKPOINTED = {"fsdp_config.fsdp_activation_checkpointing": True}
ACTIVATIONS = {**CHECKPOINTED, "fsdp_config.fsdp_activation_checkpointing_offload": True}


POISON = {"ACCEL_POISON": "1"}
# The optimizer rounds differently on the host and on the GPU, and 20 steps amplify the difference. The bounds are those
# between a CPU and a GPU (test_gpu_train.py).
CLOSE = {"no": 2e-4, "bf16": 2e-3}


@pytest.mark.long(but="sim-1-no-resharded")
@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "kept"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_offloaded_parameters_train_as_on_the_gpu(accel, tmp_path, accumulate, precision, reshard):
    """The first two losses precede the first step that changes a weight, so they are equal bit for bit. Later losses
    differ by the rounding of the optimizer on the host."""
    train_runs.export(tmp_path / "gpt.pt")
    flags = ("--mixed-precision", precision)
    options = {"gradient_accumulation_steps": accumulate, "fsdp_config.fsdp_reshard_after_forward": reshard}
    plain, _ = launch(accel, tmp_path, *flags, **options)
    ours, said = launch(accel, tmp_path, *flags, env=POISON, **options, **PARAMS)
    assert "offload: shards, gradients and optimizer state are in the host's memory" in said
    assert "where the ranks compute" not in said
    assert ours["loss"][:2] == plain["loss"][:2]
    assert worst(ours, plain) < CLOSE[precision]
    assert worst(ours, plain, "grad_norm") < (1e-2 if precision == "no" else 5e-2)
    assert plain["loss"][-1] < plain["loss"][0] - 1


@pytest.mark.parametrize("options", [ACTIVATIONS, {**ACTIVATIONS, **PARAMS}], ids=["activations", "both"])
def test_offloaded_activations_change_nothing(accel, tmp_path, options):
    """Dropout is on, so recomputation must draw the same random numbers again."""
    train_runs.export(tmp_path / "gpt.pt", dropout=0.1)
    rest = {key: value for key, value in options.items() if key in CHECKPOINTED or key in PARAMS}
    plain, _ = launch(accel, tmp_path, **rest)
    ours, said = launch(accel, tmp_path, **options)
    assert "saved activations of checkpointed modules" in said
    assert worst(ours, plain) < 2e-5
    assert worst(ours, plain, "grad_norm") < 1e-3


@pytest.mark.long(but="sim-1-")
@pytest.mark.parametrize("ignored", ["", r"tokens|blocks\.0\.attention"], ids=["", "ignored"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_offloaded_shards_of_several_ranks_equal_cpu_ranks(accel, tmp_path, ranks, ignored):
    """Ignored modules are replicated and train on the GPU. The gradients of the shards are on the host."""
    train_runs.export(tmp_path / "gpt.pt")
    options = {"fsdp_config.fsdp_ignored_modules": ignored} if ignored else {}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, **options)
    gpu, _ = launch(accel, tmp_path, where=GPU, ranks=ranks, env=POISON, **options, **PARAMS)
    assert worst(gpu, cpu) < CLOSE["no"]
    assert worst(gpu, cpu, "grad_norm") < 1e-2


def test_checkpoints_are_those_of_a_plain_run(accel, tmp_path):
    """The learning rate is 0, so the step changes no weight. The optimizer state shows the step's gradients: it holds
    averages of the gradients and of their squares."""
    train_runs.export(tmp_path / "gpt.pt")
    options = {"max_steps": 1, "optimizer.lr": 0, "lr_scheduler": {"type": "constant"}, "max_grad_norm": None,
               "checkpoint": {"every": 1, "resume": "none"}}
    for name, offload in (("plain", {}), ("host", PARAMS)):
        launch(accel, tmp_path, **options, **offload)
        (tmp_path / "out/checkpoints/checkpoint_1").rename(tmp_path / name)
    accel("diff", tmp_path / "plain/pytorch_model_fsdp_0", tmp_path / "host/pytorch_model_fsdp_0")
    # The tolerances allow a different order of summation.
    accel("diff", tmp_path / "plain/optimizer_0", tmp_path / "host/optimizer_0", "--rtol", "1e-4", "--atol", "1e-9")
