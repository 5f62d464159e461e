"""Runs on two hosts that use the same output_dir."""

import errno
import json
import os
import pathlib
import re
import signal
import time

import ports
import pytest
import torch
import train_runs
from hosts import named, signal_all
from launching import Run, wait_for
from machines import machines  # noqa: F401
from two_hosts import two_hosts  # noqa: F401

LOCK_TIMEOUT = 6


def config(directory, output):
    """A training that does not end by itself."""
    directory.mkdir()
    return train_runs.config(directory, 2, max_steps=100_000, checkpoint={"every": 20, "resume": "auto"},
                             output_dir=str(output), **{"model.path": str(directory.parent / "gpt.pt"), "launch.lock_timeout": LOCK_TIMEOUT,
                                                        "fsdp_config.fsdp_state_dict_type": "FULL_STATE_DICT"})


def checkpoint(out, step):
    return out / f"checkpoints/checkpoint_{step}"


def newest(out):
    return max(int(path.name.removeprefix("checkpoint_")) for path in (out / "checkpoints").glob("checkpoint_*[0-9]"))


def owner(out):
    """The host in the lock; None while the lock is being written or replaced."""
    try:
        return json.loads((out / ".lock").read_text())["host"]
    except (FileNotFoundError, ValueError):
        return None


def end(run):
    run.process.send_signal(signal.SIGTERM)
    code, _, said = run.finish(60)
    assert code == 7, said
    return said


@pytest.mark.long
@pytest.mark.parametrize(("locks", "kernel"), [([], None), (["local_locks"], None), (["local_locks"], "one")],
                         ids=["shared", "local", "containers"])
def test_one_of_two_runs_that_begin_together_is_refused(accel_path, two_hosts, tmp_path, locks, kernel):
    hosts = named(two_hosts, tmp_path, *locks, kernel=kernel)
    logs = tmp_path / "seen/logs"
    runs = [host.launch(accel_path, "--cpu", "--num-processes", 1, "--log-dir", logs, "--set", f"launch.lock_timeout={LOCK_TIMEOUT}",
                        "--", "sleep", 10) for host in hosts]
    ends = sorted((run.finish() for run in runs), key=lambda end: end[0])
    assert [code for code, _, _ in ends] == [0, 2], ends
    assert re.search(rf"another run is writing into '{logs}': its lock is held by node0[78], pid \d+, since 20", ends[1][2])
    assert "is on fuse.folder, whose locks may not reach other hosts" in ends[1][2]
    assert not (tmp_path / "shared/logs/.lock").exists()


@pytest.mark.long
@pytest.mark.parametrize("locks", [[], ["local_locks"]], ids=["shared", "local"])
def test_a_run_is_taken_over_from_a_host_that_is_gone_and_ended_when_it_comes_back(accel_path, two_hosts, tmp_path, locks):
    hosts = named(two_hosts, tmp_path, *locks)
    train_runs.export(tmp_path / "gpt.pt")
    file = config(tmp_path / "both", tmp_path / "seen/out")
    out = tmp_path / "shared/out"
    first = hosts[0].launch(accel_path, file)
    try:
        wait_for(lambda: checkpoint(out, 20).is_dir(), 60)
        assert owner(out) == "node07"
        code, _, said = hosts[1].launch(accel_path, file).finish(60)
        assert code == 2 and "its lock is held by node07, pid " in said

        signal_all(first, signal.SIGSTOP)
        second = hosts[1].launch(accel_path, file)
        wait_for(lambda: owner(out) == "node08", 60)
        signal_all(first, signal.SIGCONT)
        code, _, said = first.finish(60)
        assert code == 1, said
        assert "another run has taken" in said and "over: node08, pid " in said
        first.assert_nobody_is_left()

        step = newest(out) + 20
        wait_for(lambda: checkpoint(out, step).is_dir(), 60)
        assert f"which has shown no sign of life for {LOCK_TIMEOUT} s" in end(second)
    finally:
        first.kill_all()
    assert [path.name for path in (out / "checkpoints").iterdir() if not path.name.removeprefix("checkpoint_").isdigit()] == []
    assert not (out / ".lock").exists()

    alone = Run(accel_path, tmp_path, config(tmp_path / "alone", tmp_path / "alone/out"))
    wait_for(lambda: checkpoint(tmp_path / "alone/out", step).is_dir(), 60)
    end(alone)
    name = "pytorch_model_fsdp.bin"
    undisturbed = torch.load(checkpoint(tmp_path / "alone/out", step) / name)
    for key, tensor in torch.load(checkpoint(out, step) / name).items():
        assert torch.equal(tensor, undisturbed[key]), key


def test_a_log_that_cannot_be_written_for_a_while_holds_up_nothing_else(accel_path, two_hosts, tmp_path):
    host = named(two_hosts, tmp_path)[0]
    program = f"trap 'touch {tmp_path}/told; exit 3' TERM; echo hello; touch {tmp_path}/began; while :; do sleep 0.05; done"
    host.host.stall("write", name="stdout.log")
    run = host.launch(accel_path, "--cpu", "--num-processes", 1, "--log-dir", tmp_path / "seen/logs", "--", "sh", "-c", program)
    host.host.wait_until_stalled("stdout.log")
    wait_for(lambda: (tmp_path / "began").exists())
    os.kill(run.pid, signal.SIGTERM)
    wait_for(lambda: (tmp_path / "told").exists())
    assert run.process.poll() is None
    host.host.clear()
    code, out, _ = run.finish()
    assert code == 143 and out == "hello\n"
    assert (tmp_path / "shared/logs/attempt_0/rank_0/stdout.log").read_text() == "hello\n"
    run.assert_nobody_is_left()


def test_output_to_a_file_that_cannot_be_written_for_a_while_holds_up_nothing_else(accel_path, two_hosts, tmp_path):
    host = named(two_hosts, tmp_path)[0]
    program = f"trap 'touch {tmp_path}/told; exit 3' TERM; echo hello; touch {tmp_path}/began; while :; do sleep 0.05; done"
    host.host.stall("write", name="out.txt")
    into_file = ["sh", "-c", 'exec "$0" "$@" > seen/out.txt', accel_path]
    run = Run([*host.prefix, *into_file], tmp_path, "--cpu", "--num-processes", 1, "--", "sh", "-c", program)
    host.host.wait_until_stalled("out.txt")
    wait_for(lambda: (tmp_path / "began").exists())
    os.kill(run.pid, signal.SIGTERM)
    wait_for(lambda: (tmp_path / "told").exists())
    host.host.clear()
    assert run.finish()[0] == 143
    assert (tmp_path / "shared/out.txt").read_text() == "hello\n"
    run.assert_nobody_is_left()


@pytest.mark.long
def test_a_lock_whose_record_cannot_be_read_for_a_while_has_its_owner(accel_path, two_hosts, tmp_path):
    """The locks of the hosts do not reach each other, so that the record alone keeps the second run away."""
    first, second = named(two_hosts, tmp_path, "local_locks")
    begin = ["--cpu", "--num-processes", 1, "--log-dir", tmp_path / "seen/logs", "--set", f"launch.lock_timeout={LOCK_TIMEOUT}", "--", "sleep"]
    owning = first.launch(accel_path, *begin, 60)
    wait_for(lambda: (tmp_path / "shared/logs/attempt_0").exists())
    second.host.fail(errno.EIO, "read", name=".lock")
    late = second.launch(accel_path, *begin, 0)
    time.sleep(2)  # A launch that takes the record for that of nobody has begun by now.
    second.host.clear()
    code, _, said = late.finish()
    assert code == 2 and "its lock is held by node07" in said, said
    os.kill(owning.pid, signal.SIGTERM)
    assert owning.finish()[0] == 143


@pytest.mark.long
def test_a_machine_whose_file_server_stalls_is_not_lost(machines, two_hosts):
    """Its launcher waits for longer than launch.heartbeat_timeout while it makes the directories of its logs."""
    server, _ = two_hosts()
    hosts = machines(2)
    server.stall("mkdir", name="rank_1")
    common = ["--num-machines", 2, "--main-process-ip", hosts[0].address, "--num-processes", 2, "--cpu", "--set", "launch.heartbeat_timeout=4",
              "--machine-rank"]
    runs = [machines.begin(host, "/tmp", *common, number, "--log-dir", folder, "--", "sleep", 1)
            for number, (host, folder) in enumerate(zip(hosts, (two_hosts.folder / "logs0", server.path / "logs1")))]
    server.wait_until_stalled("rank_1")
    time.sleep(8)
    server.clear("rank_1")
    ends = [run.finish() for run in runs]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert all("is lost" not in said for _, _, said in ends)
    assert (two_hosts.folder / "logs1/attempt_0/rank_1/stderr.log").exists()


def is_ending(run):
    """Whether the launcher has left, as far as the kernel lets it: a thread may still wait for the file system."""
    status = pathlib.Path(f"/proc/{run.pid}/status").read_text()
    pending = int(re.search(r"^SigPnd:\t(\w+)", status, re.MULTILINE)[1], 16)
    return "State:\tZ" in status or pending >> (signal.SIGKILL - 1) & 1 == 1


@pytest.mark.long(but="the log")
@pytest.mark.parametrize("also", [[], [".lock"]], ids=["the log", "all"])
def test_a_second_signal_ends_a_launcher_that_waits_for_the_file_system(accel_path, two_hosts, tmp_path, also):
    host = named(two_hosts, tmp_path)[0]
    program = f"trap 'touch {tmp_path}/told; exit 3' TERM; echo hello; touch {tmp_path}/began; while :; do sleep 0.05; done"
    host.host.stall("write", name="stdout.log")
    run = host.launch(accel_path, "--cpu", "--num-processes", 1, "--log-dir", tmp_path / "seen/logs", "--", "sh", "-c", program)
    host.host.wait_until_stalled("stdout.log")
    wait_for(lambda: (tmp_path / "began").exists())
    for name in also:
        host.host.stall("all", name=name)
    os.kill(run.pid, signal.SIGTERM)
    wait_for(lambda: (tmp_path / "told").exists())
    assert not is_ending(run)
    time.sleep(0.2)  # What comes within 0.1 s is the same request.
    os.kill(run.pid, signal.SIGTERM)
    wait_for(lambda: is_ending(run), 60)
    host.host.clear()
    code, out, said = run.finish()
    assert code == 143 and out == "hello\n"
    assert f"'{tmp_path}/seen/logs/attempt_0/rank_0/stdout.log' is incomplete" in said
    run.assert_nobody_is_left()


def test_two_launchers_that_make_the_secret_of_a_run_at_once_have_the_same(accel_path, two_hosts, tmp_path):
    hosts = named(two_hosts, tmp_path)
    train_runs.export(tmp_path / "gpt.pt")
    runs = []

    def begin(host, port):
        directory = tmp_path / host.name
        directory.mkdir()
        file = train_runs.config(directory, 2, output_dir=str(tmp_path / "seen/out"), **{"model.path": str(tmp_path / "gpt.pt")})
        machines = {"num_machines": 2, "machine_rank": 0, "main_process_ip": "127.0.0.1", "main_process_port": port}
        file.write_text(json.dumps(json.loads(file.read_text()) | machines))
        runs.append(host.launch(accel_path, file))

    def found():
        return sorted(path.name for path in (tmp_path / "shared/out").glob("run_secret*"))

    with ports.two_held_ports() as port:
        try:
            hosts[0].host.stall("rename", "link", name="run_secret*")
            begin(hosts[0], port)
            hosts[0].host.wait_until_stalled("run_secret*")
            begin(hosts[1], port + 1)
            secret = tmp_path / "shared/out/run_secret"
            wait_for(secret.exists, 60)
            made = secret.read_text()
            hosts[0].host.clear()
            wait_for(lambda: found() == ["run_secret"], 60, lambda: str(found()))
            assert secret.read_text() == made
        finally:
            hosts[0].host.clear()
            for run in runs:
                run.kill_all()


def test_checkpoints_are_removed_where_the_directory_above_cannot_be_written(accel, two_hosts, tmp_path):
    host = named(two_hosts, tmp_path)[0].host
    for step in (5, 6):
        (tmp_path / f"shared/out/checkpoints/checkpoint_{step}").mkdir(parents=True)
    host.fail(errno.EROFS, "create", name=".lock")
    said = accel("checkpoints", host.path / "out/checkpoints", "--delete", 5).stderr
    assert f"'{host.path}/out' cannot be written, so no run is kept away" in said
    assert os.listdir(tmp_path / "shared/out/checkpoints") == ["checkpoint_6"]
