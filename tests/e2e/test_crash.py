"""Every command that writes, killed or failed at every system call that changes files (src/base/fault.hpp): the source
stays as it was, the target is absent, old or complete, and the next run of the command succeeds and tidies up."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

# SIGKILL instead of the call, after it, amid its bytes; the call fails; the disk is full from there on.
MODES = ("kill@{}", "killafter@{}", "torn@{}", "fail@{}:ENOSPC", "fail@{}:EIO", "full@{}")
TRANSFERS = ("write", "copy")
LEFTOVER = re.compile(r"^(\..*\.tmp|.*\.incomplete|.*\.deleting)-[0-9a-f]{8}-\d+-\d+$")

rows = []  # Of the table: command, calls, runs of each mode.


def tree(directory: pathlib.Path) -> dict[str, bytes]:
    """Path to content of all that lies below `directory`; a directory's path ends with a slash."""
    found = {}
    for parent, names, files in os.walk(directory):
        base = pathlib.Path(parent)
        found |= {f"{(base / name).relative_to(directory)}/": b"" for name in names}
        found |= {str((base / name).relative_to(directory)): (base / name).read_bytes() for name in files}
    return found


def visible(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without what a dead process left under names of its own."""
    return {path: data for path, data in found.items() if not any(map(LEFTOVER.match, path.strip("/").split("/")))}


def below(found: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {path: data for path, data in found.items() if path == name or path.startswith(name + "/")}


def beside(found: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {path: data for path, data in found.items() if path not in below(found, name)}


class Case:
    """A command that reads `source` and makes or changes `target`, both names in a directory of its own."""

    def __init__(self, *arguments, source="src", target="out", old=None, seal=None, again=(), removes_source=False):
        self.arguments = arguments
        self.source = source
        self.target = target
        self.old = old or {}  # What is in the target before.
        self.seal = seal  # Without it the output counts as absent.
        self.again = again  # More arguments for a run after one that was complete.
        self.removes_source = removes_source


INDEX = "model.safetensors.index.json"
OTHERS = {"README.md": b"mine", "notes/readme": b"text"}
# An earlier output of three shards, of which one is stale after a merge into fewer.
EARLIER = {f"model-0000{i}-of-00009.safetensors": b"earlier" for i in (1, 2, 9)} | {
    INDEX: b"earlier"
}
SHARDS = ("--max-shard-size", "2000B")
ONE = ("--threads", "1")  # So that the calls come in the same order each time.
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
        """The state before, the state after an undisturbed run, and the calls it made."""
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            directory = pathlib.Path(name)
            self.prepare(directory)
            before = tree(directory)
            with tempfile.NamedTemporaryFile() as log:
                result = self.run(directory, fault="count", log=log.name)
                assert result.returncode == 0, result.stderr
                calls = [line.split(" ", 2)[1] for line in pathlib.Path(log.name).read_text().splitlines()]
            return before, tree(directory), calls

    def check(self, mode, number, call, before, after):
        """One run with one fault; returns what is wrong with it, or nothing."""
        case = self.case
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            directory = pathlib.Path(name)
            self.prepare(directory)
            result = self.run(directory, fault=mode.format(number))
            raw = tree(directory)
            now = visible(raw)
            source_kept = beside(now, case.target) == beside(before, case.target)
            complete = below(now, case.target) == below(after, case.target)
            old = below(now, case.target) == below(before, case.target)

            def unsealed():
                # The files of an output without its seal, beside all that was there before.
                mine = below(now, case.target)
                kept = all(mine.get(path) == data for path, data in below(before, case.target).items())
                return case.seal is not None and f"{case.target}/{case.seal}" not in mine and kept

            if not source_kept and not (case.removes_source and complete):
                return "the source or something else is harmed"
            # Directories above the target may be there already; they hold nothing.
            absent = not any(not path.endswith("/") for path in below(now, case.target)) and not case.old
            if mode.startswith("fail") or mode.startswith("full"):
                problem = self.check_failure(result, raw, before, after, call)
                if problem:
                    return problem
            else:
                if result.returncode != -signal.SIGKILL:
                    return f"not killed: {result.returncode} {result.stderr}"
                if not (complete or old or absent or unsealed()):
                    return f"the target is a mixture: {sorted(below(now, case.target))}"

            gone = not below(now, case.source)
            again = self.run(directory, *(case.again if complete else ()))
            if gone:
                if again.returncode == 0:
                    return "a removed source was read"
            elif again.returncode != 0 and not (complete and "already there" in again.stderr):
                return f"the next run fails: {again.stderr}"
            final = tree(directory)
            if final != after and not (complete and "already there" in again.stderr and visible(final) == final):
                return f"after the next run: {sorted(final)} instead of {sorted(after)}"
            return None

    def check_failure(self, result, raw, before, after, call):
        if result.returncode == 0:
            # The output is complete; only tidying up went wrong, which is said.
            if visible(raw) != after:
                return "exit code 0 without the output"
            if raw != after and "warning: " not in result.stderr:
                return "exit code 0, and what is left behind is not told"
            return None
        if result.returncode != 1 or "error: " not in result.stderr:
            return f"exit code {result.returncode}, {result.stderr!r}"
        if not re.search("No space left on device|Input/output error", result.stderr):
            return f"an unclear message: {result.stderr!r}"
        if raw == before or raw == after:
            return None
        if self.case.removes_source and below(raw, self.case.target) == below(after, self.case.target):
            return None
        return f"left behind: {sorted(set(raw) - set(before))}, missing: {sorted(set(before) - set(raw))}"


def scratch():
    """In memory, where that is possible: thousands of syncs."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(scope="module")
def template(accel_path, tmp_path_factory):
    """`src`: a sharded checkpoint of two files, as torch writes it. `model.pt`: a TorchScript model it fits. `lost`: the
    checkpoint as accel writes it, without .metadata."""
    import torch
    import torch.distributed.checkpoint as dcp

    directory = tmp_path_factory.mktemp("template")
    generator = torch.Generator().manual_seed(0)
    model = {
        "a.weight": torch.rand(40, 30, generator=generator),
        "a.bias": torch.rand(40, generator=generator),
        "b.weight": torch.rand(30, 20, generator=generator).bfloat16(),
        "steps": torch.tensor(7),
    }
    writer = dcp.FileSystemWriter(directory / "src", thread_count=2)
    (directory / "assets").mkdir()
    (directory / "assets/config.json").write_text("{}")
    (directory / "assets/tokenizer.json").write_text("{}")
    dcp.save({"model": model}, storage_writer=writer, no_dist=True)
    module = torch.nn.Module()
    module.a = torch.nn.Linear(30, 40)
    module.b = torch.nn.Linear(20, 30, bias=False, dtype=torch.bfloat16)
    module.register_buffer("steps", torch.tensor(0))
    torch.jit.script(module).save(directory / "model.pt")
    command = [accel_path, "save", directory / "src", directory / "whole", "--type", "sharded", "--ranks", "2"]
    subprocess.run(command, check=True, capture_output=True)
    (directory / "whole/pytorch_model_fsdp_0").rename(directory / "lost")
    (directory / "lost/.metadata").unlink()
    (directory / "whole").rmdir()
    return directory


@pytest.mark.parametrize("name", CASES)
def test_every_point_in_every_mode(accel_path, template, name):
    case = CASES[name]
    runner = Runner(accel_path, case, template)
    before, after, calls = runner.reference()
    assert calls and below(after, case.target) != below(before, case.target)
    jobs = [
        (mode, number, call)
        for mode in MODES
        for number, call in enumerate(calls, 1)
        if not mode.startswith("torn") or call in TRANSFERS
        # Commands that write many small pieces: an eighth of those writes is enough for these two modes.
        if call not in TRANSFERS or mode not in ("fail@{}:EIO", "full@{}") or number % 8 == 0 or len(calls) < 40
    ]
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        problems = list(pool.map(lambda job: runner.check(*job, before, after), jobs))
    rows.append((name, len(calls), [sum(job[0] == mode for job in jobs) for mode in MODES]))
    wrong = [f"{mode.format(number)} ({call}): {what}" for (mode, number, call), what in zip(jobs, problems) if what]
    assert not wrong, "\n".join(wrong)


def test_zz_table():
    """Prints what was tried (pytest -s)."""
    modes = [mode.split("@")[0] + mode.partition(":")[1] + mode.partition(":")[2] for mode in MODES]
    print("\n" + " | ".join([f"{'command':34}", "calls", *modes, "all"]))
    for name, calls, counts in rows:
        cells = [f"{count:{len(mode)}}" for mode, count in zip(modes, counts)]
        print(" | ".join([f"{name:34}", f"{calls:5}", *cells, f"{sum(counts):3}"]))
    total = sum(sum(counts) for _, _, counts in rows)
    print(f"{total} runs in all")
    assert total > 0
