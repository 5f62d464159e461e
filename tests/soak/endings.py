"""Kills or stops commands and trainings at random moments, or lets them run out of space."""

import filecmp
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import time
import uuid

import commands
import sources
import torch

sys.path.insert(0, str(sources.TESTS / "e2e"))
import faults  # noqa: E402
import train_runs  # noqa: E402

COMMANDS = {
    "merge-weights": ["merge-weights", "src/model.bin", "out"],
    "merge-weights, shards": ["merge-weights", "src/model.bin", "out", "--max-shard-size", "3MB"],
    "save full": ["save", "src/model.bin", "out", "--type", "full"],
    "save local": ["save", "src/model.bin", "out", "--type", "local", "--ranks", "3"],
    "save sharded": ["save", "src/model.bin", "out", "--type", "sharded", "--ranks", "3"],
    "verify": ["verify", "src/model.bin"],
    "diff": ["diff", "src/model.bin", "src/model.bin"],
}


def same_tree(left: pathlib.Path, right: pathlib.Path) -> bool:
    mine, theirs = (sorted(path.relative_to(top) for path in top.rglob("*") if path.is_file()) for top in (left, right))
    return mine == theirs and all(filecmp.cmp(left / name, right / name, shallow=False) for name in mine)


class Kills:
    """Sends SIGKILL, SIGTERM or SIGINT to a command at a random moment."""

    name = "kill"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel = accel
        self.template = work / "large"
        (self.template / "src").mkdir(parents=True)
        generator = torch.Generator().manual_seed(1)
        torch.save({f"layer.{i}": torch.rand(512, 1024, generator=generator) for i in range(6)},
                   self.template / "src/model.bin")
        self.seconds, self.complete = {}, {}
        for name, words in COMMANDS.items():
            complete = work / "complete" / name
            complete.mkdir(parents=True)
            (complete / "src").symlink_to(self.template / "src")
            result = commands.run([accel, *words], complete)
            assert result.code == 0, result.text
            self.seconds[name], self.complete[name] = result.seconds, complete / "out"

    def one(self, rng: random.Random, directory: pathlib.Path):
        name = rng.choice(list(COMMANDS))
        number = rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        (directory / "src").symlink_to(self.template / "src")
        running = commands.Running([self.accel, *COMMANDS[name]], directory)
        moment = rng.random() * self.seconds[name] * 1.1
        time.sleep(moment)
        running.send(number)
        asked = time.monotonic()
        result = running.finish(20)
        variant = f"{name}, {signal.Signals(number).name}"
        return variant, self.judge(name, number, directory, result, time.monotonic() - asked, moment)

    def judge(self, name, number, directory, result, waited, moment):
        code = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        early = {signal.SIGKILL: -9, signal.SIGTERM: -15, signal.SIGINT: -2}[number]  # The signal came before main.
        if result.code not in (0, code, early):
            return f"after {moment:.3f} s: exit code {result.code}\n{result.text}"
        if waited > 5:
            return f"after {moment:.3f} s: {waited:.1f} s to the end\n{result.text}"
        if result.code != early and (problem := result.misconduct(allowed={0, code})):
            return f"after {moment:.3f} s: {problem}\n{result.text}"
        out, complete = directory / "out", self.complete[name]
        if not complete.exists():
            return None
        if result.code == 0:
            return None if same_tree(out, complete) else f"exit code 0, but the output is not whole: {list(out.rglob('*'))}"
        visible = {path for path in faults.visible(faults.tree(directory)) if path.startswith("out/") and not path.endswith("/")}
        # A signal may arrive after the output is complete and before the command reports it.
        if number != signal.SIGKILL and result.code == code and len(os.listdir(directory)) > 1 and not same_tree(out, complete):
            return f"interrupted after {moment:.3f} s, it left {sorted(str(p) for p in directory.rglob('*'))}"
        if visible and not same_tree(out, complete):
            # Shards are not a checkpoint without their index, so they may be there before it.
            if not (name == "merge-weights, shards" and "out/model.safetensors.index.json" not in visible):
                return f"killed after {moment:.3f} s, it left {visible}"
        again = commands.run([self.accel, *COMMANDS[name]], directory)
        if again.code != 0 and "already there" not in again.text:
            return f"the run after a kill at {moment:.3f} s: exit code {again.code}\n{again.text}"
        if not same_tree(out, complete):
            return f"the run after a kill at {moment:.3f} s gives another output: {list(out.rglob('*'))}"
        if again.code == 0 and sorted(os.listdir(directory)) != ["out", "src"]:
            return f"the run after a kill at {moment:.3f} s leaves {sorted(os.listdir(directory))}"
        return None


class FullDisks:
    """Lets a command run out of space, by a random file size limit or by fault injection at a random write. The command
    must leave no output and print a clear message."""

    name = "full disk"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel = accel
        self.kills = Kills(accel, work / "full-disk")

    def one(self, rng: random.Random, directory: pathlib.Path):
        name = rng.choice([name for name in COMMANDS if name not in ("verify", "diff")])
        (directory / "src").symlink_to(self.kills.template / "src")
        if rng.random() < 0.5:
            return name, self.full(name, rng.randrange(1, 60), directory)
        limit = rng.choice((0, rng.randrange(1, 5000), rng.randrange(1, 14_000_000)))
        result = commands.run([self.accel, *COMMANDS[name]], directory,
                              preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        return name, self.judge(name, limit, directory, result)

    def full(self, name, number, directory):
        """Runs the command with fault injection that reports a full disk from the `number`th write on."""
        result = commands.run([self.accel, *COMMANDS[name]], directory, environment={"ACCEL_FAULT": f"full@{number}"})
        if result.code == 0:
            return None if same_tree(directory / "out", self.kills.complete[name]) else f"write {number}: exit code 0 without the output"
        if result.code != 1 or "No space left on device" not in result.text:
            return f"write {number}: exit code {result.code}\n{result.text}"
        left = sorted(os.listdir(directory))
        return None if left == ["src"] else f"write {number}: it left {left}"

    def judge(self, name, limit, directory, result):
        out = directory / "out"
        if result.code == 0:
            return None if same_tree(out, self.kills.complete[name]) else f"limit {limit}: exit code 0 without the output"
        if result.code != 1:
            return f"limit {limit}: exit code {result.code}\n{result.text}"
        # stderr is a file here, so a low limit truncates the message.
        if limit > 1000 and "File too large" not in result.text:
            return f"limit {limit}: an unclear message\n{result.text}"
        left = sorted(os.listdir(directory))
        return None if left == ["src"] else f"limit {limit}: it left {left}"


class Trainings:
    """Kills processes of a training at a random moment, or lets it run out of space. No process and no torn checkpoint
    may remain."""

    name = "training"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel = accel
        self.template = work / "training"
        self.template.mkdir(parents=True)
        train_runs.export(self.template / "gpt.pt", layers=1, width=16)

    def one(self, rng: random.Random, directory: pathlib.Path):
        shutil.copy(self.template / "gpt.pt", directory)
        config = train_runs.config(directory, max_steps=40, checkpoint={"every": 1, "total_limit": 3, "resume": "none"})
        what = rng.choice(("launcher", "launcher and guardian", "a rank", "both ranks", "SIGTERM", "full disk"))
        mark = f"ACCEL_SOAK_MARK={uuid.uuid4()}"
        name, value = mark.split("=")
        scratch = directory / "tmp"
        scratch.mkdir()
        limit = rng.randrange(4000, 90_000)
        preexec = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if what == "full disk" else None
        running = commands.Running([self.accel, "launch", config], directory, {name: value, "TMPDIR": str(scratch)}, preexec)
        if what != "full disk":
            deadline = time.monotonic() + 20
            while not (directory / "out/metrics.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(rng.random() * 1.5)
            self.strike(what, running, mark, rng)
        result = running.finish(60)
        problem = commands.left_behind(mark) or self.judge(what, result, directory)
        return what, problem and f"{problem}\n{result.text[-2000:]}"

    @staticmethod
    def strike(what, running, mark, rng):
        if what == "SIGTERM":
            running.send(signal.SIGTERM)
            return
        others = [pid for pid in commands.with_mark(mark) if pid != running.pid]
        workers = [pid for pid in others if os.path.exists(f"/proc/{pid}/exe")
                   and os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("accel-worker")]
        victims = {"launcher": [running.pid], "launcher and guardian": [running.pid, *(set(others) - set(workers))],
                   "a rank": rng.sample(workers, min(1, len(workers))), "both ranks": workers}[what]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def judge(self, what, result, directory):
        codes = {"launcher": {-9, 0}, "launcher and guardian": {-9, 0}, "a rank": {6, 0}, "both ranks": {6, 0},
                 "SIGTERM": {143, 7, 0}, "full disk": {0, 1, 6}}[what]
        if result.code not in codes:
            return f"exit code {result.code}"
        store = directory / "out/checkpoints"
        if result.code == 0:
            kept = sorted(os.listdir(store))
            if kept != ["checkpoint_38", "checkpoint_39", "checkpoint_40"]:
                return f"exit code 0, but the checkpoints are {kept}"
        for checkpoint in sorted(store.iterdir()) if store.exists() else []:
            if checkpoint.name.removeprefix("checkpoint_").isdigit():
                verified = commands.run([self.accel, "verify", checkpoint], directory)
                if verified.code != 0:
                    return f"{checkpoint.name} is torn: {verified.text}"
        return None
