"""The wheels have the right contents and work in a fresh virtual environment."""

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
import torch

MAX_TOOLKIT_BYTES = 8_000_000


@pytest.fixture(scope="module")
def toolkit(fresh_venv, pip, package):
    """Makes a virtual environment with only the toolkit. pip gets no index, so a required package is an error."""
    venv = fresh_venv("toolkit")
    pip(venv, "install", "--no-index", package("accel_toolkit-*.whl"))
    return venv


@pytest.fixture(scope="module")
def trainer(fresh_venv, pip, package):
    """Makes a virtual environment with both wheels and the torch that the worker's wheel requires, a large download."""
    venv = fresh_venv("trainer")
    pip(venv, "install", "--no-cache-dir", package("accel_toolkit-*.whl"), package("accel_worker-*.whl"))
    yield venv
    # The fixture removes the folder, because pytest would keep its gigabytes for a while.
    shutil.rmtree(venv)


def sections(program):
    return subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout


def needed(program):
    dynamic = subprocess.run(["readelf", "-dW", program], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))


def newest_symbol(program, library):
    """Returns the newest version, such as (2, 28), of the symbols that the program takes from GLIBC or GLIBCXX."""
    needs = subprocess.run(["readelf", "-VW", program], capture_output=True, text=True, check=True).stdout
    return max(tuple(map(int, version.split("."))) for version in re.findall(rf"Name: {library}_([0-9.]+)", needs))


def test_toolkit_is_small_and_for_any_python(package):
    wheel = package("accel_toolkit-*.whl")
    assert re.fullmatch(r"accel_toolkit-[0-9.]+-py3-none-manylinux_2_28_x86_64\.whl", wheel.name)
    assert wheel.stat().st_size < MAX_TOOLKIT_BYTES


def test_toolkit_needs_no_new_c_library(toolkit):
    assert (2, 17) <= newest_symbol(toolkit / "bin/accel", "GLIBC") <= (2, 28)


def test_toolkit_is_stripped_and_self_contained(toolkit):
    assert ".text" in sections(toolkit / "bin/accel")
    assert ".symtab" not in sections(toolkit / "bin/accel")
    assert ".debug_info" not in sections(toolkit / "bin/accel")
    assert needed(toolkit / "bin/accel") <= {
        "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


def test_toolkit_requires_no_package(toolkit, pip):
    names = {entry["name"] for entry in json.loads(pip(toolkit, "list", "--format=json"))}
    assert "accel-toolkit" in names
    assert names <= {"accel-toolkit", "pip", "setuptools"}


def test_toolkit_says_that_it_has_no_libtorch(toolkit, run_clean, tmp_path):
    lines = run_clean(toolkit / "bin/accel", "--version", cwd=tmp_path).stdout.splitlines()
    assert re.fullmatch(r"accel \d+\.\d+\.\d+", lines[0])
    assert lines[2:] == ["libtorch none", "NCCL none"]


def test_toolkit_has_its_manual_pages(toolkit, manual_pages):
    assert sorted(page.name for page in (toolkit / "share/man").glob("man?/*")) == manual_pages


def test_toolkit_has_its_completion_scripts(toolkit, run_clean, completion_scripts, tmp_path):
    for shell, path in completion_scripts.items():
        printed = run_clean(toolkit / "bin/accel", "completion", shell, cwd=tmp_path).stdout
        assert (toolkit / "share" / path).read_text() == printed


def test_toolkit_reads_and_merges_a_checkpoint(toolkit, run_clean, checkpoint, weights, tmp_path):
    accel = toolkit / "bin/accel"
    assert "layer.weight" in run_clean(accel, "inspect", "--tensors", checkpoint, cwd=tmp_path).stdout
    run_clean(accel, "merge-weights", checkpoint, tmp_path / "merged", cwd=tmp_path)
    merged = safetensors.torch.load_file(tmp_path / "merged/model.safetensors")
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights)


def test_toolkit_starts_any_program(toolkit, run_clean, tmp_path):
    result = run_clean(toolkit / "bin/accel", "launch", "--cpu", "--num_processes", "2", "--", "sh", "-c",
                       "echo rank $RANK >&2", cwd=tmp_path)
    assert sorted(result.stderr.splitlines()) == ["[rank1] rank 1", "rank 0"]


def make_quickstart(venv, directory):
    """Makes the quickstart's model and data with the wheel's example. Returns the configuration."""
    subprocess.run([sys.executable, venv / "share/accel/examples/export_gpt.py", "runs/quickstart/gpt.pt", "--data",
                    "runs/quickstart/data"], cwd=directory, check=True, capture_output=True)
    return venv / "share/accel/configs/quickstart.yaml"


def test_launch_without_the_worker_says_how_to_get_it(toolkit, run_clean, tmp_path):
    config = make_quickstart(toolkit, tmp_path)
    result = run_clean(toolkit / "bin/accel", "launch", config, cwd=tmp_path, code=1)
    assert "accel-worker is not installed" in result.stderr
    assert "pip install accel-worker" in result.stderr


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
