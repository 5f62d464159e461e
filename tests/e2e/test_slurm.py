"""Under a real Slurm: the signal before the end of a job's time leads to a checkpoint, and the next job goes on from it."""

import json
import pathlib
import subprocess
import tempfile

import pytest
import slurm
import train_runs

JOB = """#!/bin/sh
#SBATCH --time=1 --signal=USR1@50 --output={directory}/job.out
srun {accel} launch {config}
"""


@pytest.fixture(scope="module")
def slurm_environment():
    # The path of munged's socket must be short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory, slurm.cluster(pathlib.Path(directory)) as environment:
        yield environment


def test_slurms_signal_leads_to_a_checkpoint(accel, accel_path, slurm_environment, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    run = {"max_steps": 1_000_000, "log_every": 50, "lr_scheduler": {"type": "constant"},
           "checkpoint": {"every": 1_000_000, "resume": "auto"}}
    config = train_runs.config(tmp_path, **run)
    (tmp_path / "job.sh").write_text(JOB.format(directory=tmp_path, accel=accel_path, config=config))
    job = subprocess.run(["sbatch", "--wait", tmp_path / "job.sh"], env=slurm_environment, cwd=tmp_path, timeout=200)
    said = (tmp_path / "job.out").read_text()
    assert job.returncode == 7, said
    assert "accel: SIGUSR1: passed on to the workers" in said
    assert "stopped for preemption, after saving" in said
    [checkpoint] = (tmp_path / "out/checkpoints").iterdir()
    accel("verify", checkpoint)
    step = json.loads((checkpoint / "trainer_state.json").read_text())["step"]
    assert f"stopped after step {step} of" in said
    resumed = accel("launch", train_runs.config(tmp_path, **{**run, "max_steps": step + 2})).stderr
    assert f"resuming from '{checkpoint}', step {step} of {step + 2}" in resumed
    assert (tmp_path / f"out/checkpoints/checkpoint_{step + 2}").is_dir()
