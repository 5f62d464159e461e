"""Inherited signal dispositions, signal masks and closed descriptors do not change what the launcher does."""

import itertools
import os
import signal
import subprocess
import time

import pytest

import train_runs
from launching import wait_for

IGNORE = ("env", "--ignore-signal=CHLD")
BLOCK = ("env", "--block-signal=TERM,CHLD,INT")
INHERITED = {"ignored SIGCHLD": IGNORE, "blocked signals": BLOCK}


def launch_as(prefix, accel_path, *args, cwd, **options):
    return subprocess.run([*prefix, accel_path, "launch", *map(str, args)], cwd=cwd, capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"}, **options)


@pytest.mark.parametrize("prefix", INHERITED.values(), ids=INHERITED.keys())
@pytest.mark.parametrize("script, said", [("exit 9", "rank 0 of 2 failed: exit code 9"),
                                          ("kill -SEGV $$", "rank 0 of 2 failed: killed by SIGSEGV")])
def test_a_failure_is_a_failure(accel_path, tmp_path, prefix, script, said):
    script = f"[ $RANK = 0 ] && {{ {script}; }}; exec sleep 60"
    result = launch_as(prefix, accel_path, "--cpu", "--num_processes", 2, "--main_process_port", 0, "--",
                       "bash", "-c", script, cwd=tmp_path)
    assert result.returncode == 6, result.stderr
    assert said in result.stderr


@pytest.mark.parametrize("prefix", INHERITED.values(), ids=INHERITED.keys())
def test_a_training_without_a_number_for_its_loss_fails(accel_path, tmp_path, prefix):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=50, optimizer={"type": "adamw", "lr": 1e30})
    result = launch_as(prefix, accel_path, config, cwd=tmp_path)
    assert result.returncode == 6, result.stderr
    assert "the loss is nan" in result.stderr or "the gradient norm" in result.stderr, result.stderr


@pytest.mark.parametrize("prefix", INHERITED.values(), ids=INHERITED.keys())
def test_a_killed_rank_of_a_training_ends_the_others(accel_path, tmp_path, prefix):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=100_000)
    process = subprocess.Popen([*prefix, accel_path, "launch", config], cwd=tmp_path, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    try:
        train_runs.wait_for_step(tmp_path, process)
        os.kill(train_runs.worker_of(1, process.pid), signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 6, output
    assert "rank 1 of 2 failed: killed by SIGKILL" in output


def test_workers_get_default_dispositions_and_no_mask(accel_path, tmp_path):
    """The launcher's inherited mask and dispositions do not reach the workers, except the SIGHUP that nohup ignores."""
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    for prefix, ignored in ((("env", "--ignore-signal=CHLD,PIPE,TERM,USR1,XFSZ", "--block-signal=TERM,CHLD,WINCH"), ""),
                            (("nohup",), "HUP")):
        result = launch_as(prefix, accel_path, "--cpu", "--main_process_port", 0, "--", "bash", "-c", script, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        fields = dict(line.split(":\t") for line in result.stdout.split("\n") if line)
        assert int(fields["SigBlk"], 16) == 0
        expected = 1 << (signal.SIGHUP - 1) if ignored else 0
        assert int(fields["SigIgn"], 16) == expected, fields


def test_nohup_is_obeyed(accel_path, tmp_path):
    """An ignored SIGHUP does not end the run; SIGTERM does."""
    command = ["nohup", accel_path, "launch", "--cpu", "--main_process_port", "0", "--", "bash", "-c",
               "touch started; exec sleep 60"]
    run = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for((tmp_path / "started").exists)
    run.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert run.poll() is None
    run.terminate()
    run.communicate(timeout=30)
    assert run.returncode == 143


CLOSED = [closed for n in range(4) for closed in itertools.combinations((0, 1, 2), n)]


def run_closed(closed, command, cwd, timeout=30):
    """Runs the command with these descriptors closed; the others are /dev/null and pipes."""
    redirections = " ".join(f"{fd}<&-" if fd == 0 else f"{fd}>&-" for fd in closed)
    return subprocess.run(["bash", "-c", f'exec "$@" {redirections}', "bash", *map(str, command)], cwd=cwd,
                          capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env={**os.environ, "NO_COLOR": "1"})


@pytest.mark.parametrize("closed", CLOSED, ids=lambda closed: "".join(map(str, closed)) or "none")
@pytest.mark.parametrize("script, code", [("echo out; echo err >&2", 0), ("echo out; [ $RANK = 1 ] || exit 3", 6)])
def test_closed_descriptors_of_a_program(accel_path, tmp_path, closed, script, code):
    command = [accel_path, "launch", "--cpu", "--num_processes", 2, "--main_process_port", 0, "--log_dir", "logs", "--",
               "bash", "-c", script]
    result = run_closed(closed, command, tmp_path)
    assert result.returncode == code, result.stderr
    assert result.stdout == ("" if 1 in closed else "out\n")
    assert ("rank" in result.stderr) == (2 not in closed)
    assert (tmp_path / "logs/attempt_0/rank_0/stdout.log").read_text() == "out\n"


@pytest.mark.long(but="none")
@pytest.mark.parametrize("closed", CLOSED, ids=lambda closed: "".join(map(str, closed)) or "none")
def test_closed_descriptors_of_a_training(accel_path, tmp_path, closed):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=2)
    result = run_closed(closed, [accel_path, "launch", config], tmp_path, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(train_runs.metrics(tmp_path)) == 2
    assert ("step 2/2" in result.stderr) == (2 not in closed)


@pytest.mark.parametrize("closed", CLOSED, ids=lambda closed: "".join(map(str, closed)) or "none")
def test_closed_descriptors_of_other_commands(accel_path, fault_template, tmp_path, closed):
    """A command that cannot write its result fails with an error. It writes into no file that reuses the descriptor."""
    (tmp_path / "src").symlink_to(fault_template / "src")
    result = run_closed(closed, [accel_path, "inspect", "src"], tmp_path)
    assert result.returncode == (1 if 1 in closed else 0), result.stderr
    if 1 in closed and 2 not in closed:
        assert "error: cannot write to stdout" in result.stderr
    result = run_closed(closed, [accel_path, "merge-weights", "src", "out"], tmp_path)
    assert result.returncode in ((0, 1) if 1 in closed else (0,)), result.stderr
    subprocess.run([accel_path, "verify", "out"], cwd=tmp_path, check=True, capture_output=True)
