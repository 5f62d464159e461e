"""The suite `gpu` tests training on an accelerator, each test on a GPU and on the simulated device of tests/sim, which
needs no GPU and reports each access that nothing orders (docs/simulated-device.md). What needs a GPU is skipped by name
where there is none, or only one."""

import os
import pathlib

import pytest

from gpu_runs import real_gpus

GPUS = real_gpus()
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", pathlib.Path(__file__).resolve().parents[2] / "build"))
SIM = BUILD / "tests/sim/accel-sim.so"


def is_ours(path):
    return pathlib.Path(__file__).parent in pathlib.Path(path).parents


def pytest_configure(config):
    config.addinivalue_line("markers", "cuda: what only CUDA has")
    config.addinivalue_line("markers", "sim: on the simulated device")
    config.addinivalue_line("markers", "gpus(count): needs so many GPUs, or the simulated device")


def pytest_generate_tests(metafunc):
    if is_ours(metafunc.definition.path):
        kinds = ["cuda"] if metafunc.definition.get_closest_marker("cuda") else ["cuda", "sim"]
        metafunc.parametrize("accelerator", kinds, indirect=True)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if not is_ours(item.path):
            continue
        item.add_marker("gpu")
        asked = item.get_closest_marker("gpus")
        needed = asked.args[0] if asked else 1
        if item.callspec.params["accelerator"] == "sim":
            item.add_marker("sim")
            if not SIM.exists():
                item.add_marker(pytest.mark.skip(reason="this build has no simulated device"))
        elif needed > GPUS:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} GPU{'s' * (needed > 1)}, and there are {GPUS}"))


@pytest.fixture(autouse=True)
def accelerator(request, monkeypatch):
    """The kind of the device: "cuda", or "sim"."""
    if request.param == "sim":
        monkeypatch.setenv("ACCEL_DEVICE_MODULE", str(SIM))
        # Peers that were imported by other tests of this process hide the machine's GPUs.
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return request.param
