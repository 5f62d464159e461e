"""The worker's CUDA module loads on a machine without a GPU, and CPU ranks do not need it."""

import json
import os
import subprocess
import sys

import pytest
import torch

import train_runs


@pytest.fixture
def module(accel_path):
    path = accel_path.parent.parent / "train/accel-cuda.so"
    if not path.exists():
        pytest.skip("built without the NCCL and CUDA headers")
    return path


def test_accel_was_built_with_the_libtorch_of_this_python(accel):
    assert f"libtorch {torch.__version__.split('+')[0]}\n" in accel("--version").stdout


def test_it_loads_and_has_the_nccl_backend(module):
    # A separate process loads the module, because the module loads all CUDA libraries.
    code = f"import ctypes; print(ctypes.CDLL({str(module)!r}).accel_make_nccl)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_it_was_compiled_with_the_nccl_of_libtorch_and_finds_one_that_fits(module):
    """Compares the NCCL versions of the headers, libtorch and the library. NcclVersionTest tests accel's check."""
    code = f"""import ctypes
versions = (ctypes.c_int * 9)()
ctypes.CDLL({str(module)!r}).accel_nccl_versions(versions)
print(*versions)
import torch
print(*torch.cuda.nccl.version())"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    ours, theirs = ([int(word) for word in line.split()] for line in result.stdout.splitlines())
    assert ours[3:6] == theirs
    assert ours[0:2] == ours[3:5] and ours[6] == ours[0] and ours[7] >= ours[1]


def test_the_worker_does_not_link_it(accel_path):
    worker = accel_path.parent.parent / "train/accel-worker"
    needed = subprocess.run(["ldd", worker], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu" in needed
    assert "libtorch_cuda" not in needed and "nccl" not in needed


def test_a_gpu_rank_without_a_gpu_says_so(accel, accel_path, module, tmp_path):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, 1, max_steps=1))
    document = json.loads((tmp_path / "out/config.resolved.json").read_text())
    document.update(use_cpu=False, gpu_ids=[0])
    (tmp_path / "gpu.json").write_text(json.dumps(document))
    worker = accel_path.parent.parent / "train/accel-worker"
    environment = {**os.environ, "ACCEL_CONFIG_FILE": str(tmp_path / "gpu.json"), "RANK": "0", "WORLD_SIZE": "1",
                   "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    result = subprocess.run([worker], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1, result.stderr
    assert "this rank runs on GPU 0, but libtorch sees 0 GPUs" in result.stderr
