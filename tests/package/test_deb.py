"""The Debian packages, installed by apt in a Debian that debootstrap makes."""

import functools
import os
import re
import shutil
import subprocess

import pytest
import safetensors.torch
import torch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap and chroot need root")


@pytest.fixture(scope="module")
def debian(debian_root):
    release = re.search(r"^VERSION_CODENAME=(\w+)", open("/etc/os-release").read(), re.MULTILINE).group(1)
    return debian_root(release)


@pytest.fixture(scope="module")
def inside(debian, run_inside):
    return functools.partial(run_inside, debian)


@pytest.fixture(scope="module")
def installed(debian, inside, package):
    """Installs the package, its debug files and their dependencies with apt."""
    for pattern in ("accel_*.deb", "accel-dbgsym_*.deb"):
        shutil.copy(package(pattern), debian / "root")
    inside("apt-get", "update", "-qq")
    inside("sh", "-c", "apt-get install -y -qq --no-install-recommends /root/accel_*.deb /root/accel-dbgsym_*.deb")
    return debian


def test_program_runs(installed, inside):
    lines = inside("accel", "--version").stdout.splitlines()
    assert re.fullmatch(r"accel \d+\.\d+\.\d+", lines[0])
    assert lines[2:] == ["libtorch none", "NCCL none"]


def test_manual_pages_configs_and_examples_are_there(installed, manual_pages, root):
    pages = sorted(page.name.removesuffix(".gz") for page in (installed / "usr/share/man").glob("man?/accel*"))
    assert pages == manual_pages
    assert (installed / "usr/share/accel/configs/quickstart.yaml").read_text() == (
        root / "configs/quickstart.yaml").read_text()
    assert (installed / "usr/share/accel/examples/export_gpt.py").exists()


def test_completion_scripts_are_there(installed, inside, completion_scripts):
    for shell, path in {**completion_scripts, "zsh": "zsh/vendor-completions/_accel"}.items():
        assert (installed / "usr/share" / path).read_text() == inside("accel", "completion", shell).stdout


def test_checkpoint_is_read_and_merged(installed, inside, checkpoint, weights):
    shutil.copytree(checkpoint, installed / "root/checkpoint")
    assert "layer.weight" in inside("accel", "inspect", "--tensors", "/root/checkpoint").stdout
    inside("accel", "merge-weights", "/root/checkpoint", "/root/merged")
    merged = safetensors.torch.load_file(installed / "root/merged/model.safetensors")
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights)


def test_debug_files_belong_to_the_program(installed):
    program = installed / "usr/bin/accel"
    assert ".symtab" not in subprocess.run(["readelf", "-SW", program], capture_output=True, text=True).stdout
    notes = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True).stdout
    build_id = re.search(r"Build ID: (\w+)", notes).group(1)
    debug = installed / f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    assert ".debug_line" in subprocess.run(["readelf", "-SW", debug], capture_output=True, text=True, check=True).stdout


def test_removal_leaves_nothing(installed, inside):
    inside("apt-get", "purge", "-y", "-qq", "accel", "accel-dbgsym")
    assert not (installed / "usr/bin/accel").exists()
    assert not (installed / "usr/share/accel").exists()
