"""A rank's peak memory is what `accel plan` says, on top of the peak with hardly any parameters."""

import json
import os
import subprocess

import numpy
import pytest
import torch

import train_runs

LARGE = {"vocabulary": 8192, "width": 512, "layers": 8, "heads": 8}
SMALL = {**LARGE, "width": 8}
SHORT = {"data.train.sequence_length": 8}  # CPUs multiply float16 slowly.


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, sizes in (("large", LARGE), ("small", SMALL)):
        model = train_runs.export(folder / f"{name}.pt", **sizes)
        for parameter in model.blocks.parameters():
            parameter.requires_grad_(False)
        torch.jit.script(model).save(folder / f"{name}-frozen.pt")
    numpy.save(folder / "tokens.npy", numpy.frombuffer(train_runs.TEXT.read_bytes(), numpy.uint8).astype(numpy.uint16))
    return folder


def rank_peak(accel_path, directory, model, ranks, mixed_precision="no", **settings):
    """Returns the planned memory, and the peak memory of rank 0, in bytes."""
    directory.mkdir(parents=True)
    config = train_runs.config(directory, ranks, **{
        "model.path": str(model), "data.train.format": "tokens", "data.train.path": str(model.parent / "tokens.npy"),
        "data.batch_size": 1, "max_steps": 2, **settings})
    config.write_text(json.dumps({**json.loads(config.read_text()), "mixed_precision": mixed_precision}))
    plan = subprocess.run([accel_path, "plan", config, "--json"], capture_output=True, text=True, check=True)
    result = subprocess.run([accel_path, "launch", config], cwd=directory, capture_output=True, text=True, timeout=120,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    return (json.loads(plan.stdout)["plans"][0]["memory"]["total_bytes"],
            train_runs.metrics(directory, "max_rss_bytes")[-1])


def compare(accel_path, directory, models, ranks, variant, settings):
    (planned, taken), (planned_small, base) = (
        rank_peak(accel_path, directory / size, models / f"{size}{variant}.pt", ranks, **settings) for size in ("large", "small"))
    assert planned > 0.4 * taken  # The comparison means little if the plan is a small part of the peak.
    assert base - planned_small + planned == pytest.approx(taken, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("ranks, settings", [
    pytest.param(2, {}, id="full-2"),
    pytest.param(3, {}, id="full-3"),
    pytest.param(2, {"fsdp_config.fsdp_reshard_after_forward": False}, id="kept-2"),
    pytest.param(4, {"parallelism_config.parallelism_config_dp_replicate_size": 2,
                     "parallelism_config.parallelism_config_dp_shard_size": 2}, id="hybrid-2x2"),
    pytest.param(2, {"mixed_precision": "bf16"}, id="bf16-2"),
    pytest.param(2, {"mixed_precision": "fp16", **SHORT}, id="fp16-2"),
])
def test_the_peak_is_within_a_tenth_of_the_plan(accel_path, tmp_path, models, ranks, settings):
    compare(accel_path, tmp_path, models, ranks, "", settings)


# If most of the model is frozen, autocast's copies are a fifth of the plan.
@pytest.mark.long(but="bf16-alone")
@pytest.mark.parametrize("ranks, settings", [
    pytest.param(1, {"mixed_precision": "bf16", "distributed_type": "NO"}, id="bf16-alone"),
    pytest.param(2, {"mixed_precision": "fp16", "distributed_type": "MULTI_CPU", **SHORT}, id="fp16-data-parallel-2"),
])
def test_copies_of_frozen_parameters_are_in_the_plan(accel_path, tmp_path, models, ranks, settings):
    compare(accel_path, tmp_path, models, ranks, "-frozen", settings)
