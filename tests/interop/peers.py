"""The client of the process that runs the tests' peers."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import warnings

HERE = pathlib.Path(__file__).resolve().parent
CRASHES = tuple(f" ended with {-number}" for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS))


class Server:
    """A process of peer_server.py, which the first run() starts."""

    def __init__(self, log: pathlib.Path) -> None:
        self._log = log
        self._process = None

    def run(self, ranks: int, log: pathlib.Path, script: str, *arguments, timeout: float = 300) -> None:
        """Runs `script` of this folder. The ranks' output goes to `log`, and into the error if a rank fails."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "peer_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log.open("w"),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, text=True)
        job = {"ranks": ranks, "command": [str(HERE / script), *map(str, arguments)], "log": str(log), "timeout": timeout}
        problem = self._problem_of(job)
        if problem.endswith(CRASHES):
            # The interpreter with torch died, and no code of ours is in it. That is no verdict of the peer.
            warnings.warn(f"{script} on {ranks} ranks: {problem}; it is run once more", stacklevel=2)
            if log.exists():
                log.rename(log.with_suffix(".crashed"))
            problem = self._problem_of(job)
        assert not problem, f"{script} on {ranks} ranks: {problem}\n{log.read_text()[-6000:] if log.exists() else ''}"

    def _problem_of(self, job):
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the server of peers died: {self._log.read_text()[-3000:]}"
        return json.loads(answer)["problem"]

    def close(self) -> None:
        if self._process:
            self._process.stdin.close()
            self._process.wait(timeout=120)
