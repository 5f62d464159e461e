"""Runs campaigns of hostile use against the installed programs for MINUTES.

    tools/dev soak MINUTES [--seed N] [--only CAMPAIGN ...] [--found DIR]

Every core runs the campaigns in turn. Each failure is written to a folder of its own in DIR, with the files and the
command, and the exit code is then 1. The seed makes the order of cases repeatable, but not the moments of signals.
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import configs  # noqa: E402
import endings  # noqa: E402
import launches  # noqa: E402
import mutations  # noqa: E402
import together  # noqa: E402

# The share of the time that each campaign gets.
CAMPAIGNS = {mutations.Mutations: 0.4, endings.Kills: 0.15, endings.FullDisks: 0.05, endings.Trainings: 0.15,
             launches.Launches: 0.1, together.Together: 0.05, configs.Configs: 0.1}
REPORT_S = 60


class Worker:
    """One process of the soak. It always runs the campaign that has used the least of its share."""

    def __init__(self, accel, work, seed, only, found):
        self.accel, self.work, self.found = accel, work, found
        self.rng = random.Random(seed)
        self.counts = collections.Counter()
        self.wrong = collections.Counter()
        self.campaigns = {}
        for kind, share in CAMPAIGNS.items():
            if not only or kind.name in only:
                self.campaigns[kind(accel, work / kind.name)] = share
        self.spent = dict.fromkeys(self.campaigns, 0.0)

    def one(self):
        campaign = min(self.campaigns, key=lambda c: self.spent[c] / self.campaigns[c])
        begin = time.monotonic()
        directory = pathlib.Path(tempfile.mkdtemp(prefix="case-", dir=self.work))
        seed = self.rng.randrange(1 << 62)
        try:
            variant, problem = campaign.one(random.Random(seed), directory)
        except Exception:  # noqa: BLE001  A defect of the soak itself is reported and does not end it.
            variant, problem = "the soak itself", traceback.format_exc()
        self.counts[f"{campaign.name}: {variant}"] += 1
        if problem:
            self.wrong[f"{campaign.name}: {variant}"] += 1
            self.keep(campaign.name, seed, problem, directory)
        shutil.rmtree(directory, ignore_errors=True)
        self.spent[campaign] += time.monotonic() - begin

    def keep(self, name, seed, problem, directory):
        number = len(list(self.found.iterdir()))
        if number >= 200:
            return
        target = self.found / f"{number:03}-{name.replace(' ', '-')}-{os.getpid()}"
        target.mkdir()
        (target / "problem.txt").write_text(f"seed {seed}\n{problem}\n")
        size = sum(path.lstat().st_size for path in directory.rglob("*"))
        if size < 20_000_000:
            # cp copies FIFOs and links as they are.
            os.spawnlp(os.P_WAIT, "cp", "cp", "-a", str(directory), str(target / "files"))


def work_until(deadline, accel, work, seed, only, found, pipe):
    worker = Worker(accel, work, seed, only, found)
    last = 0.0
    while time.monotonic() < deadline:
        worker.one()
        if time.monotonic() - last > 5:
            last = time.monotonic()
            pipe.send((worker.counts, worker.wrong))
    pipe.send((worker.counts, worker.wrong))
    pipe.close()


def total(parts):
    return sum(parts, collections.Counter())


def report(counts, wrong, seconds):
    lines = [f"{sum(counts.values())} cases in {seconds / 60:.1f} min, {sum(wrong.values())} wrong"]
    by_campaign = collections.Counter()
    for name, count in counts.items():
        by_campaign[name.split(":")[0]] += count
    lines += [f"  {name}: {count} cases" for name, count in sorted(by_campaign.items())]
    lines += [f"  WRONG {name}: {count} of {counts[name]}" for name, count in sorted(wrong.items())]
    return "\n".join(lines)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accel", type=pathlib.Path)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", action="append", choices=[kind.name for kind in CAMPAIGNS])
    parser.add_argument("--found", type=pathlib.Path, default=pathlib.Path("soak-found"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    # A shell starts background jobs with SIGINT ignored, and every launcher started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.found.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, {options.processes} processes", flush=True)
    accel, found = options.accel.resolve(), options.found.resolve()
    begin = time.monotonic()
    deadline = begin + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="accel-soak-") as work:
        pipes, processes = [], []
        for index in range(options.processes):
            receiver, sender = multiprocessing.Pipe(duplex=False)
            place = pathlib.Path(work, str(index))
            place.mkdir()
            process = multiprocessing.Process(
                target=work_until, args=(deadline, accel, place, options.seed + index, options.only, found, sender))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        parts = {pipe: (collections.Counter(), collections.Counter()) for pipe in pipes}
        last = begin
        while pipes:
            for pipe in multiprocessing.connection.wait(pipes, timeout=1):
                try:
                    parts[pipe] = pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
            if time.monotonic() - last > REPORT_S:
                last = time.monotonic()
                print(report(*map(total, zip(*parts.values())), last - begin), flush=True)
        for process in processes:
            process.join()
        counts, wrong = map(total, zip(*parts.values()))
        print(json.dumps({name: count for name, count in sorted(counts.items())}, indent=1))
        print(report(counts, wrong, time.monotonic() - begin))
        if any(process.exitcode for process in processes):
            print("a process of the soak itself failed")
            return 1
        if not counts:
            print("nothing was tried")
            return 1
    if wrong:
        print(f"what is wrong lies in {found}")
    return 1 if wrong else 0


if __name__ == "__main__":
    import multiprocessing.connection

    sys.exit(main())
