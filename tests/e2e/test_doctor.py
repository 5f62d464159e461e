"""accel doctor looks at what other users have put into a directory, and at their processes."""

import json
import os
import shutil
import signal
import subprocess

import pytest
import train_runs
from launching import Run, wait_for


@pytest.fixture
def run(accel_path, tmp_path):
    """A run of two ranks that sleep, with its logs in logs/."""
    begun = Run(accel_path, tmp_path, "--cpu", "--num-processes", 2, "--log-dir", "logs", "--", "sleep", "300")
    records = [tmp_path / f"logs/attempt_0/rank_{rank}/rank_{rank}.flight" for rank in range(2)]
    wait_for(lambda: all(record.exists() for record in records), 30)
    # The ranks, and the guardian.
    wait_for(lambda: len(open(f"/proc/{begun.process.pid}/task/{begun.process.pid}/children").read().split()) >= 3, 30)
    yield begun
    if begun.process.returncode is None:
        begun.process.send_signal(signal.SIGKILL)
        begun.finish(30)


@pytest.mark.parametrize("name", ["rank_0.flight", "stacks.txt", "stdout.log"])
def test_a_fifo_in_a_run_is_not_waited_for(accel, run, tmp_path, name):
    if name == "stacks.txt":  # It is shown after the end.
        run.process.send_signal(signal.SIGKILL)
        run.finish(30)
        wait_for(lambda: "has ended" in accel("doctor", tmp_path / "logs", "--no-stacks").stdout, 30)
    path = tmp_path / "logs/attempt_0/rank_0" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert "rank 1" in accel("doctor", tmp_path / "logs", "--no-stacks", timeout=20).stdout


def test_ranks_of_another_user_are_alive(accel, accel_path, run, tmp_path):
    """Neither the environment of such a process can be read, nor may a signal be sent to it."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user, with setpriv")
    for folder in [tmp_path, *tmp_path.parents]:
        if folder != folder.parent and folder.stat().st_uid == 0:
            os.chmod(folder, folder.stat().st_mode | 0o055)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", accel_path, "doctor", tmp_path / "logs", "--no-stacks"]
    wait_for(lambda: accel("doctor", tmp_path / "logs", "--no-stacks").stdout.count("sleeping") == 2, 30)  # Both have begun.
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("sleeping") == 2 and "ended" not in result.stdout, result.stdout
    run.process.send_signal(signal.SIGKILL)
    run.finish(30)
    wait_for(lambda: "has ended" in subprocess.run(command, capture_output=True, text=True, timeout=60).stdout, 30)


def test_a_run_that_does_well_is_not_said_to_hang(accel, accel_path, tmp_path):
    """At almost every moment some rank waits for another one."""
    train_runs.export(tmp_path / "gpt.pt")
    training = train_runs.start(accel_path, train_runs.config(tmp_path, 2, max_steps=100_000), tmp_path)
    try:
        train_runs.wait_for_step(tmp_path, training)
        seen = [json.loads(accel("--json", "doctor", tmp_path / "out", "--no-stacks").stdout) for _ in range(30)]
    finally:
        training.kill()
        training.communicate()
    waits = [event for document in seen for rank in document["ranks"] for event in rank["events"]
             if event["waited_ns"] and not event["ended_ns"]]
    assert waits, "no rank waited in any of the looks"
    found = [finding for document in seen for finding in document["findings"]]
    assert not [finding for finding in found if finding.endswith("for 0 s")]
