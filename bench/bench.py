#!/usr/bin/env python3
"""Measure accel beside its peers, in one run, on this machine; print a table with ratios.

    tools/dev bench [--only start|launch|merge|verify] [--gigabytes 1] [--repeat 5]

Medians of several runs, peer and accel taking turns, since machines are shared and noisy. The numbers go into
RESULTS.md by hand, with hardware and commit.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WORKER = """
import os, sys, time
open(sys.argv[1] + "/" + os.environ["RANK"], "w").write(str(time.time()))
"""


def run(command, **options):
    """Seconds and peak resident bytes of a command that must succeed."""
    begin = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL, **options)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"failed: {command}")
    return seconds, usage.ru_maxrss * 1024


def compare(title, candidates, repeat, note=""):
    """candidates: name -> callable that returns (seconds, bytes). The first is ours; ratios are peer / ours."""
    results = {name: [] for name in candidates}
    for _ in range(repeat):
        for name, measure in candidates.items():
            results[name].append(measure())
    print(f"\n## {title}\n\n{note}| command | median | range | peak memory | times accel's |\n| --- | --- | --- | --- | --- |")
    ours = statistics.median(seconds for seconds, _ in next(iter(results.values())))
    for name, values in results.items():
        seconds = [s for s, _ in values]
        memory = max(b for _, b in values)
        median = statistics.median(seconds)
        print(f"| {name} | {median * 1e3:.1f} ms | {min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f} ms "
              f"| {memory / 1e6:.0f} MB | {median / ours:.2f} |")


def bench_start(accel, repeat):
    compare("Start", {
        "accel --version": lambda: run([accel, "--version"]),
        "python -c pass": lambda: run([sys.executable, "-c", "pass"]),
    }, repeat)


def bench_launch(accel, repeat):
    """From the command to the first instruction of the second of two workers."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "worker.py"
        script.write_text(WORKER)

        def first_instruction(command):
            begin = time.time()
            _, memory = run(command)
            return max(float((pathlib.Path(folder) / rank).read_text()) for rank in "01") - begin, memory

        worker = [sys.executable, "-S", script, folder]
        compare("Launch: from the command to the workers' first instruction, 2 ranks", {
            "accel launch": lambda: first_instruction([accel, "launch", "--num-processes", "2", "--cpu", "--", *worker]),
            "torchrun": lambda: first_instruction([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                                                   "--no-python", *worker]),
        }, repeat)


def make_checkpoint(folder, gigabytes):
    """A DCP checkpoint of two ranks in Accelerate's layout, written by torch."""
    script = pathlib.Path(folder) / "save.py"
    script.write_text(f"""
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
rows = int({gigabytes} * 1e9 / 4 / 4096 / 32)
torch.manual_seed(dist.get_rank())
state = {{f"layers.{{i}}.weight": DTensor.from_local(torch.randn(rows // 2, 4096), mesh, [Shard(0)]) for i in range(32)}}
dcp.save({{"model": state}}, checkpoint_id="{folder}/pytorch_model_fsdp_0")
""")
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return pathlib.Path(folder) / "pytorch_model_fsdp_0"


def bench_merge(accel, repeat, gigabytes):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        source = make_checkpoint(folder, gigabytes)
        out = pathlib.Path(folder) / "out"

        def fresh(command):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()
            return run(command)

        compare(f"Merge of {gigabytes} GB, 2 shards, warm cache, durable output", {
            "accel merge-weights": lambda: fresh([accel, "merge-weights", source, out]),
            "cp and fsync": lambda: fresh(["sh", "-c", f"cp {source}/*.distcp {out} && sync {out}/*"]),
            "accelerate merge-weights (not synced)": lambda: fresh([sys.executable, "-m", "accelerate.commands.merge", source, out]),
        }, repeat)


ZLIB = """
import sys, zlib
for name in sys.argv[1:]:
    crc = 0
    with open(name, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
"""


def bench_verify(accel, repeat, gigabytes):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        source = make_checkpoint(folder, gigabytes)
        data = sorted(source.glob("*.distcp"))
        size = sum(path.stat().st_size for path in data)
        run(["cat", *data])  # Into the page cache.
        compare(f"Verify of {size / 1e9:.2f} GB, 2 shards, warm cache (GB/s: {size / 1e9:.2f} over seconds)", {
            "accel verify --threads 2": lambda: run([accel, "verify", "--threads", "2", source]),
            "accel verify --threads 1": lambda: run([accel, "verify", "--threads", "1", source]),
            "Python's zlib.crc32 of the same files": lambda: run([sys.executable, "-c", ZLIB, *data]),
            "cksum of the same files": lambda: run(["cksum", *data]),
            "cat to nowhere": lambda: run(["cat", *data]),
        }, repeat)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True)
    parser.add_argument("--only", choices=["start", "launch", "merge", "verify"])
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    wanted = lambda name: arguments.only in (None, name)  # noqa: E731
    if wanted("start"):
        bench_start(arguments.accel, arguments.repeat * 4)
    if wanted("launch"):
        bench_launch(arguments.accel, arguments.repeat)
    if wanted("merge"):
        bench_merge(arguments.accel, arguments.repeat, arguments.gigabytes)
    if wanted("verify"):
        bench_verify(arguments.accel, arguments.repeat, arguments.gigabytes)


if __name__ == "__main__":
    main()
