"""A run does not depend on the launcher's output: the disk may be full, nobody reads, or a file may not grow."""

import contextlib
import os
import pty
import subprocess
import termios

import pytest

import train_runs
from launching import wait_for


def output_of_kind(kind, tmp_path):
    """Returns a descriptor for the output, and others that must stay open."""
    if kind == "full disk":
        return os.open("/dev/full", os.O_WRONLY), []
    if kind == "tty":
        reader, writer = pty.openpty()
        return writer, [reader]
    if kind == "Ctrl-S":
        reader, writer = pty.openpty()
        termios.tcflow(writer, termios.TCOOFF)
        return writer, [reader]
    reader, writer = os.pipe()
    if kind == "no reader":
        os.close(reader)
        return writer, []
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    return writer, [reader]


@pytest.mark.long(but="exec sleep 60-out-full disk")
@pytest.mark.parametrize("kind", ["full disk", "no reader", "full pipe", "tty", "Ctrl-S"])
@pytest.mark.parametrize("streams", ["out", "err", "both"])
@pytest.mark.parametrize("script", ["exec sleep 60", "trap '' TERM; while :; do echo x; echo y >&2; done"])
def test_sigterm_ends_the_launcher_whatever_its_output_does(accel_path, tmp_path, kind, streams, script):
    writer, others = output_of_kind(kind, tmp_path)
    process = subprocess.Popen(
        [accel_path, "launch", "--cpu", "--num_processes", "2", "--main_process_port", "0", "--set", "launch.grace_period=1",
         "--", "bash", "-c", f"touch started.$RANK; {script}"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=writer if streams != "err" else subprocess.DEVNULL,
        stderr=writer if streams != "out" else subprocess.DEVNULL)
    try:
        wait_for(lambda: all((tmp_path / f"started.{rank}").exists() for rank in (0, 1)))
        process.terminate()
        assert process.wait(timeout=15) == 143
    finally:
        process.kill()
        for fd in (writer, *others):
            os.close(fd)


def test_a_failure_is_told_by_its_code_whatever_the_output_does(accel_path, tmp_path):
    for kind in ("full disk", "no reader"):
        writer, _ = output_of_kind(kind, tmp_path)
        command = [accel_path, "launch", "--cpu", "--main_process_port", "0", "--", "bash", "-c", "echo x; exit 3"]
        result = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, timeout=30)
        os.close(writer)
        assert result.returncode == 6, kind


def test_a_log_that_is_not_a_regular_file_is_an_error(accel, tmp_path):
    for name in ("stdout.log", "stderr.log"):
        logs = tmp_path / name / "attempt_0/rank_0"
        logs.mkdir(parents=True)
        os.mkfifo(logs / name)
        said = accel("launch", "--cpu", "--main_process_port", 0, "--log_dir", tmp_path / name, "--", "sleep", "60", code=1, timeout=20)
        assert f"cannot write '{logs / name}'" in said.stderr
    train_runs.export(tmp_path / "gpt.pt")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out/metrics.jsonl")
    said = accel("launch", train_runs.config(tmp_path, 1), code=2, timeout=20).stderr
    assert "metrics.jsonl' is not a regular file" in said


def limited(accel_path, kibibytes, *args):
    return ["bash", "-c", f'ulimit -f {kibibytes}; exec "$@"', "bash", accel_path, "launch", *map(str, args)]


def test_a_log_that_cannot_grow_is_said_once_and_the_run_goes_on(accel_path, tmp_path):
    """At the limit of `ulimit -f`, SIGXFSZ kills a process that does not ignore it."""
    script = "seq 100000; echo done >&2"
    command = limited(accel_path, 64, "--cpu", "--main_process_port", 0, "--log_dir", "logs", "--", "bash", "-c", script)
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                            env={**os.environ, "NO_COLOR": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "100000"
    name = "logs/attempt_0/rank_0/stdout.log"
    # The log is written on a thread of its own.
    assert sorted(result.stderr.splitlines()) == [f"accel: warning: cannot write '{name}': File too large; this log ends here",
                                                  "done"]
    assert (tmp_path / name).stat().st_size == 64 * 1024
    assert (tmp_path / "logs/attempt_0/rank_0/stderr.log").read_text() == "done\n"


def test_a_configuration_that_cannot_be_written_is_an_error(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1)
    result = subprocess.run(limited(accel_path, 1, config), cwd=tmp_path, capture_output=True, text=True, timeout=60,
                            env={**os.environ, "NO_COLOR": "1"})
    assert result.returncode == 1, result.stderr
    assert "config.resolved.json" in result.stderr and "File too large" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == []


@contextlib.contextmanager
def disk_of(size, directory):
    """Mounts a file system of that size, or skips the test if it cannot."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    with disk_of("1m", tmp_path_factory.mktemp("disk")) as directory:
        yield directory


def test_old_checkpoints_make_room_and_a_disk_that_states_no_size_is_not_full(accel, tmp_path):
    """The disk has room for two checkpoints, and the run keeps two. A third would be written before the first goes."""
    train_runs.export(tmp_path / "gpt.pt")
    (tmp_path / "disk").mkdir()
    with disk_of("0", tmp_path / "disk") as disk:
        accel("launch", train_runs.config(tmp_path, 1, max_steps=1, **{"output_dir": str(disk / "out"), "checkpoint.every": 1}))
        accel("merge-weights", disk / "out/checkpoints/checkpoint_1", disk / "weights")
        size = sum(path.stat().st_size for path in (disk / "out/checkpoints").rglob("*") if path.is_file())
    with disk_of(int(2.7 * size), tmp_path / "disk") as disk:
        keys = {"output_dir": str(disk / "out"), "checkpoint": {"every": 1, "total_limit": 2, "resume": "none"}}
        accel("launch", train_runs.config(tmp_path, 1, max_steps=4, **keys))
        assert sorted(path.name for path in (disk / "out/checkpoints").iterdir()) == ["checkpoint_3", "checkpoint_4"]


def test_a_full_disk_ends_a_log_and_not_the_run(accel_path, tmp_path, small_disk):
    command = [accel_path, "launch", "--cpu", "--main_process_port", "0", "--log_dir", small_disk / "logs", "--",
               "bash", "-c", "yes 12345678 | head -n 400000; echo done >&2"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) == 400_000 * 9
    assert result.stderr.count("No space left on device; this log ends here") >= 1
    assert "stdout.log" in result.stderr
