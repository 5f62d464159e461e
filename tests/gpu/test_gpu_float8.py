"""Float8 on one GPU, which has kernels for its casts, beside a CPU."""

import subprocess

import pytest

import train_runs
from gpu_runs import CPU, launch, worst

NARROW = 3e-2  # As in test_gpu_ranks.py.


def test_casts_equal_those_of_a_cpu(accel_path, accelerator):
    """Bit for bit."""
    done = subprocess.run([accel_path.parent.parent / "train/float8_casts"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ("kernels, " if accelerator == "cuda" else "") + "72 matrices\n"
    assert "slow way" not in done.stderr


@pytest.mark.parametrize("gathers", ["true", "false"])
def test_a_training_is_near_that_of_a_cpu(accel, tmp_path, gathers):
    """Weights that are gathered in float8 have their scales and their bytes before a product needs them."""
    train_runs.export(tmp_path / "gpt.pt")
    flags = ("--mixed-precision", "fp8", "--set", f"fp8_config.enable_fsdp_float8_all_gather={gathers}")
    cpu, _ = launch(accel, tmp_path, *flags, where=CPU)
    gpu, said = launch(accel, tmp_path, *flags, env={"ACCEL_POISON": "1"})
    assert worst(gpu, cpu) < NARROW
    assert "slow way" not in said
