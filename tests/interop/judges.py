"""For each torch version: its judge, which is a long-running process of zoo_judge.py, and the zoo that it writes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
TORCHES = ("2.11", "2.15")
# As parameters. The other torch has an environment of its own, which takes long to install.
EACH_TORCH = [TORCHES[0], pytest.param(TORCHES[1], marks=pytest.mark.long)]


def interpreter(torch: str) -> str | None:
    """Returns the Python that has this torch version, or None if this machine has none."""
    return sys.executable if torch == "2.11" else os.environ.get("ACCEL_TORCH_215")


class Judge:
    """Loads checkpoints with the packages of one torch version."""

    def __init__(self, torch: str, log: pathlib.Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [interpreter(torch), HERE / "zoo_judge.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"),
            text=True)  # fmt: skip
        version = json.loads(self._read())["torch"]
        assert version.startswith(f"{torch}."), version

    def _read(self) -> str:
        line = self._process.stdout.readline()
        assert line, f"the judge died: {self._log.read_text()[-3000:]}"
        return line

    def problem(self, load: str, path: pathlib.Path, expected: pathlib.Path) -> str:
        """Loads `path` with zoo_judge's load_LOAD. Returns what differs from the tensors of `expected`, or ""."""
        self._process.stdin.write(json.dumps({"load": load, "path": str(path), "expected": str(expected)}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())["problem"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)


def write_zoo(torch: str, directory: pathlib.Path) -> None:
    result = subprocess.run([interpreter(torch), HERE / "zoo_write.py", directory], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-6000:]
