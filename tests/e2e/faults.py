"""Commands that write files, and a runner that injects faults into them (src/base/files/fault.hpp)."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

LEFTOVER = re.compile(r"^(\..*\.tmp|.*\.incomplete|.*\.deleting)-[0-9a-f]{8}-\d+-\d+$")


def tree(directory: pathlib.Path) -> dict[str, bytes]:
    """Maps each path below `directory` to its content. A directory's path ends with a slash."""
    found = {}
    for parent, names, files in os.walk(directory):
        base = pathlib.Path(parent)
        found |= {f"{(base / name).relative_to(directory)}/": b"" for name in names}
        found |= {str((base / name).relative_to(directory)): (base / name).read_bytes() for name in files}
    return found


def visible(found: dict[str, bytes]) -> dict[str, bytes]:
    """Returns `found` without the leftovers of a killed process."""
    return {path: data for path, data in found.items() if not any(map(LEFTOVER.match, path.strip("/").split("/")))}


def below(found: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {path: data for path, data in found.items() if path == name or path.startswith(name + "/")}


def beside(found: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {path: data for path, data in found.items() if path not in below(found, name)}


class Case:
    """A command that reads `source` and creates or changes `target`. Both are names in the directory of the run."""

    def __init__(self, *arguments, source="src", target="out", old=None, seal=None, again=(), removes_source=False):
        self.arguments = arguments
        self.source = source
        self.target = target
        self.old = old or {}  # The target's files before the run.
        self.seal = seal  # Without this file the output counts as absent.
        self.again = again  # Extra arguments for a second run after a complete one.
        self.removes_source = removes_source


INDEX = "model.safetensors.index.json"
OTHERS = {"README.md": b"mine", "notes/readme": b"text"}
# An earlier output of three shards. A merge into fewer shards makes one of them stale.
EARLIER = {f"model-0000{i}-of-00009.safetensors": b"earlier" for i in (1, 2, 9)} | {
    INDEX: b"earlier"
}
SHARDS = ("--max-shard-size", "2000B")
ONE = ("--threads", "1")  # One thread makes the system calls in the same order in each run.
MERGE = ("merge-weights", *ONE, "src", "out")

CASES = {
    "merge-weights": Case(*MERGE),
    "merge-weights, to a file": Case("merge-weights", *ONE, "src", "new/model.safetensors", target="new"),
    "merge-weights, into a directory": Case(*MERGE, old=OTHERS),
    "merge-weights --force": Case(*MERGE, "--force", old={**OTHERS, "model.safetensors": b"earlier"}),
    "merge-weights, shards": Case(*MERGE, *SHARDS),
    "merge-weights, shards, into a directory": Case(*MERGE, *SHARDS, old=OTHERS, seal=INDEX),
    "merge-weights, shards, --force": Case(*MERGE, *SHARDS, "--force", old={**OTHERS, **EARLIER}),
    "merge-weights --unsafe-serialization": Case(*MERGE, "--unsafe-serialization"),
    "merge-weights --copy-assets": Case(*MERGE, "--copy-assets", "assets", seal="model.safetensors", old=OTHERS),
    "merge-weights --remove-checkpoint-dir": Case(*MERGE, "--remove-checkpoint-dir", "--force", removes_source=True),
    "save --type full": Case("save", *ONE, "src", "out", "--type", "full"),
    "save --type full --force": Case(
        "save", *ONE, "src", "out", "--type", "full", "--force", old={**OTHERS, "pytorch_model_fsdp.bin": b"earlier"}
    ),
    "save --type local": Case("save", *ONE, "src", "out", "--type", "local", "--ranks", "2"),
    "save --type sharded": Case("save", *ONE, "src", "out", "--type", "sharded", "--ranks", "2"),
    "save --type sharded --force": Case(
        *("save", *ONE, "src", "out", "--type", "sharded", "--ranks", "2", "--force"),
        old={f"pytorch_model_fsdp_0/{name}": b"earlier" for name in (".metadata", "__0_0.distcp", "__7_0.distcp")},
    ),
    "load": Case("load", *ONE, "src", "--into", "model.pt", "--out", "new.pt", target="new.pt"),
    "load --force": Case("load", *ONE, "src", "--into", "model.pt", "--out", "model.pt", "--force", target="model.pt"),
    "repair": Case("repair", "lost", target="lost", again=("--force",)),
}


def scratch():
    """Returns a directory in memory if there is one, because the runs sync thousands of times."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Runner:
    def __init__(self, accel_path, case, template):
        self.accel_path = accel_path
        self.case = case
        self.template = template

    def prepare(self, directory):
        shutil.copytree(self.template, directory, dirs_exist_ok=True)
        for name, text in self.case.old.items():
            path = directory / self.case.target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)

    def run(self, directory, *more, fault=None, log=None):
        environment = {**os.environ, "NO_COLOR": "1"}
        if fault:
            environment["ACCEL_FAULT"] = fault
        if log:
            environment["ACCEL_FAULT_LOG"] = str(log)
        command = [self.accel_path, *self.case.arguments, *more]
        return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)

    def reference(self):
        """Returns the tree before and after a run without faults, and the calls of that run."""
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            directory = pathlib.Path(name)
            self.prepare(directory)
            before = tree(directory)
            with tempfile.NamedTemporaryFile() as log:
                result = self.run(directory, fault="count", log=log.name)
                assert result.returncode == 0, result.stderr
                calls = [line.split(" ", 2)[1] for line in pathlib.Path(log.name).read_text().splitlines()]
            return before, tree(directory), calls
