"""The bundle that tools/gpu-bundle makes needs only its own libraries and those of torch."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import train_runs

OF_THE_MACHINE = {"libc", "libm", "libstdc++", "libgcc_s", "libtorch_cpu", "libc10"}
TORCH = pathlib.Path(torch.__file__).parent / "lib"


@pytest.fixture(scope="module")
def bundle(accel_path, root, tmp_path_factory):
    if not (accel_path.parent.parent / "train/accel-cuda.so").exists():
        pytest.skip("built without the NCCL and CUDA headers")
    folder = tmp_path_factory.mktemp("bundle") / "accel-gpu"
    build = accel_path.parent.parent.parent
    made = subprocess.run([root / "tools/gpu-bundle", folder], env={**os.environ, "ACCEL_BUILD_DIR": str(build)},
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert f"torch {torch.__version__.split('+')[0]} and pytest-xdist" in made.stdout
    return folder


def run(bundle, *command, cwd):
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{bundle / 'lib'}:{TORCH}", "ACCEL_BUILD_DIR": str(bundle / "build")}
    result = subprocess.run([*map(str, command)], env=environment, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def test_it_is_small_and_brings_its_libraries(bundle):
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) < 64 << 20
    for program in ("cli/accel", "train/accel-worker"):
        path = bundle / "build/src" / program
        needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        found = [line.split() for line in run(bundle, "ldd", path, cwd=bundle).splitlines()]
        places = {words[0]: pathlib.Path(words[2]).parent for words in found if len(words) > 2 and f"[{words[0]}]" in needed}
        carried = {name for name, place in places.items() if place == bundle / "lib"}
        assert {name.split(".so")[0] for name in places.keys() - carried} <= OF_THE_MACHINE
        assert {name.split(".so")[0] for name in carried} >= {"libfmt", "libspdlog", "libdeflate", "libzstd"}


def test_its_commands_train(bundle, tmp_path):
    accel = bundle / "build/src/cli/accel"
    assert run(bundle, accel, "--version", cwd=tmp_path).startswith("accel ")
    train_runs.export(tmp_path / "gpt.pt")
    run(bundle, accel, "launch", train_runs.config(tmp_path, 2, max_steps=3), cwd=tmp_path)
    assert len(train_runs.metrics(tmp_path)) == 3


def test_its_suite_can_be_collected(bundle):
    said = run(bundle, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "tests/gpu", cwd=bundle)
    assert said.count("::") > 60


def test_its_bench_finds_its_files(bundle):
    assert "--models" in run(bundle, sys.executable, "bench/gpu_step.py", "--help", cwd=bundle)


def test_a_folder_that_is_there_is_left_alone(bundle, root):
    result = subprocess.run([root / "tools/gpu-bundle", bundle], capture_output=True, text=True)
    assert result.returncode == 1
    assert "is there already" in result.stderr
