"""Offload on CUDA beside plain runs: the same losses, and memory that is where the plan says."""

import json

import pytest

import train_runs

PARAMS = {"fsdp_config.fsdp_offload_params": True}
CHECKPOINTED = {"fsdp_config.fsdp_activation_checkpointing": True}
ACTIVATIONS = {**CHECKPOINTED, "fsdp_config.fsdp_activation_checkpointing_offload": True}
ONE_GPU = {"use_cpu": False, "num_processes": 1, "gpu_ids": "0"}


def run(accel, directory, *flags, **options):
    (directory / "out/metrics.jsonl").unlink(missing_ok=True)
    config = train_runs.config(directory, 1, **options)
    document = json.loads(config.read_text())
    document.update(ONE_GPU)
    config.write_text(json.dumps(document))
    said = accel("launch", config, *flags).stderr
    return train_runs.metrics(directory), train_runs.metrics(directory, "grad_norm"), said


@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "kept"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_offloaded_parameters_train_as_on_the_gpu(accel, tmp_path, accumulate, precision, reshard):
    """The first two losses, before the first step that changes a weight, bit for bit; then the optimizer rounds otherwise
    on the host."""
    train_runs.export(tmp_path / "gpt.pt")
    flags = ("--mixed-precision", precision)
    options = {"gradient_accumulation_steps": accumulate, "fsdp_config.fsdp_reshard_after_forward": reshard}
    plain, plain_norm, _ = run(accel, tmp_path, *flags, **options)
    ours, norm, said = run(accel, tmp_path, *flags, **options, **PARAMS)
    assert "offload: shards, gradients and optimizer state lie in the host's memory" in said
    assert "where the ranks compute" not in said
    assert ours[:2] == plain[:2]
    assert max(abs(a - b) for a, b in zip(ours, plain, strict=True)) < (2e-5 if precision == "no" else 2e-3)
    assert max(abs(a - b) for a, b in zip(norm, plain_norm, strict=True)) < (1e-3 if precision == "no" else 5e-2)
    assert plain[-1] < plain[0] - 1


@pytest.mark.parametrize("options", [ACTIVATIONS, {**ACTIVATIONS, **PARAMS}], ids=["activations", "both"])
def test_offloaded_activations_change_nothing(accel, tmp_path, options):
    """With dropout, whose numbers are drawn again."""
    train_runs.export(tmp_path / "gpt.pt", dropout=0.1)
    rest = {key: value for key, value in options.items() if key in CHECKPOINTED or key in PARAMS}
    plain, plain_norm, _ = run(accel, tmp_path, **rest)
    ours, norm, said = run(accel, tmp_path, **options)
    assert "what checkpointed modules keep" in said
    assert max(abs(a - b) for a, b in zip(ours, plain, strict=True)) < 2e-5
    assert max(abs(a - b) for a, b in zip(norm, plain_norm, strict=True)) < 1e-3


def test_checkpoints_are_those_of_a_plain_run(accel, tmp_path):
    """After a step with a learning rate of 0, so that rounding in the optimizer does not show."""
    train_runs.export(tmp_path / "gpt.pt")
    options = {"max_steps": 1, "optimizer.lr": 0, "lr_scheduler": {"type": "constant"},
               "checkpoint": {"every": 1, "resume": "none"}}
    for name, offload in (("plain", {}), ("host", PARAMS)):
        run(accel, tmp_path, **options, **offload)
        (tmp_path / "out/checkpoints/checkpoint_1").rename(tmp_path / name)
    accel("diff", tmp_path / "plain/pytorch_model_fsdp_0", tmp_path / "host/pytorch_model_fsdp_0")
