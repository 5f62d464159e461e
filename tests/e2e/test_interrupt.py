"""Each command that writes gets a signal at every system call that changes files. It exits with the code of that signal
and leaves the earlier state, or its output is already complete."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest
import train_runs
from faults import CASES, LEFTOVER, Runner, below, scratch, tree

SIGNALS = {signal.SIGINT: (130, "interrupted by SIGINT"), signal.SIGTERM: (143, "terminated by SIGTERM"),
           signal.SIGHUP: (129, "terminated by SIGHUP"), signal.SIGUSR1: (138, "terminated by SIGUSR1")}


class InterruptRunner(Runner):
    def check(self, number, signal_number, before, after):
        """Sends the signal just before call `number`. Returns what is wrong afterwards, or None."""
        code, message = SIGNALS[signal_number]
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            directory = pathlib.Path(name)
            self.prepare(directory)
            returncode, stderr = self.run_stopped(directory, number, signal_number)
            now = tree(directory)
            complete = now == after
            if returncode == 0:
                return None if complete else f"exit code 0 without the output: {stderr}"
            if returncode != code or message not in stderr:
                return f"exit code {returncode}: {stderr}"
            if complete or now == before:
                return None
            removed = self.case.removes_source and below(now, self.case.target) == below(after, self.case.target)
            return None if removed else f"left behind: {sorted(set(now) ^ set(before))}"

    def run_stopped(self, directory, number, signal_number):
        environment = {**os.environ, "NO_COLOR": "1", "ACCEL_FAULT": f"stop@{number}"}
        command = [self.accel_path, *self.case.arguments]
        with tempfile.TemporaryFile("w+") as stderr:
            process = subprocess.Popen(command, cwd=directory, env=environment, stdout=stderr, stderr=stderr)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"it ended before call {number}"
            process.send_signal(signal_number)
            process.send_signal(signal.SIGCONT)
            process.wait(timeout=60)
            stderr.seek(0)
            return process.returncode, stderr.read()


def test_a_signal_at_every_point_of_a_launch(accel_path, tmp_path):
    """SIGTERM ends it before its ranks start, and not when they have ended. It leaves no lock and no temporary file, and
    says how it ended. The worker is a program that touches no file."""
    train_runs.export(tmp_path / "gpt.pt")
    worker, scratch, log = tmp_path / "worker", tmp_path / "scratch", tmp_path / "log"
    worker.write_text("#!/bin/sh\nexit 0\n")
    worker.chmod(0o755)
    scratch.mkdir()
    config = train_runs.config(tmp_path, 1, **{"launch.worker": str(worker), "launch.preflight": False, "checkpoint.every": 2})

    def start(**variables):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return subprocess.Popen([accel_path, "launch", config], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                env={**os.environ, "TMPDIR": str(scratch), **variables})

    assert start(ACCEL_FAULT_LOG=str(log)).wait(timeout=60) == 0
    calls = log.read_text().splitlines()
    codes = []
    for number in range(1, len(calls) + 1):
        process = start(ACCEL_FAULT=f"stop@{number}")
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), calls[number - 1]
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        codes.append(process.wait(timeout=60))
        left = [path.name for path in (tmp_path / "out").rglob("*")] if (tmp_path / "out").exists() else []
        assert ".lock" not in left and not any(map(LEFTOVER.match, left)), f"{calls[number - 1]}: {left}"
        assert "config.resolved.json" not in left or "run_end.json" in left, f"{calls[number - 1]}: {left}"
        assert not list(scratch.iterdir()), calls[number - 1]
    assert codes == sorted(codes, reverse=True) and set(codes) == {143, 0}, list(zip(calls, codes))


@pytest.mark.long(but="merge-weights")
@pytest.mark.parametrize("name", CASES)
def test_a_signal_at_every_point(accel_path, fault_template, name):
    runner = InterruptRunner(accel_path, CASES[name], fault_template)
    before, after, calls = runner.reference()
    jobs = [(number, list(SIGNALS)[number % len(SIGNALS)]) for number in range(1, len(calls) + 1)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        problems = list(pool.map(lambda job: runner.check(*job, before, after), jobs))
    wrong = [f"{which.name} at {number} ({calls[number - 1]}): {what}" for (number, which), what in zip(jobs, problems) if what]
    assert not wrong, "\n".join(wrong)
    assert len(jobs) >= 5
