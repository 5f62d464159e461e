"""The bundle that tools/gpu-bundle makes needs only its own libraries and those of torch."""

import json
import os
import pathlib
import shutil
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


@pytest.mark.long
def test_its_one_command_runs_every_stage_and_says_what_failed(bundle, tmp_path):
    """Without a GPU each stage fails for want of one, and the sanitizer's are skipped by name if it is not there."""
    if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    environment = {**os.environ, "ACCEL_BUILD_DIR": str(bundle / "build"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, bundle / "tools/gpu-check", tmp_path / "out"], env=environment, cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    results = {row["stage"]: row for row in map(json.loads, (tmp_path / "out/results.jsonl").read_text().splitlines())}
    assert list(results) == ["versions", "nccl", "parity", "gloo", "125m", "1b", "rest", "memcheck", "racecheck"]
    assert results["versions"]["status"] == "failed" and results["versions"]["tests"]["failed"] == 0
    assert results["versions"]["tests"]["passed"] > 3 and "accel 0." in (tmp_path / "out/versions.log").read_text()
    for stage in ("nccl", "parity", "gloo", "rest"):
        assert (results[stage]["status"], results[stage]["why"]) == ("failed", "no test passed")
        assert results[stage]["tests"]["skipped"] > 0
    for stage in ("125m", "1b"):
        assert results[stage]["status"] == "failed" and "torch sees no GPU here" in (tmp_path / f"out/{stage}.log").read_text()
    for stage in ("memcheck", "racecheck"):
        assert results[stage]["status"] == ("failed" if shutil.which("compute-sanitizer") else "skipped")
    assert done.stdout == (tmp_path / "out/summary.txt").read_text()
    again = subprocess.run([sys.executable, bundle / "tools/gpu-check", tmp_path / "out"], capture_output=True, text=True)
    assert again.returncode == 1 and "is there already" in again.stderr


def test_a_folder_that_is_there_is_left_alone(bundle, root):
    result = subprocess.run([root / "tools/gpu-bundle", bundle], capture_output=True, text=True)
    assert result.returncode == 1
    assert "is there already" in result.stderr
