"""Under a real Slurm: the signal before the end of a job's time leads to a checkpoint, and the next job goes on from it."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import machines
import pytest
import slurm
import train_runs

# Slurm counts minutes. The trainings until then leave the processors to other tests.
JOB = """#!/bin/sh
#SBATCH --time=1 --signal=USR1@50 --output={directory}/job.out
srun nice -n 10 {accel} launch {config}
"""


@pytest.fixture(scope="module")
def slurm_environment():
    # The path of munged's socket must be short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory, slurm.cluster(pathlib.Path(directory)) as environment:
        yield environment


@pytest.mark.long
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
    assert "goes on from it" in said
    [checkpoint] = (tmp_path / "out/checkpoints").iterdir()
    accel("verify", checkpoint)
    step = json.loads((checkpoint / "trainer_state.json").read_text())["step"]
    assert f"stopped after step {step} of" in said
    resumed = accel("launch", train_runs.config(tmp_path, **{**run, "max_steps": step + 2})).stderr
    assert f"resuming from '{checkpoint}', step {step} of {step + 2}" in resumed
    assert (tmp_path / f"out/checkpoints/checkpoint_{step + 2}").is_dir()


@pytest.fixture(scope="module")
def two_nodes():
    machines.need_namespaces()
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory, contextlib.ExitStack() as stack:
        nodes = machines.network_of(stack, 2)
        environment = stack.enter_context(slurm.cluster(pathlib.Path(directory), nodes))

        def run(*command, check=True):
            return subprocess.run(slurm.on(nodes[0], *map(str, command)), env=environment, check=check, capture_output=True, text=True, timeout=200)

        yield run


def test_srun_needs_nothing_else(two_nodes, accel_path):
    shown = two_nodes("srun", "--nodes=2", "--ntasks-per-node=1", accel_path, "launch", "--cpu", "--num-processes", 4, "--", "sh", "-c",
                      "echo $RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR >&2")
    assert sorted(re.findall(r"^(?:\[rank\d\] )?(\d 4 \d m0)$", shown.stderr, re.M)) == [
        "0 4 0 m0", "1 4 0 m0", "2 4 1 m0", "3 4 1 m0"]
    several = two_nodes("srun", "--nodes=2", "--ntasks-per-node=2", accel_path, "launch", "--cpu", "--", "true", check=False)
    assert several.returncode == 2 and "srun starts 4 tasks on 2 nodes" in several.stderr
    on_one = ["srun", "--nodes=1", "--ntasks=2", accel_path, "launch", "--cpu"]
    several = two_nodes(*on_one, "--", "echo", "started", check=False)
    assert several.returncode == 2 and "srun starts 2 tasks on 1 node " in several.stderr
    assert "--ntasks-per-node=1" in several.stderr and "started" not in several.stdout
    each = two_nodes(*on_one, "--num-machines", "1", "--", "sh", "-c", "echo started >&2")
    assert each.stderr.count("started") == 2


SBATCH = pathlib.Path(__file__).parents[2] / "configs/slurm/train.sbatch"
# In place of accel: the first run goes on until the signal comes, and the next one ends three steps later.
ACCEL = """#!/bin/sh
export OMP_NUM_THREADS=1
checkpoint=$(ls -d {directory}/out/checkpoints/checkpoint_* 2>/dev/null | head -n 1)
steps=$((${{checkpoint##*_}} + 3))
exec nice -n 10 {accel} "$@" --set training.max_steps=$([ "$checkpoint" ] && echo $steps || echo 1000000)
"""


@pytest.mark.long
def test_a_job_that_is_requeued_ends_with_the_weights_of_an_undisturbed_run(accel, accel_path, two_nodes, tmp_path, monkeypatch):
    train_runs.export(tmp_path / "gpt.pt")
    run = {"log_every": 50, "lr_scheduler": {"type": "constant"}, "checkpoint": {"every": 1_000_000, "resume": "auto"}}
    config = train_runs.config(tmp_path, **run, main_process_port=None)  # Slurm says it.
    (tmp_path / "accel").write_text(ACCEL.format(directory=tmp_path, accel=accel_path))
    (tmp_path / "accel").chmod(0o755)
    job = two_nodes("env", f"PATH={tmp_path}:{os.environ['PATH']}", "sbatch", "--parsable", "--time=1", "--signal=USR1@50",
                    f"--output={tmp_path}/job.out", SBATCH, config).stdout.strip()
    deadline = time.monotonic() + 180
    ended = ("COMPLETED", "FAILED", "TIMEOUT")
    while not any(word in (state := two_nodes("scontrol", "show", "job", job).stdout) for word in ended) and time.monotonic() < deadline:
        time.sleep(1)
    said = (tmp_path / "job.out").read_text()
    assert "JobState=COMPLETED" in state and "Restarts=1" in state, state + said
    steps = max(int(path.name.split("_")[1]) for path in (tmp_path / "out/checkpoints").iterdir())
    assert f"resuming from '{tmp_path}/out/checkpoints/checkpoint_{steps - 3}', step {steps - 3} of {steps}" in said, said
    interrupted = tmp_path / f"out/checkpoints/checkpoint_{steps}"
    shutil.move(interrupted, tmp_path / "interrupted")
    shutil.rmtree(tmp_path / "out")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # With more threads, sums are taken in another order.
    accel("launch", train_runs.config(tmp_path, **{**run, "launch.backend": "gloo", "checkpoint": {"every": steps}}, max_steps=steps))
    accel("diff", tmp_path / "interrupted/pytorch_model_fsdp_0", interrupted / "pytorch_model_fsdp_0")
