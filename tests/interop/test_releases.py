"""The oldest and the newest release of transformers that the exporter takes, beside that of the environment."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import train_runs
from accel_export import huggingface
from train_runs import ROOT

pytestmark = pytest.mark.long
# Each is beside the environment; see make_releases in tools/python-environments.sh.
PACKAGES = pathlib.Path(os.environ.get("ACCEL_TRANSFORMERS_PACKAGES", ""))
OLDEST, NEWEST = "5.0.0", "5.24.0"


def write(accel_path, directory, release, family, name):
    paths = [PACKAGES / release, ROOT / "tools/export", ROOT / "tests"]
    return subprocess.run([sys.executable, pathlib.Path(__file__).parent / "release_writer.py", family, directory / "hf", directory / name],
                          capture_output=True, text=True, timeout=300, env={
                              **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1",
                              "PATH": f"{accel_path.parent}:{os.environ['PATH']}"})


@pytest.mark.parametrize(("release", "family", "name"), [
    (OLDEST, "llama", "model.pt2"), (OLDEST, "gpt2", "model.pt"), (NEWEST, "llama", "model.pt"), (NEWEST, "mixtral", "model.pt2")])
def test_a_release_exports_what_trains(accel, accel_path, tmp_path, release, family, name):
    """The loss of the first step is transformers' own, with the weights of its directory."""
    result = write(accel_path, tmp_path, release, family, name)
    assert result.returncode == 0, result.stderr[-4000:]
    said = json.loads(result.stdout.splitlines()[-1])
    assert said["release"] == release
    accel("launch", train_runs.config(tmp_path, 2, **{
        "model": {"path": str(tmp_path / name), "weights": str(tmp_path / "hf")}, "max_steps": 1,
        "data.train": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 32}, "data.batch_size": 4,
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"}}))
    assert train_runs.metrics(tmp_path)[0] == pytest.approx(said["loss"], rel=1e-5)


def test_experts_of_the_oldest_release_are_refused_by_their_line(accel_path, tmp_path):
    result = write(accel_path, tmp_path, OLDEST, "mixtral", "model.pt2")
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "integrations/moe.py:" in result.stderr and "torch._grouped_mm" in result.stderr


def test_both_are_among_those_that_are_said():
    assert OLDEST in huggingface.TRIED and NEWEST in huggingface.TRIED
