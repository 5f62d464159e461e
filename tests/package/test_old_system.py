"""The toolkit's wheel, installed by pip in the oldest Debian that the mirrors have."""

import functools
import os
import shutil

import pytest
import safetensors.torch
import torch

# Debian 11 has glibc 2.31.
OLDEST_DEBIAN = "bullseye"
ACCEL = "/root/venv/bin/accel"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap and chroot need root")


@pytest.fixture(scope="module")
def debian(debian_root):
    return debian_root(OLDEST_DEBIAN)


@pytest.fixture(scope="module")
def inside(debian, run_inside, package):
    inside = functools.partial(run_inside, debian)
    inside("apt-get", "update", "-qq")
    inside("apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv")
    wheel = package("accel_toolkit-*.whl")
    shutil.copy(wheel, debian / "root")
    inside("python3", "-m", "venv", "/root/venv")
    inside("/root/venv/bin/pip", "install", "--no-index", f"/root/{wheel.name}")
    return inside


def test_program_starts(inside):
    assert inside(ACCEL, "--version").stdout.startswith("accel ")


def test_checkpoint_is_read_and_merged(debian, inside, checkpoint, weights):
    shutil.copytree(checkpoint, debian / "root/checkpoint")
    assert "layer.weight" in inside(ACCEL, "inspect", "--tensors", "/root/checkpoint").stdout
    inside(ACCEL, "merge-weights", "/root/checkpoint", "/root/merged")
    merged = safetensors.torch.load_file(debian / "root/merged/model.safetensors")
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights)


def test_program_of_two_ranks_is_launched(inside):
    result = inside(ACCEL, "launch", "--cpu", "--num_processes", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE >&2")
    assert sorted(result.stderr.splitlines()) == ["[rank1] rank 1 of 2", "rank 0 of 2"]
