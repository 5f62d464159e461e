"""The executable starts fast and does not link libtorch."""

import importlib.metadata
import re
import subprocess
import time

FOREIGN = re.compile(r"torch|c10|nccl|cuda|cudnn|gloo|python", re.IGNORECASE)


def test_links_no_libtorch(accel_path):
    dynamic = subprocess.run(["readelf", "-d", accel_path], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert any(name.startswith("libc.so") for name in needed), "readelf shows no libraries at all"
    assert not [name for name in needed if FOREIGN.search(name)]
    loaded = subprocess.run(["ldd", accel_path], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0].rsplit("/", 1)[-1] for line in loaded.splitlines()]
    assert not [name for name in names if FOREIGN.search(name)]


def test_version_names_the_commit_libtorch_and_nccl(accel):
    version, commit, libtorch, nccl = accel("--version").stdout.splitlines()
    assert re.fullmatch(r"accel \d+\.\d+\.\d+", version)
    assert re.fullmatch(r"commit ([0-9a-f]{12}(-dirty)?|unknown)", commit)
    assert libtorch == f"libtorch {importlib.metadata.version('torch').split('+')[0]}"
    assert re.fullmatch(r"NCCL (\d+\.\d+\.\d+|none)", nccl)


def test_starts_at_once(accel_path):
    def seconds():
        begin = time.perf_counter()
        subprocess.run([accel_path, "--version"], check=True, capture_output=True)
        return time.perf_counter() - begin

    # The fastest of ten runs counts, because other work may run beside the tests. The limit has a tenfold slack, and
    # loading libtorch takes far longer.
    assert min(seconds() for _ in range(10)) < 0.1
