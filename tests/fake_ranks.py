"""One rank of a world whose other ranks do not exist, with the backend of src/train/c10d/fake_backend.hpp."""

import json
import os
import shutil
import subprocess


def resolve(accel_path, config, world):
    """Writes what the launcher would give to each of `world` ranks of `config` beside it, with the backend fake. No setting
    gives that backend, so the launcher's file is changed."""
    subprocess.run([accel_path, "launch", "--set", f"launch.worker={shutil.which('true')}", config], check=True,
                   capture_output=True, cwd=config.parent)
    document = json.loads((config.parent / "out/config.resolved.json").read_text())
    document["launch"]["backend"] = "fake"
    document["num_processes"] = world
    path = config.parent / "fake.json"
    path.write_text(json.dumps(document))
    return path


def command(accel_path, resolved, rank, world):
    """The program of rank `rank`, and its environment."""
    environment = {**os.environ, "ACCEL_CONFIG_FILE": str(resolved), "RANK": str(rank), "WORLD_SIZE": str(world),
                   "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return [accel_path.parent.parent / "train/accel-worker"], environment
