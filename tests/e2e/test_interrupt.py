"""Each command that writes gets a signal at every system call that changes files. It exits with the code of that signal
and leaves the earlier state, or its output is already complete."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import tempfile

import pytest
from faults import CASES, Runner, below, scratch, tree

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
