#!/usr/bin/env python3
"""Measures how fast batches of tokens are read, beside torch's DataLoader, and what a large file costs at the start.

    tools/dev bench data [--tokens 100000000] [--length 1024] [--batch 8] [--batches 2000] [--workers 2] [--large 10]

Both draw windows of the same .npy of uint16 in a shuffled order, with the next tokens as labels, and make int64 of them.
accel reads with one thread (bench/data_bench.cpp); the DataLoader has its workers, a dataset that maps the file, and
torch's own collation. Nothing is done with a batch but adding up its tokens. --large writes a file of so many GB, most of
it a hole, whose first batch is then timed beside that of a small one.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import torch


class Windows(torch.utils.data.Dataset):
    def __init__(self, path, length):
        self.tokens, self.length = numpy.load(path, mmap_mode="r"), length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, i):
        window = torch.from_numpy(self.tokens[i * self.length:(i + 1) * self.length + 1].astype(numpy.int64))
        return {"input_ids": window[:-1], "labels": window[1:]}


def with_loader(path, options):
    """Seconds of all batches but the first, in a process that has its workers already."""
    loader = torch.utils.data.DataLoader(Windows(path, options.length), batch_size=options.batch, shuffle=True,
                                         num_workers=options.workers, drop_last=True)
    batches = iter(loader)
    total = int(next(batches)["input_ids"].sum())
    begin = time.perf_counter()
    for _ in range(options.batches - 1):
        total += int(next(batches)["input_ids"].sum())
    return time.perf_counter() - begin


def with_accel(tool, path, options, batches):
    run = subprocess.run([tool, path, str(options.length), str(options.batch), str(batches)], check=True, capture_output=True)
    return json.loads(run.stdout)


def large_file(path, gigabytes):
    """A .npy of uint16, which ends with tokens and is a hole before."""
    count = int(gigabytes * 1e9) // 2
    numpy.lib.format.open_memmap(path, mode="w+", dtype=numpy.uint16, shape=(count,))[-1000:] = 7


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--large", type=float, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        small, large = pathlib.Path(name) / "small.npy", pathlib.Path(name) / "large.npy"
        numpy.save(small, numpy.random.default_rng(0).integers(50_000, size=options.tokens, dtype=numpy.uint16))
        tokens = options.length * options.batch * (options.batches - 1)
        times = [(with_accel(options.tool, small, options, options.batches)["rest_s"], with_loader(small, options))
                 for _ in range(options.repeat)]
        ours, theirs = (tokens / statistics.median(column) / 1e6 for column in zip(*times))
        ratio = statistics.median(loader / accel for accel, loader in times)
        print(f"accel, one thread: {ours:.1f} million tokens/s")
        print(f"DataLoader, {options.workers} workers: {theirs:.1f} million tokens/s; accel is {ratio:.1f} times as fast")
        large_file(large, options.large)
        first = {path: statistics.median(with_accel(options.tool, path, options, 1)["first_s"] for _ in range(options.repeat))
                 for path in (small, large)}
        print(f"first batch of {small.stat().st_size / 1e9:.1f} GB: {first[small] * 1000:.1f} ms")
        print(f"first batch of {large.stat().st_size / 1e9:.1f} GB: {first[large] * 1000:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
