"""The example of pictures: its classifier learns, and eager Python computes from its merged checkpoint what accel reported."""

import re
import subprocess
import sys

import pytest
import train_runs


def example(directory, *arguments):
    command = [sys.executable, train_runs.ROOT / "examples/digits.py", "runs/digits", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.mark.long
def test_digits_are_classified(accel, tmp_path):
    example(tmp_path)
    accel("launch", train_runs.ROOT / "configs/digits.yaml")
    accel("merge-weights", "runs/digits/out/checkpoints", "runs/digits/merged")
    loss, accuracy = re.fullmatch(r"held-out loss (\S+), accuracy (\S+)%\n", example(tmp_path, "--check")).groups()
    assert float(accuracy) > 97
    # The printed number is rounded to six places, and both programs add 300 losses in float32.
    assert float(loss) == pytest.approx(train_runs.metrics(tmp_path / "runs/digits", "eval_loss")[-1], rel=1e-5, abs=5e-7)
