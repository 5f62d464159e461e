"""Settings of libtorch that only a GPU has: TF32, and the segments of its allocator."""

import os

import pytest

import train_runs
from gpu_runs import launch, worst

# A product of the factors' rounding to 10 bits differs from that of float32 far more than another order of sums does.
SIZES = {"width": 256, "heads": 4}


@pytest.mark.cuda
def test_tf32_rounds_the_factors_of_products(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt", **SIZES)
    keys = {"max_steps": 3}
    default, _ = launch(accel, tmp_path, **keys)
    exact, _ = launch(accel, tmp_path, tf32=False, **keys)
    rounded, _ = launch(accel, tmp_path, tf32=True, **keys)
    assert worst(exact, default) < 1e-5
    assert 1e-5 < abs(rounded["grad_norm"][0] - exact["grad_norm"][0])
    assert worst(rounded, exact) < 3e-2


@pytest.mark.cuda
def test_segments_that_grow_change_no_number(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt", **SIZES)
    plain, _ = launch(accel, tmp_path, max_steps=3)
    grown, _ = launch(accel, tmp_path, max_steps=3, **{"launch.expandable_segments": True})
    assert worst(grown, plain) < 1e-5


@pytest.mark.cuda
def test_the_allocator_reads_the_options_that_the_launcher_has_added_to(accel, tmp_path):
    """libtorch refuses an option that it does not know, which shows that it has read the variable."""
    train_runs.export(tmp_path / "gpt.pt", **SIZES)
    config = train_runs.config(tmp_path, 1, max_steps=1, **{
        "use_cpu": False, "launch.expandable_segments": True})
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "no_such_option:1"}
    assert "no_such_option" in accel("launch", config, env=env, code=None).stderr
