"""What ended a rank is said in words: the kernel for want of memory, another process, a crash with its place."""

import contextlib
import os
import pathlib
import re
import signal
import sys

import pytest

import train_runs
from launching import Run, wait_for

V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")
MEGABYTES = 200


@pytest.fixture
def small_group(tmp_path):
    """A control group with little memory; yields the file into which a process writes its number to enter it."""
    root, limit = (V1, "memory.limit_in_bytes") if (V1 / "memory.limit_in_bytes").exists() else (V2, "memory.max")
    group = root / f"accel-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(MEGABYTES << 20))
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    yield group / "cgroup.procs"
    wait_for(lambda: not (group / "cgroup.procs").read_text(), 10)
    group.rmdir()


HOG = """
import os, time
if os.environ["RANK"] == "1":
    kept = bytearray(os.urandom(1 << 20)) * 1000
time.sleep(60)
"""


def test_a_rank_that_the_kernel_killed_for_want_of_memory(accel_path, tmp_path, small_group):
    (tmp_path / "hog.py").write_text(HOG)
    run = Run(["sh", "-c", f'echo $$ > {small_group} && exec "$@"', "sh", str(accel_path)], tmp_path, "--cpu", "--num-processes", "2",
              "--", sys.executable, "hog.py")
    code, _, said = run.finish(60)
    assert code == 6, said
    assert "rank 1 of 2 failed: killed by SIGKILL (Killed) by the kernel, since its control group has no memory left" in said


def test_a_rank_that_another_process_killed(accel_path, tmp_path):
    run = Run(accel_path, tmp_path, "--cpu", "--num-processes", "2", "--", "sh", "-c", '[ $RANK = 1 ] && kill -9 $$; sleep 60')
    code, _, said = run.finish(60)
    assert code == 6
    assert re.search(r"rank 1 of 2 failed: killed by SIGKILL \(Killed\)( by another process| ?;|, likely)", said)


def test_a_crash_of_our_worker_says_where(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    run = Run(accel_path, tmp_path, train_runs.config(tmp_path, 2, max_steps=100000))
    wait_for(lambda: (tmp_path / "out/metrics.jsonl").exists(), 60)
    os.kill(train_runs.worker_of(1, run.pid), signal.SIGSEGV)
    code, _, said = run.finish(60)
    assert code == 6
    assert "rank 1 of 2 failed: killed by SIGSEGV (Segmentation fault); a bug in native code" in said
    report = said.split("rank 1 of 2 failed")[1]
    assert "| crashed by SIGSEGV, at:" in report
    assert re.search(r"\|   ?\S*(torch|accel|libc)\S*\(", report) or re.search(r"\| \S*(torch|accel|libc)\S*\(", report), report


def test_ranks_run_on_cores_of_their_own(accel):
    cpus = sorted(os.sched_getaffinity(0))
    show = ["--", "sh", "-c", "grep Cpus_allowed_list /proc/self/status"]
    shown = accel("launch", "--cpu", "--num-processes", "2", "--tee", "1", "--set", "enable_cpu_affinity=true", *show).stdout
    lists = [line.split()[-1] for line in sorted(shown.splitlines())]
    if len(cpus) == 2:
        assert lists in ([str(cpus[0]), str(cpus[1])], [f"{cpus[0]}-{cpus[1]}"] * 2)  # The second with hyperthreads.
    assert len(lists) == 2
    free = accel("launch", "--cpu", *show).stdout.split()[-1]
    assert free == open("/proc/self/status").read().split("Cpus_allowed_list:")[1].split()[0]


def test_what_is_shown_of_the_ranks(accel, tmp_path):
    program = ["--", "sh", "-c", "echo out; sleep 0.2; echo err >&2"]
    shown = accel("launch", "--cpu", "--num-processes", "2", "--tee", "3", *program)
    assert sorted(shown.stdout.splitlines()) == ["[rank0] out", "[rank1] out"]
    assert sorted(shown.stderr.splitlines()) == ["[rank0] err", "[rank1] err"]
    shown = accel("launch", "--cpu", "--num-processes", "2", "--tee", "0:2,1:1", *program)
    assert (shown.stdout, shown.stderr) == ("[rank1] out\n", "[rank0] err\n")
    shown = accel("launch", "--cpu", "--num-processes", "2", "--tee", "1:0", *program)
    assert (shown.stdout, shown.stderr) == ("out\n", "err\n")
