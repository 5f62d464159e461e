"""The reference of keys in the guide and in accel.yaml(5) is that of the program."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import key_reference  # noqa: E402


@pytest.mark.parametrize("file", [key_reference.GUIDE, key_reference.MAN], ids=lambda file: file.name)
def test_the_reference_is_up_to_date(file, accel_path):
    text = key_reference.texts(accel_path)[file]
    if os.environ.get("ACCEL_ACCEPT"):
        file.write_text(text)
    assert file.read_text() == text, f"run tools/key_reference.py {accel_path}"


def test_the_manual_page_is_valid():
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", key_reference.MAN], capture_output=True, text=True)
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")


def test_every_key_that_works_is_in_the_reference(accel_path):
    sections = key_reference.sections_of(key_reference.schema_of(accel_path))
    paths = [path for keys in sections.values() for path, _ in keys]
    assert len(paths) >= 100
    assert {"num_processes", "fsdp_config.version", "launch.hang_timeout", "training.optimizer.lr"} <= set(paths)
