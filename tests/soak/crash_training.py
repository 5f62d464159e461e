#!/usr/bin/env python3
"""Kills trainings while they save, lets them go on, and checks that nothing is lost.

    tools/dev crash MINUTES [--seed N] [--folder DIR]

Each round starts a training that saves continuously, in one of several kinds, and ends it up to three times: by SIGKILL
to one rank, to all ranks, to the launcher or to the guardian at a random time, or by a fault at a random call that
changes a file (killed, failed, half written, disk full). In a --folder on a small file system, such as a tmpfs of 64 MB,
the disk is also filled for real, except for some bytes, and emptied again before the run goes on. After each end every checkpoint under a final name must be
whole, and no process may be left. Then the run goes on undisturbed, and the files of its last checkpoint must be those
of a run that was never disturbed, bit for bit. A failure keeps the folder, and the command exits with 1.
"""

import argparse
import collections
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent), str(pathlib.Path(__file__).resolve().parent.parent / "e2e")]
import resume_cases  # noqa: E402

STEPS = 3 * resume_cases.N
CONTINUOUS = {"every": "continuous", "total_limit": 2}
BASE = {"dropout": 0.1, "data.shuffle": True}
KINDS = {
    "sharded, continuous": {**BASE, "checkpoint": CONTINUOUS},
    "sharded, every 2": {**BASE, "checkpoint": {"every": 2, "total_limit": 1}},
    "waiting, verified": {**BASE, "checkpoint": {"every": 2, "async": False, "verify": True}},
    "full": {**BASE, "checkpoint": CONTINUOUS, "fsdp_config.fsdp_state_dict_type": "FULL_STATE_DICT"},
    "little memory, 3 ranks": {**BASE, "processes": 3, "checkpoint": {**CONTINUOUS, "host_memory": 1}},
    "one rank": {**BASE, "processes": 1, "checkpoint": CONTINUOUS},
    "running statistics": {"model": "norm", "checkpoint": CONTINUOUS,
                           "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "NormBlock"},
}
FAULTS = ("kill@{}", "killafter@{}", "torn@{}", "full@{}", "fail@{}:EIO", "fail@{}:ENOSPC")
SMALL_DISK = 1 << 30  # A larger one is not filled.
VICTIMS = ("one rank", "all ranks", "launcher", "guardian")


class Failure(Exception):
    pass


def processes_of(mark):
    """The processes whose environment has `mark`: {pid: rank or None}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in variables:
            ranks = [value[5:].decode() for value in variables if value.startswith(b"RANK=")]
            found[int(entry.name)] = ranks[0] if ranks else None
    return found


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Campaign:
    def __init__(self, accel, folder, seed):
        self.accel = accel
        self.folder = folder
        self.random = random.Random(seed)
        self.ends = collections.Counter()
        self.references = {}
        self.runs = 0
        disk = os.statvfs(folder)
        self.victims = VICTIMS + ("small disk",) * 4 * (disk.f_blocks * disk.f_frsize < SMALL_DISK)

    def config(self, directory, kind, **more):
        return resume_cases.config(directory, KINDS[kind], STEPS, **{"log_every": 1000, **more})

    def launch(self, config, mark="CRASH=0"):
        name, value = mark.split("=")
        return subprocess.Popen([self.accel, "launch", config], env={**os.environ, "NO_COLOR": "1", name: value},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def reference(self, kind):
        """The manifest of the last checkpoint, the seconds and the file calls of an undisturbed run."""
        if kind not in self.references:
            directory = self.folder / f"reference_{len(self.references)}"
            resume_cases.prepare(directory, KINDS[kind])
            log = directory / "calls"
            worker = resume_cases.faulty_worker(directory, self.accel, 0, f"ACCEL_FAULT_LOG={log}")
            begin = time.monotonic()
            process = self.launch(self.config(directory, kind, **{"launch.worker": worker}))
            said, _ = process.communicate(timeout=300)
            if process.returncode != 0:
                raise Failure(f"an undisturbed run failed:\n{said}")
            self.references[kind] = (resume_cases.manifest(directory, STEPS), time.monotonic() - begin,
                                     len(log.read_text().splitlines()))
        return self.references[kind]

    def disturb(self, directory, kind):
        """Runs the training with one disturbance; returns whether it ended well nevertheless."""
        _, seconds, calls = self.reference(kind)
        self.runs += 1
        mark = f"CRASH={os.getpid()}.{self.runs}"
        ranks = KINDS[kind].get("processes", 2)
        fault = self.random.random() < 0.5
        more = {}
        if fault:
            plan = self.random.choice(FAULTS).format(self.random.randint(1, calls))
            more["launch.worker"] = resume_cases.faulty_worker(directory, self.accel, self.random.randrange(ranks),
                                                               f"ACCEL_FAULT={plan}")
        what = plan.split("@")[0] if fault else self.random.choice(self.victims)
        filler = self.folder / "filler"
        if what == "small disk":
            leaves = self.random.randrange(4 << 20)  # A checkpoint of these models takes 0.9 MB.
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(self.folder).free - leaves))
        process = self.launch(self.config(directory, kind, **more), mark)
        if not fault and what != "small disk":
            time.sleep(self.random.uniform(0.3, 1.0) * seconds)
            found = processes_of(mark)
            workers = [pid for pid, rank in found.items() if rank is not None]
            others = [pid for pid, rank in found.items() if rank is None and pid != process.pid]
            targets = {"one rank": workers[:1] if self.random.random() < 0.5 else workers[-1:], "all ranks": workers,
                       "launcher": [process.pid], "guardian": others}[what]
            for pid in targets:
                kill(pid)
        try:
            said, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            raise Failure(f"{what}: the run does not end") from None
        filler.unlink(missing_ok=True)
        self.ends[what, process.returncode] += 1
        deadline = time.monotonic() + 40
        while processes_of(mark):
            if time.monotonic() > deadline:
                raise Failure(f"{what}: processes are left: {processes_of(mark)}\n{said}")
            time.sleep(0.05)
        self.check_checkpoints(directory, what, said)
        return process.returncode == 0

    def check_checkpoints(self, directory, what, said):
        folder = directory / "out/checkpoints"
        for path in sorted(folder.glob("checkpoint_*")) if folder.is_dir() else []:
            if path.suffix:
                continue
            done = subprocess.run([self.accel, "verify", path], capture_output=True, text=True)
            if done.returncode != 0:
                raise Failure(f"{what}: {path.name} is not whole:\n{done.stdout}{done.stderr}\n{said}")

    def round(self):
        kind = self.random.choice(list(KINDS))
        directory = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        resume_cases.prepare(directory, KINDS[kind])
        manifest = self.reference(kind)[0]
        for _ in range(self.random.randint(1, 3)):
            if self.disturb(directory, kind):
                break
        process = self.launch(self.config(directory, kind))
        said, _ = process.communicate(timeout=300)
        if process.returncode != 0:
            raise Failure(f"{kind}: the run does not go on:\n{said}")
        if resume_cases.manifest(directory, STEPS) != manifest:
            raise Failure(f"{kind}: the last checkpoint differs from that of an undisturbed run; see {directory}\n{said}")
        left = [path.name for path in (directory / "out/checkpoints").iterdir() if path.suffix]
        if left:
            raise Failure(f"{kind}: left over: {left}")
        shutil.rmtree(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--accel", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=pathlib.Path, help="where the runs lie, for example on a small tmpfs")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.folder))
    campaign = Campaign(options.accel, folder, options.seed)
    print(f"seed {options.seed}, runs in {folder}", flush=True)
    end = time.monotonic() + 60 * options.minutes
    rounds = 0
    try:
        while time.monotonic() < end:
            campaign.round()
            rounds += 1
    except Failure as failure:
        raise SystemExit(f"round {rounds + 1}, seed {options.seed}: {failure}") from None
    finally:
        for (what, code), count in sorted(campaign.ends.items()):
            print(f"{count:5}  {what}, exit code {code}")
        print(f"{campaign.runs} disturbed runs in {rounds} rounds")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
