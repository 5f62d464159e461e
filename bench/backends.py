#!/usr/bin/env python3
"""Compares `launch.backend: shm` with `gloo`: steps, start, and the time to notice a dead rank, on ranks of one thread.

    tools/dev bench backends [--ranks 2,4] [--models small,large,sparse] [--steps 6] [--repeat 5]

The backends take turns, and the first two steps do not count. CPU seconds are those of all ranks over the whole run; on a
busy machine they say more than the time of a step. The model `sparse` is `large` with few tokens, so that a step is mostly
collectives. Start is the time of a run outside of its steps. The time to notice is that of rank 0 alone: the launcher is
stopped while rank 1 is killed.
"""

import argparse
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import tempfile
import time

import step

SMALL = {"vocabulary": 256, "length": 128, "width": 192, "layers": 4, "heads": 6}
MODELS = {"small": (SMALL, 4), "large": (step.SIZES, 2), "sparse": ({**step.SIZES, "length": 32}, 1)}


def cpu_seconds():
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def run(accel, folder, ranks, steps, backend, sizes, batch):
    """Returns the seconds of a step, the CPU seconds of the run, and its seconds outside of steps."""
    cpu, start = cpu_seconds(), time.monotonic()
    lines = step.run_accel(accel, folder, ranks, steps, backend, sizes, batch)
    seconds = time.monotonic() - start
    times = [line["step_time_s"] for line in lines]
    return statistics.median(times[step.WARM_UP:]), cpu_seconds() - cpu, seconds - sum(times)


def ranks_of(launcher):
    """Returns the processes that the launcher has started, by rank."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) != launcher:
                continue
            entries = (process / "environ").read_text().split("\0")
            found.update({int(entry[5:]): process for entry in entries if entry.startswith("RANK=")})
        except OSError:
            continue
    return found


def seconds_to_notice(accel, folder, ranks, backend, sizes):
    """Kills rank 1 in the middle of a training, and returns how long rank 0 then lives."""
    out = step.configure(folder, ranks, 100_000, backend, sizes, 1)
    launcher = subprocess.Popen([accel, "launch", out / "config.yaml"], env={**os.environ, "OMP_NUM_THREADS": "1"},
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        time.sleep(0.05)
    found = ranks_of(launcher.pid)
    launcher.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    os.kill(int(found[1].name), signal.SIGKILL)
    while (found[0] / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.001)
    seconds = time.monotonic() - start
    launcher.send_signal(signal.SIGCONT)
    launcher.wait()
    return seconds


def cells(values):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.3f} s | {low:.3f} to {high:.3f} s"


def compare(title, results):
    ratio = statistics.median(results["gloo"]) / statistics.median(results["shm"])
    print(f"| {title} | {cells(results['shm'])} | {cells(results['gloo'])} | {ratio:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--models", default="small,large,sparse")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print("| what | shm | range | gloo | range | gloo / shm |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.models.split(","):
        sizes, batch = MODELS[name]
        for ranks in map(int, options.ranks.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                step.prepare(folder, options.steps, ranks, sizes, batch)
                results = {"shm": [], "gloo": []}
                for _ in range(options.repeat):
                    for backend, runs in results.items():
                        runs.append(run(options.accel, folder, ranks, options.steps, backend, sizes, batch))
                for index, what in enumerate(("a step", "CPU of all ranks", "start")):
                    compare(f"{name}, {ranks} ranks, {what}",
                            {backend: [values[index] for values in runs] for backend, runs in results.items()})
                if name != "small":
                    continue
                noticed = {"shm": [], "gloo": []}
                for _ in range(options.repeat):
                    for backend, seconds in noticed.items():
                        seconds.append(seconds_to_notice(options.accel, folder, ranks, backend, sizes))
                compare(f"{name}, {ranks} ranks, rank 0 after the death of rank 1", noticed)


if __name__ == "__main__":
    main()
