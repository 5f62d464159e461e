#!/usr/bin/env python3
"""Compares training.model.fused_head with the logits as a whole, and with torch: time and peak memory of a step.

    tools/dev bench fused-head [--tokens 2048] [--width 512] [--vocabularies 32768,151936] [--threads 2] [--repeat 3]

The model is an embedding, a linear and a tied head of one rank, so that little but the head takes time. The
runs take turns, and the first two steps do not count. Values are medians with the range of the runs. The CPU seconds are
those of a step of all threads, for machines that do other work as well. They and the peak are those of the process beyond
one that has done the same with a vocabulary of 64.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import torch
from step import launch
from torch import nn

BATCH, WARM_UP = 2, 2
LITTLE = 64


class Net(nn.Module):
    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids):
        return self.head(torch.tanh(self.inner(self.tokens(input_ids))))


def run_accel(accel, folder, vocabulary, options, head):
    """Trains; returns the median seconds of a step and the peak of the process in bytes."""
    model = folder / f"net_{vocabulary}.pt"
    if not model.exists():
        torch.jit.script(Net(vocabulary, options.width)).save(str(model))
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    config = {
        "distributed_type": "NO", "use_cpu": True, "num_processes": 1, "mixed_precision": options.mixed_precision,
        "training": {
            "model": {"path": str(model), "fused_head": head},
            "data": {"train": {"format": "synthetic", "vocabulary": vocabulary, "samples": 64,
                               "sequence_length": options.tokens // BATCH}, "batch_size": BATCH},
            "optimizer": {"type": "sgd", "lr": 0.1}, "max_steps": WARM_UP + options.steps, "log_every": 1, "output_dir": str(out),
            "checkpoint": {"every": 0, "resume": "none"}}}
    (out / "config.yaml").write_text(json.dumps(config))
    launch(accel, out / "config.yaml", threads=options.threads)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    seconds = [options.tokens / record["tokens_per_s"] for record in steps[WARM_UP:]]
    return statistics.median(seconds), max(record["max_rss_bytes"] for record in steps)


def with_cpu_seconds(run, *arguments):
    """Returns what run(...) returns, and the seconds of the CPUs that its processes have taken."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, peak = run(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, peak, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_torch(_, folder, vocabulary, options, __):
    command = [sys.executable, __file__, "--peer", str(vocabulary), "--tokens", str(options.tokens), "--width",
               str(options.width), "--mixed-precision", options.mixed_precision, "--steps", str(options.steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, peak = result.stdout.split()
    return float(seconds), float(peak)


def peer(vocabulary, options):
    """The same in Python. Prints the median seconds of a step and the peak of the process in bytes."""
    import time

    model = Net(vocabulary, options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    seconds = []
    for _ in range(WARM_UP + options.steps):
        ids = torch.randint(vocabulary, (BATCH, options.tokens // BATCH + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.mixed_precision == "bf16"):
            logits = model(ids[:, :-1])
        nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds[WARM_UP:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accel")
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabularies", default="32768,151936")
    parser.add_argument("--mixed-precision", default="no", choices=["no", "bf16"])
    parser.add_argument("--steps", type=int, default=4, help="that count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer", type=int, metavar="VOCABULARY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options.peer, options)
    ways = {"torch": (run_torch, ""), "accel, never": (run_accel, "never"), "accel, always": (run_accel, "always")}
    print("| vocabulary | | seconds a step | range | CPU seconds a step | peak memory |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        little = {way: with_cpu_seconds(run, options.accel, folder, LITTLE, options, head)[1:]
                  for way, (run, head) in ways.items()}
        for vocabulary in map(int, options.vocabularies.split(",")):
            results = {way: [] for way in ways}
            for _ in range(options.repeat):
                for way, (run, head) in ways.items():
                    results[way].append(with_cpu_seconds(run, options.accel, folder, vocabulary, options, head))
            for way, runs in results.items():
                seconds = [run[0] for run in runs]
                peak = statistics.median(run[1] for run in runs) - little[way][0]
                cpu = (statistics.median(run[2] for run in runs) - little[way][1]) / (WARM_UP + options.steps)
                print(f"| {vocabulary} | {way} | {statistics.median(seconds):.3f} | {min(seconds):.3f} to {max(seconds):.3f} "
                      f"| {cpu:.2f} | {peak / 1e9:.2f} GB |", flush=True)


if __name__ == "__main__":
    main()
