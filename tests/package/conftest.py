"""Fixtures of the tests that install the packages of dist/ in clean environments.

`tools/dev package-test` runs them all, `tools/dev test --all` those of the wheels that it makes: toolkit and export.
"""

import os
import pathlib
import shlex
import shutil
import subprocess

import pytest
import torch
import torch.distributed.checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]

# An installed program must not depend on the environment of the tests.
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def package():
    """package(PATTERN) returns the one file of dist/ that matches the pattern."""

    def found(pattern) -> pathlib.Path:
        files = sorted((ROOT / "dist").glob(pattern))
        assert len(files) == 1, f"dist/ has {[file.name for file in files]} for {pattern}; run tools/dev package"
        return files[0]

    return found


@pytest.fixture(scope="session")
def pip():
    """pip(VENV, ARGS...) runs pip of a virtual environment with the machine's pip configuration."""

    def run(venv, *args):
        result = subprocess.run([venv / "bin/python", "-m", "pip", "--disable-pip-version-check", *map(str, args)],
                                capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


@pytest.fixture(scope="session")
def fresh_venv(tmp_path_factory):
    """fresh_venv(NAME) makes a virtual environment with nothing but pip."""

    def made(name) -> pathlib.Path:
        venv = tmp_path_factory.mktemp(name)
        subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
        return venv

    return made


@pytest.fixture(scope="session")
def toolkit(fresh_venv, pip, package):
    """Makes a virtual environment with only the toolkit. pip gets no index, so a required package is an error."""
    venv = fresh_venv("toolkit")
    pip(venv, "install", "--no-index", package("accel_toolkit-*.whl"))
    return venv


@pytest.fixture(scope="session")
def run_clean():
    """run_clean(PROGRAM, ARGS..., cwd=DIR) runs an installed program with only the system's directories on PATH. `env` adds
    variables."""

    def run(program, *args, cwd, code=0, env=None):
        result = subprocess.run([program, *map(str, args)], cwd=cwd, env={**CLEAN, **(env or {})}, capture_output=True,
                                text=True, stdin=subprocess.DEVNULL, timeout=600)
        assert result.returncode == code, result.stdout + result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def debian_root(tmp_path_factory):
    """debian_root(RELEASE) makes a folder with a minimal Debian."""
    targets = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
                             capture_output=True, text=True, check=True).stdout
    sites = [site for site in targets.split() if site.endswith("/debian")]
    assert sites, "apt has no source whose address ends in /debian"
    made = []

    def make(release) -> pathlib.Path:
        directory = tmp_path_factory.mktemp(release)
        made.append(directory)
        result = subprocess.run(["debootstrap", "--variant=minbase", release, directory, sites[0]],
                                capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
        shutil.copy("/etc/resolv.conf", directory / "etc/resolv.conf")
        shutil.copytree("/etc/apt/apt.conf.d", directory / "etc/apt/apt.conf.d", dirs_exist_ok=True)
        return directory

    yield make
    # The fixture removes the folders, because pytest would keep their several hundred megabytes for a while.
    for directory in made:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def run_inside():
    """run_inside(ROOT, COMMAND...) runs a command in that Debian. Its /proc is unmounted when the command ends."""

    def run(directory, *command, code=0):
        script = f"mount -t proc proc {directory}/proc && exec chroot {directory} {shlex.join(map(str, command))}"
        result = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True,
                                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive",
                                     "HOME": "/root", "LC_ALL": "C.UTF-8"})
        assert result.returncode == code, result.stdout + result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def weights():
    return {"layer.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4), "layer.bias": torch.ones(3)}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, weights) -> pathlib.Path:
    """A sharded checkpoint that torch wrote."""
    directory = tmp_path_factory.mktemp("checkpoint") / "pytorch_model_fsdp_0"
    torch.distributed.checkpoint.save({"model": weights}, checkpoint_id=os.fspath(directory))
    return directory


@pytest.fixture(scope="session")
def completion_scripts() -> dict[str, str]:
    """The scripts below share/, by the shell that reads them."""
    return {"bash": "bash-completion/completions/accel", "zsh": "zsh/site-functions/_accel",
            "fish": "fish/vendor_completions.d/accel.fish"}


@pytest.fixture(scope="session")
def manual_pages() -> list[str]:
    return sorted(page.name for page in (ROOT / "man").glob("*.[15]"))
