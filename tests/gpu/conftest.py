"""The suite `gpu`: what can be seen on CUDA alone. Without a GPU every test of it is skipped, by name; with one none is."""

import pathlib

import pytest

HAS_GPU = any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def pytest_collection_modifyitems(items):
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
            if not HAS_GPU:
                item.add_marker(pytest.mark.skip(reason="there is no GPU here"))
