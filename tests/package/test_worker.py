"""The worker's wheel: its contents, and a training in a fresh virtual environment with the torch that it requires."""

import importlib.metadata
import json
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import safetensors.torch
from symbols import newest_symbol


@pytest.fixture(scope="module")
def trainer(fresh_venv, pip, package):
    """Makes a virtual environment with both wheels and the torch that the worker's wheel requires, a large download."""
    venv = fresh_venv("trainer")
    pip(venv, "install", "--no-cache-dir", package("accel_toolkit-*.whl"), package("accel_worker-*.whl"))
    yield venv
    # The fixture removes the folder, because pytest would keep its gigabytes for a while.
    shutil.rmtree(venv)


def test_worker_pins_torch_and_contains_none_of_it(package):
    with zipfile.ZipFile(package("accel_worker-*.whl")) as wheel:
        names = [pathlib.PurePath(name).name for name in wheel.namelist()]
        (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    assert "accel-worker" in names
    assert not [name for name in names if re.match(r"lib(torch|c10|cuda|nccl|cudnn)", name)]
    version = importlib.metadata.version("torch").split("+")[0]
    assert f"Requires-Dist: torch=={version}\n" in metadata


def test_worker_needs_no_new_c_and_cpp_libraries(package, tmp_path):
    """RHEL 9 has glibc 2.34, and the libstdc++ of GCC 11."""
    wheel = package("accel_worker-*.whl")
    assert re.fullmatch(r"accel_worker-[0-9.]+-py3-none-manylinux_2_34_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    programs = [tmp_path / "accel_worker/accel-worker", *tmp_path.rglob("*.so*")]
    for program in programs:
        assert newest_symbol(program, "GLIBC") <= (2, 34), program
        assert newest_symbol(program, "GLIBCXX") <= (3, 4, 29), program
        assert newest_symbol(program, "CXXABI") <= (1, 3, 13), program


def test_worker_brings_no_libraries(package):
    with zipfile.ZipFile(package("accel_worker-*.whl")) as wheel:
        assert not [name for name in wheel.namelist() if ".libs/" in name]


def make_quickstart(venv, directory):
    """Makes the quickstart's model and data with the wheel's example. Returns the configuration."""
    subprocess.run([sys.executable, venv / "share/accel/examples/export_gpt.py", "runs/quickstart/gpt.pt", "--data",
                    "runs/quickstart/data"], cwd=directory, check=True, capture_output=True)
    return venv / "share/accel/configs/quickstart.yaml"


def test_worker_trains_the_quickstart(trainer, run_clean, tmp_path):
    config = make_quickstart(trainer, tmp_path)
    accel = trainer / "bin/accel"
    run_clean(accel, "launch", config, "--set", "training.max_steps=6", "--set", "training.checkpoint.every=6", "--set",
              "training.eval_every=6", "--set", "training.log_every=1", cwd=tmp_path)
    out = tmp_path / "runs/quickstart/out"
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in steps if "loss" in line]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    (checkpoint,) = (out / "checkpoints").iterdir()
    run_clean(accel, "merge-weights", checkpoint, tmp_path / "merged", cwd=tmp_path)
    assert safetensors.torch.load_file(tmp_path / "merged/model.safetensors")
