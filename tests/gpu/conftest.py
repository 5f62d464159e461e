"""The suite `gpu` tests what needs CUDA. Without a GPU, pytest skips each test by name; with one GPU, only those that
need several (docs/gpu.md)."""

import pathlib

import pytest

HAS_GPU = any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if pathlib.Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker("gpu")
        if not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))
