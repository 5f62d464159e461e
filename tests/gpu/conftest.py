"""The suite `gpu` tests what needs CUDA. Without a GPU, pytest skips each test by name; with one GPU, only those that
need several.

With ACCEL_GPU_PART=K/N, every N-th test runs, from the K-th on, so that N processes can share the GPU (docs/gpu.md)."""

import os
import pathlib

import pytest

HAS_GPU = any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if pathlib.Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker("gpu")
        if not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))
    part, parts = map(int, os.environ.get("ACCEL_GPU_PART", "1/1").split("/"))
    others = [item for place, item in enumerate(ours) if place % parts != part - 1]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
