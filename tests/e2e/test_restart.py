"""A failed run begins again from its newest checkpoint, on one machine or several, unless that is of no use."""

import os
import pathlib
import re
import signal
import sys
import time

import pytest
import train_runs
from launching import Run, wait_for
from machines import machines  # noqa: F401


def workers(run, program=b"accel-worker"):
    """Returns the processes of the ranks of a run that have become `program`, in order of ranks."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            if run.mark.encode() in environment and program in (entry / "cmdline").read_bytes():
                [rank] = [int(variable[5:]) for variable in environment if variable.startswith(b"RANK=")]
                found.append((rank, int(entry.name)))
        except (OSError, ValueError):
            continue
    return [pid for _, pid in sorted(found)]


def training(directory, **more):
    return train_runs.config(directory, 2, **{"max_steps": 300, "checkpoint": {"every": 25}, "lr_scheduler": {"type": "constant"},
                                              "log_every": 1, "launch.max_restarts": 3, **more})


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """With more threads, which a rank that is alone on its machine has, sums are taken in another order."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def undisturbed(accel, directory):
    """Returns the losses of the run without a failure."""
    accel("launch", training(directory))
    losses = train_runs.metrics(directory)
    (directory / "out").rename(directory / "undisturbed")
    return losses


@pytest.mark.long
@pytest.mark.parametrize("resume", ["auto", "none"])
def test_a_killed_rank_is_mended_by_a_restart(accel, accel_path, tmp_path, resume):
    train_runs.export(tmp_path / "gpt.pt")
    expected = undisturbed(accel, tmp_path)
    run = Run(accel_path, tmp_path, training(tmp_path, **{"checkpoint.resume": resume}), "--quiet")
    for number, step in ((signal.SIGKILL, 50), (signal.SIGSEGV, 150)):
        wait_for(lambda: (tmp_path / f"out/checkpoints/checkpoint_{step}").exists(), 60)
        os.kill(workers(run)[1], number)
    code, _, said = run.finish(120)
    assert code == 0, said
    assert train_runs.metrics(tmp_path) == expected
    accel("diff", tmp_path / "undisturbed/checkpoints/checkpoint_300/pytorch_model_fsdp_0",
          tmp_path / "out/checkpoints/checkpoint_300/pytorch_model_fsdp_0")
    assert "rank 1 of 2 failed: killed by SIGKILL" in said and "rank 1 of 2 failed: killed by SIGSEGV" in said
    assert "restart 1 of 3" in said and "restart 2 of 3" in said
    assert {path.name for path in (tmp_path / "out/logs").iterdir()} == {"attempt_0", "attempt_1", "attempt_2"}
    run.assert_nobody_is_left()


def test_what_comes_again_is_not_tried_again(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = training(tmp_path, **{"optimizer.lr": 1e30})
    said = accel("launch", config, code=6).stderr
    assert "the loss is" in said and "not restarted: a restart would fail in the same way" in said
    assert not (tmp_path / "out/logs/attempt_1").exists()


def test_restarts_without_progress_end(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    run = Run(accel_path, tmp_path, training(tmp_path, max_steps=1_000_000, checkpoint={"every": 1_000_000}, **{"launch.max_restarts": 50}))
    for attempt in range(3):
        wait_for(lambda: (tmp_path / f"out/logs/attempt_{attempt}").exists() and len(workers(run)) == 2, 60)
        os.kill(workers(run)[0], signal.SIGKILL)
        wait_for(lambda: (tmp_path / f"out/logs/attempt_{attempt + 1}").exists() or run.process.poll() is not None, 60)
    code, _, said = run.finish()
    assert code == 6 and "is not restarted: 2 restarts in a row without progress" in said


def test_a_program_gets_torchruns_numbers(accel, tmp_path):
    (tmp_path / "fails.py").write_text("""
import os, sys
print(os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"], file=sys.stderr)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "1" and os.environ["RANK"] == "1")
""")
    said = accel("launch", "--cpu", "--num-processes", 2, "--max-restarts", 2, "--log-dir", tmp_path / "logs", "--", sys.executable,
                 tmp_path / "fails.py").stderr
    assert "1 0 2" in said and "1 1 2" in said
    assert (tmp_path / "logs/attempt_1/rank_1/stderr.log").read_text() == "1 1 2\n"


def test_a_signal_is_not_a_failure_to_restart(accel_path, tmp_path):
    run = Run(accel_path, tmp_path, "--cpu", "--num-processes", 2, "--max-restarts", 5, "--", "sleep", 100)
    wait_for(lambda: sum("sleep 100" in line and "launch" not in line for line in run.survivors()) == 2, 20)
    os.kill(run.pid, signal.SIGTERM)
    code, _, said = run.finish()
    assert code == 143 and "restart" not in said


@pytest.mark.long
def test_all_machines_begin_again_when_a_rank_of_one_is_killed(machines, accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    expected = undisturbed(accel, tmp_path)
    runs = machines.launch(machines(2), training(tmp_path))
    wait_for(lambda: (tmp_path / "out/checkpoints/checkpoint_50").exists(), 60)
    os.kill(workers(runs[1])[0], signal.SIGKILL)
    ended = [run.finish(120) for run in runs]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert train_runs.metrics(tmp_path) == expected
    # Rank 0 may fail for want of rank 1 before the other launcher has seen that rank 1 has ended.
    assert all("restart 1 of 3" in said and " of 2 failed: " in said for _, _, said in ended)


@pytest.mark.long
def test_a_lost_machine_may_come_back(machines, accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    expected = undisturbed(accel, tmp_path)
    hosts = machines(2)
    config = training(tmp_path, **{"launch.heartbeat_timeout": 4})
    runs = machines.launch(hosts, config)
    wait_for(lambda: (tmp_path / "out/checkpoints/checkpoint_50").exists(), 60)
    os.kill(runs[1].pid, signal.SIGKILL)
    time.sleep(6)  # Longer than a silence that counts as a loss.
    again = machines.begin(hosts[1], tmp_path, "--num-machines", 2, "--machine-rank", 1, "--main-process-ip", hosts[0].address,
                           "--main-process-port", 29500, config)
    ended = [run.finish(120) for run in (runs[0], again)]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert train_runs.metrics(tmp_path) == expected
    assert "machine 1 (" in ended[0][2] and "is lost: its launcher has ended" in ended[0][2] and "restart 1 of 3" in ended[0][2]
    runs[1].assert_nobody_is_left()


@pytest.mark.long
def test_a_machine_that_does_not_come_back_ends_the_run(machines, tmp_path):
    hosts = machines(3)
    runs = machines.launch(hosts, "--num-processes", 3, "--cpu", "--max-restarts", 2, "--set", "launch.rendezvous_timeout=5", "--",
                           "sleep", "300")
    for run in runs:
        wait_for(lambda: any("sleep 300" in line and "launch" not in line for line in run.survivors()), 20)
    os.kill(runs[2].pid, signal.SIGKILL)
    ended = [run.finish(60) for run in runs[:2]]
    assert [code for code, _, _ in ended] == [1, 1], ended
    assert all("1 of 3 machines have not arrived within 5 s" in said for _, _, said in ended)
    for run in runs:
        run.assert_nobody_is_left()


ELASTIC = {"launch.min_machines": 2, "launch.last_call_timeout": 4, "launch.grace_period": 2}


@pytest.mark.long
def test_a_run_goes_on_without_a_lost_machine(machines, accel, tmp_path):
    """As if it had been begun again by hand with fewer ranks. The ranks behind the lost machine get other numbers."""
    train_runs.export(tmp_path / "gpt.pt")
    runs = machines.launch(machines(3), train_runs.config(tmp_path, 3, **{
        "max_steps": 200, "checkpoint": {"every": 25}, "lr_scheduler": {"type": "constant"}, "log_every": 1, "launch.max_restarts": 1, **ELASTIC}))
    wait_for(lambda: (tmp_path / "out/checkpoints/checkpoint_50").exists(), 60)
    (tmp_path / "config.yaml").write_text("the next run")  # The file is read once.
    os.kill(runs[1].pid, signal.SIGKILL)
    ended = [run.finish(120) for run in (runs[0], runs[2])]
    assert [code for code, _, _ in ended] == [0, 0], ended
    for _, _, said in ended:
        assert "going on with 2 of 3 machines, of which 2 are enough (launch.min_machines): 2 ranks, not 3; a step takes 8 samples, not 12" in said
    assert "machine 1 of 2: ranks 1 to 1 of 2" in ended[1][2]
    [step] = [int(number) for number in re.findall(r"resuming from '.*', step (\d+) of 200", ended[0][2])]
    losses = train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "elastic")
    options = {"checkpoint": {"every": 25}, "lr_scheduler": {"type": "constant"}, "log_every": 1}
    accel("launch", train_runs.config(tmp_path, 3, max_steps=step, **options))
    accel("launch", train_runs.config(tmp_path, 2, max_steps=200, **options))
    assert losses == pytest.approx(train_runs.metrics(tmp_path), abs=1e-5)
    for run in runs:
        run.assert_nobody_is_left()


def test_a_machine_that_was_done_without_comes_back_at_the_next_restart(machines):
    hosts = machines(3)
    settings = [word for key, value in ELASTIC.items() for word in ("--set", f"{key}={value}")]
    arguments = ["--num-processes", 6, "--cpu", "--max-restarts", 2, *settings, "--", "sh", "-c", "echo size $WORLD_SIZE; exec sleep 300"]
    runs = machines.launch(hosts, *arguments)

    def sleepers(run):
        return workers(run, b"sleep\0")

    wait_for(lambda: all(sleepers(run) for run in runs), 20)
    os.kill(runs[2].pid, signal.SIGKILL)
    wait_for(lambda: not sleepers(runs[0]) and not sleepers(runs[1]), 20)
    wait_for(lambda: all(sleepers(run) for run in runs[:2]), 20)
    def begin_again(*more):
        return machines.begin(hosts[2], "/tmp", "--num-machines", 3, "--machine-rank", 2, "--main-process-ip", hosts[0].address,
                              "--main-process-port", 29500, *more, *arguments)

    larger = begin_again("--set", "launch.local_processes=3")
    time.sleep(1)
    assert not sleepers(larger)
    os.kill(sleepers(runs[1])[0], signal.SIGKILL)
    code, _, said = larger.finish(20)
    assert code == 2 and "comes back with 3 ranks, and had 2" in said, said
    back = begin_again()
    wait_for(lambda: sleepers(back) and all(sleepers(run) for run in runs[:2]), 20)
    os.kill(runs[0].pid, signal.SIGTERM)
    ended = [run.finish(20) for run in (*runs[:2], back)]
    assert [code for code, _, _ in ended] == [143, 143, 143], ended
    assert re.findall(r"size (\d)", ended[0][1]) == ["6", "4", "6"]
    assert "going on with 3 of 3 machines" in ended[0][2] and "6 ranks, not 4" in ended[0][2]


@pytest.mark.long
def test_a_layout_that_needs_all_machines_is_said(machines, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    runs = machines.launch(machines(3), train_runs.config(tmp_path, 3, **{
        "max_steps": 100000, "launch.max_restarts": 1, "parallelism_config.dp_replicate_size": 3, **ELASTIC}))
    wait_for(lambda: (tmp_path / "out/metrics.jsonl").exists(), 60)
    os.kill(runs[2].pid, signal.SIGKILL)
    ended = [run.finish(60) for run in runs[:2]]
    assert [code for code, _, _ in ended] == [6, 6], ended
    assert all("is not restarted: 2 of 3 machines cannot go on without the others: " in said for _, _, said in ended)
    assert all("dp_replicate_size" in said for _, _, said in ended)


@pytest.mark.long(but="0")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_while_a_lost_machine_is_awaited_ends_the_run(machines, victim):
    hosts = machines(3)
    runs = machines.launch(hosts, "--num-processes", 3, "--cpu", "--max-restarts", 2, "--", "sleep", "300")
    for run in runs:
        wait_for(lambda: any("sleep 300" in line and "launch" not in line for line in run.survivors()), 20)
    os.kill(runs[2].pid, signal.SIGKILL)
    wait_for(lambda: not any("sleep 300" in line and "launch" not in line for run in runs[:2] for line in run.survivors()), 20)
    time.sleep(1)
    os.kill(runs[victim].pid, signal.SIGTERM)
    ended = [run.finish(20) for run in runs[:2]]
    assert ended[victim][0] == 143, ended
    assert ended[1 - victim][0] == (1 if victim == 0 else 143), ended


def test_a_stranger_does_not_end_a_run_that_begins_again(machines):
    hosts = machines(3)
    limits = ["--num-processes", 3, "--cpu", "--max-restarts", 2, "--set", "launch.rendezvous_timeout=15", "--", "sleep", "300"]
    runs = machines.launch(hosts, *limits)
    for run in runs:
        wait_for(lambda: any("sleep 300" in line and "launch" not in line for line in run.survivors()), 20)
    os.kill(runs[2].pid, signal.SIGKILL)
    wait_for(lambda: not any("sleep 300" in line and "launch" not in line for run in runs[:2] for line in run.survivors()), 20)
    other = machines.begin(hosts[2], "/tmp", "--num-machines", 3, "--machine-rank", 2, "--main-process-ip", hosts[0].address,
                           "--num-processes", 3, "--cpu", "--", "sleep", "1")
    assert other.finish(20)[0] == 2
    back = machines.begin(hosts[2], "/tmp", "--num-machines", 3, "--machine-rank", 2, "--main-process-ip", hosts[0].address,
                          "--main-process-port", 29500, *limits)
    wait_for(lambda: all(any("sleep 300" in line and "launch" not in line for line in run.survivors()) for run in (*runs[:2], back)), 20)
    os.kill(runs[0].pid, signal.SIGTERM)
    assert [run.finish(20)[0] for run in (*runs[:2], back)] == [143, 143, 143]


def test_a_signal_that_a_scheduler_sends_to_all_is_not_followed_by_a_restart(accel_path, tmp_path):
    """The worker dies of its own SIGTERM before the launcher has read its."""
    run = Run(accel_path, tmp_path, "--cpu", "--num-processes", 2, "--max-restarts", 5, "--", "sleep", 100)
    wait_for(lambda: sum("sleep 100" in line and "launch" not in line for line in run.survivors()) == 2, 20)
    children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    sleepers = [int(pid) for pid in children if b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(run.pid, signal.SIGSTOP)  # On a busy machine it might begin the restart between two of these signals.
    for pid in (*sleepers, run.pid):
        os.kill(pid, signal.SIGTERM)
    os.kill(run.pid, signal.SIGCONT)
    code, _, said = run.finish(20)
    # The signal may also reach the launcher when its run is over and signals have their usual effect again.
    assert code in (6, 143, -signal.SIGTERM) and "restart" not in said, said
    run.assert_nobody_is_left()
