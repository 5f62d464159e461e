"""Makes the wheel of accel-worker: python worker_wheel.py BUILD REQUIREMENTS DIR

BUILD is a build folder with the worker. REQUIREMENTS is the file that pins its torch. The wheel is written to DIR. Its
programs are in the package accel_worker. pip installs it beside the package torch, so the same run path finds libtorch
under every Python.
"""

import pathlib
import re
import shutil
import subprocess
import sys

RUN_PATH = "$ORIGIN/../torch/lib"
PACKAGE = '"""accel-worker, which `accel launch` starts for each rank. There is nothing to import."""\n'


def main(build, requirements, directory):
    version = subprocess.run([build / "src/cli/accel", "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    torch = re.search(r"^torch==\S+$", requirements.read_text(), re.MULTILINE).group()
    root = directory / "content"
    package = root / "accel_worker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    for name in ("accel-worker", "accel-cuda.so"):
        made = build / "src/train" / name
        if name == "accel-cuda.so" and not made.exists():
            continue
        shutil.copy(made, package)
        subprocess.run(["strip", "--strip-unneeded", package / name], check=True)
        subprocess.run(["patchelf", "--set-rpath", RUN_PATH, package / name], check=True)
    information = root / f"accel_worker-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"""Metadata-Version: 2.4
Name: accel-worker
Version: {version}
Summary: The worker of accel: trains TorchScript models with the libtorch of the torch package
License-Expression: Apache-2.0
Requires-Dist: {torch}
""")
    (information / "WHEEL").write_text("""Wheel-Version: 1.0
Generator: accel
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
""")
    subprocess.run([sys.executable, "-m", "wheel", "pack", root, "--dest-dir", directory], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(root)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
