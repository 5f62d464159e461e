"""The kernels for float8 are text that NVRTC compiles on the machine that runs them. It needs no GPU to compile."""

import ctypes
import importlib.util
import pathlib
import re

import pytest


@pytest.fixture(scope="module")
def nvrtc(accel_path):
    if not (accel_path.parent.parent / "train/accel-cuda.so").exists():
        pytest.skip("built without the NCCL and CUDA headers")
    packages = pathlib.Path(importlib.util.find_spec("torch").origin).parent.parent
    return ctypes.CDLL(str(next(packages.glob("nvidia/*/lib/libnvrtc.so.*"))))


# The first GPU with float8, Hopper, and two kinds of Blackwell.
@pytest.mark.parametrize("target", ["sm_89", "sm_90", "sm_100", "sm_120"])
def test_they_compile(nvrtc, root, target):
    source = re.search(r'R"cuda\((.*)\)cuda"', (root / "src/train/device/float8_source.hpp").read_text(), re.DOTALL)[1]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"float8.cu", 0, None, None) == 0
    code = nvrtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(f"--gpu-architecture={target}".encode()))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0 and not log.value, log.value.decode()
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    for dtype in ("float32", "float16", "bfloat16"):
        for kernel in ("largest", "cast", "flat"):
            assert f"{kernel}_{dtype}".encode() in binary.raw
    assert b"transpose" in binary.raw
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
