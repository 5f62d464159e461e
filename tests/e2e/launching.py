"""Helpers of the launcher's tests: they run it in the background and find processes that it leaves behind."""

import os
import pathlib
import subprocess
import time
import uuid

import pytest


class Run:
    """`accel launch ...` in the background. A variable in the environment identifies the processes that it starts."""

    def __init__(self, accel, tmp_path, *args, env=None, **popen):
        """`accel` is the program, or a command in front of it and the program."""
        self.mark = f"ACCEL_TEST_MARK={uuid.uuid4()}"
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [*(accel if isinstance(accel, list) else [accel]), "launch", *map(str, args)],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", name: value, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )
        self.pid = self.process.pid

    def finish(self, timeout=30):
        """Waits for the launcher to end. Returns (exit code, stdout, stderr)."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def survivors(self):
        """Returns the command lines of living processes of this run, including the launcher."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.mark.encode() not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
                found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def assert_nobody_is_left(self, timeout=5):
        wait_for(lambda: not self.survivors(), timeout, lambda: f"left behind: {self.survivors()}")

    def kill_all(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def wait_for(condition, timeout=10, what=lambda: "condition"):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s in vain: {what()}"
        time.sleep(0.01)


@pytest.fixture
def start(accel_path, tmp_path):
    """start(ARGS...) starts the launcher in the background. The fixture kills it after the test."""
    runs = []

    def begin(*args, **options):
        runs.append(Run(accel_path, tmp_path, *args, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill_all()
