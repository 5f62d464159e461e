"""The exporter's wheel, and what an installation from a checkout leaves behind."""

import os
import pathlib
import shutil
import site
import zipfile

import pytest

EXPORTER = pathlib.Path("tools/export")


def listing(directory):
    return sorted(path.relative_to(directory) for path in directory.rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture(scope="module")
def exporter(fresh_venv, pip, package):
    """A virtual environment with the wheel. Torch and transformers, which it requires, are those of the tests."""
    venv = fresh_venv("exporter")
    pip(venv, "install", "--no-index", "--no-deps", package("accel_export-*.whl"))
    return venv


def test_wheel_has_the_package_and_its_manual_page(package, root):
    with zipfile.ZipFile(package("accel_export-*.whl")) as wheel:
        names = set(wheel.namelist())
    modules = {f"accel_export/{path.name}" for path in (root / EXPORTER / "accel_export").glob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    assert [name for name in names if name.endswith("/share/man/man1/accel-export.1")]


def test_help_and_message_without_torch(exporter, run_clean, tmp_path):
    program = exporter / "bin/accel-export"
    assert "MODEL_DIRECTORY" in run_clean(program, "--help", cwd=tmp_path).stdout
    result = run_clean(program, tmp_path, "model.pt2", cwd=tmp_path, code=2)
    assert "the package torch cannot be imported" in result.stderr
    assert "hint: pip install torch transformers" in result.stderr


def test_installed_exporter_exports(exporter, run_clean, toolkit, tmp_path):
    """The file is compared by the toolkit of the other wheel."""
    script = tmp_path / "export.py"
    script.write_text("""
import sys, torch, accel_export
assert sys.prefix in accel_export.__file__
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
accel_export.export(model, torch.zeros(3, 4), "model.pt2", layers=[], accel=sys.argv[1])
""")
    packages = os.pathsep.join(site.getsitepackages())
    run_clean(exporter / "bin/python", script, toolkit / "bin/accel", cwd=tmp_path, env={"PYTHONPATH": packages})
    assert "0.weight" in run_clean(toolkit / "bin/accel", "inspect", "--tensors", "model.pt2", cwd=tmp_path).stdout


def test_installation_leaves_nothing_in_the_checkout(exporter, pip, root, tmp_path):
    checkout = tmp_path / "export"
    shutil.copytree(root / EXPORTER, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    before = listing(checkout)
    pip(exporter, "install", "--no-deps", "--target", tmp_path / "installed", checkout)
    assert (tmp_path / "installed/accel_export/cli.py").exists()
    assert listing(checkout) == before
