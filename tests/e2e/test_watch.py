"""accel watch follows a run until it has ended, whatever its end."""

import json
import os
import pty
import signal
import subprocess

import pytest

import train_runs


@pytest.fixture
def run(accel_path, tmp_path):
    """run(**training) starts a training in tmp_path and returns its process when it has logged a step."""
    started = []

    def start(**training):
        train_runs.export(tmp_path / "gpt.pt")
        options = {"max_steps": 100_000, "checkpoint": {"every": 100_000, "resume": "auto"}, **training}
        started.append(train_runs.start(accel_path, train_runs.config(tmp_path, 2, **options), tmp_path))
        train_runs.wait_for_step(tmp_path, started[-1])
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def watch(accel_path, directory, *flags, **options):
    return subprocess.Popen([accel_path, "watch", directory, *flags], text=True, stdin=subprocess.DEVNULL,
                            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


def losses(directory):
    return [record for record in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines()) if "loss" in record]


def test_it_ends_with_the_run(accel_path, run, tmp_path):
    training = run()
    watching = watch(accel_path, tmp_path / "out")
    first = watching.stdout.readline()
    assert first.startswith("step ") and " of 100000  " in first and " loss " in first
    training.send_signal(signal.SIGUSR1)
    out, err = watching.communicate(timeout=120)
    assert watching.returncode == 0 and err == ""
    training.communicate(timeout=60)
    last = losses(tmp_path / "out")[-1]
    shown = out.splitlines()[-1]
    assert shown.startswith(f"step {last['step']} of 100000  ") and f"  loss {last['loss']:.4f}  lr {last['lr']:.2e}  " in shown
    assert shown.endswith(f"checkpoint of step {last['step']}  stopped") and " left" not in shown


def test_it_ends_when_the_launcher_is_killed(accel_path, run, tmp_path):
    """The lock of a launcher that was killed stays as a file."""
    training = run()
    watching = watch(accel_path, tmp_path / "out")
    watching.stdout.readline()
    training.kill()
    out = watching.communicate(timeout=30)[0]
    assert out.splitlines()[-1].endswith("  killed")
    assert watching.returncode == 0 and (tmp_path / "out/.lock").exists()


def test_a_terminal_is_drawn_over(accel_path, run, tmp_path):
    training = run()
    reader, writer = pty.openpty()
    watching = watch(accel_path, tmp_path / "out", stderr=writer, env={**os.environ, "TERM": "xterm", "CI": ""})
    os.close(writer)
    drawn = ""
    while drawn.count("\x1b[3F\x1b[J") < 2:  # Twice over three lines: bar, numbers and curve.
        drawn += os.read(reader, 4096).decode(errors="ignore")
    assert "[" in drawn and "step " in drawn and "\r\nloss " in drawn and "▁" in drawn
    training.send_signal(signal.SIGUSR1)
    out = watching.communicate(timeout=120)[0]
    os.close(reader)
    assert watching.returncode == 0
    [line] = out.splitlines()
    assert line.startswith(f"step {losses(tmp_path / 'out')[-1]['step']} of 100000")


def test_a_signal_ends_it_and_not_the_run(accel_path, run, tmp_path):
    training = run()
    watching = watch(accel_path, tmp_path / "out")
    watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=30)
    assert watching.returncode == 130 and training.poll() is None


def test_once_and_runs_that_have_ended(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, 2, max_steps=4))
    last = losses(tmp_path / "out")[-1]
    for flags in ((), ("--once",)):
        [line] = accel("watch", *flags, "out").stdout.splitlines()
        assert line.startswith(f"step 4 of 4  100%  loss {last['loss']:.4f}  ") and "  32 samples  " in line
    document = json.loads(accel("watch", "--json", "out").stdout)
    assert {key: document[key] for key in ("step", "loss", "grad_norm", "attempts", "samples")} == {
        "step": 4, "samples": 32, "loss": last["loss"], "grad_norm": last["grad_norm"], "attempts": 1}


def test_once_does_not_wait_for_a_live_run(accel, run, tmp_path):
    training = run()
    [line] = accel("watch", "--once", "out", timeout=60).stdout.splitlines()
    assert line.startswith("step ") and training.poll() is None


def test_folders_that_are_not_runs(accel, tmp_path):
    assert "it has no metrics.jsonl" in accel("watch", ".", code=2).stderr
    assert "there is no such directory" in accel("watch", "nothing", code=2).stderr
