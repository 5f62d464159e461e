"""Two steps of a training, and the casts to float8, under NVIDIA's compute-sanitizer. Its racecheck looks at memory that the
threads of one kernel share. It has accel's own kernels alone: it reports hazards in a kernel of torch's attention."""

import json
import re
import shutil
import subprocess

import pytest

import train_runs
from gpu_runs import GPU

# libtorch probes the driver with calls that fail, which is no error of memory.
OPTIONS = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
pytestmark = [pytest.mark.cuda,
              pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH")]


def require_clean(tool, directory, *command):
    done = subprocess.run(["compute-sanitizer", "--tool", tool, *OPTIONS[tool], "--target-processes", "all", "--log-file",
                           directory / "sanitizer.%p.log", *command], cwd=directory, capture_output=True, text=True)
    found = "\n".join(path.read_text() for path in directory.glob("sanitizer.*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + found
    summaries = re.findall(r"SUMMARY: (\d+) (?:errors?|hazards?)", found)
    assert summaries and set(summaries) == {"0"}, found


def test_two_steps_are_clean_under_memcheck(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=2)
    config.write_text(json.dumps({**json.loads(config.read_text()), **GPU}))
    require_clean("memcheck", tmp_path, accel_path, "launch", config)
    assert len(train_runs.metrics(tmp_path)) == 2


@pytest.mark.parametrize("tool", OPTIONS)
def test_casts_to_float8_are_clean(accel_path, tmp_path, tool):
    require_clean(tool, tmp_path, accel_path.parent.parent / "train/float8_casts")
