"""Two steps of a training under NVIDIA's compute-sanitizer. Its racecheck looks at memory that the threads of one kernel
share, and accel has no kernels of its own; it reports hazards in a kernel of torch's attention."""

import json
import re
import shutil
import subprocess

import pytest

import train_runs
from gpu_runs import GPU

# libtorch probes the driver with calls that fail, which is no error of memory.
OPTIONS = ["--report-api-errors", "no"]


@pytest.mark.cuda
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH")
def test_two_steps_are_clean_under_memcheck(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=2)
    config.write_text(json.dumps({**json.loads(config.read_text()), **GPU}))
    done = subprocess.run(["compute-sanitizer", "--tool", "memcheck", *OPTIONS, "--target-processes", "all", "--log-file",
                           tmp_path / "sanitizer.%p.log", accel_path, "launch", config], cwd=tmp_path, capture_output=True, text=True)
    found = "\n".join(path.read_text() for path in tmp_path.glob("sanitizer.*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + found
    assert len(train_runs.metrics(tmp_path)) == 2
    summaries = re.findall(r"SUMMARY: (\d+) errors?", found)
    assert summaries and set(summaries) == {"0"}, found
