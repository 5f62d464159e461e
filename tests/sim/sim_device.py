"""Makes the simulated device known to torch in this process, as torch.device("sim")."""

import ctypes
import os
import pathlib
import types

import torch

BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", pathlib.Path(__file__).resolve().parents[2] / "build"))
MODULE = BUILD / "tests/sim/accel-sim.so"


def load():
    ctypes.CDLL(str(MODULE), mode=ctypes.RTLD_GLOBAL)
    module = types.ModuleType("torch.sim")
    for name, value in {"is_available": True, "is_initialized": True, "_is_in_bad_fork": False, "device_count": 8,
                        "current_device": 0}.items():
        setattr(module, name, lambda value=value: value)
    torch._register_device_module("sim", module)
    return torch.device("sim:0")
