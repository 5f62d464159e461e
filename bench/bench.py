#!/usr/bin/env python3
"""Measures accel and its peers in one run on this machine, and prints tables with ratios.

    tools/dev bench [--only start|launch|merge|memory|small|verify|diff|metadata|collectives|strings] [--gigabytes 1] [--repeat 5]
    tools/dev bench step    (step.py: a training step compared with fully_shard)
    tools/dev bench compiled-layers   (compiled_layers.py: a step with and without compiled layers, and torch.compile)
    tools/dev bench backends   (backends.py: shared memory between CPU ranks compared with Gloo)
    tools/dev bench checkpoint   (checkpoint.py: saves and resumes compared with DCP)
    tools/dev bench save-plan [RANKS]   (save_plan_bench.cpp: planning a checkpoint of 70 billion parameters)
    tools/dev bench launch  (launch.py: runs of many ranks beside torchrun and accelerate, and restarts)
    tools/dev bench one-rank   (one_rank.py: the peak memory of a rank of 1024 beside the plan's)
    tools/dev bench ranks   (ranks.py: the cost of building one rank's shard, by number of ranks)

Each value is the median of several runs. accel and its peers take turns, because machines are shared and noisy. The
numbers are copied into journal.md by hand, with the hardware and the commit. RESULTS.md has the current ones.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import ports  # noqa: E402

WORKER = """
import os, sys, time
open(sys.argv[1] + "/" + os.environ["RANK"], "w").write(str(time.time()))
"""


_peak: pathlib.Path | None = None


def peak_tool():
    """Compiles bench/peak.c once; returns its path. The kernel counts the memory before exec, and Python's is large."""
    global _peak
    if _peak is None:
        _peak = pathlib.Path(tempfile.mkdtemp()) / "peak"
        subprocess.run(["cc", "-O2", "-o", _peak, pathlib.Path(__file__).with_name("peak.c")], check=True)
    return _peak


def run(command, **options):
    """Runs a command that must succeed; returns its seconds and its peak resident bytes."""
    read, write = os.pipe()
    try:
        subprocess.run([str(part) for part in (peak_tool(), write, *command)], pass_fds=[write], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True, **options)
        seconds, kibibytes = os.read(read, 100).split()
    finally:
        os.close(read)
        os.close(write)
    return float(seconds), int(kibibytes) * 1024


def compare(title, candidates, repeat, note=""):
    """Prints a table. `candidates` maps names to callables that return (seconds, bytes). The first one is accel's."""
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
              f"| {memory / 1e6:.1f} MB | {median / ours:.2f} |")


def bench_start(accel, repeat):
    compare("Start", {
        "accel --version": lambda: run([accel, "--version"]),
        "python -c pass": lambda: run([sys.executable, "-c", "pass"]),
    }, repeat)


def bench_launch(accel, repeat):
    """Measures the time until both of two workers have run their first instruction."""
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


def make_checkpoint(folder, gigabytes, dim=0, tensors=32):
    """Writes, with torch, a DCP checkpoint of two ranks in Accelerate's layout: float32, sharded along `dim`."""
    path = pathlib.Path(folder) / "pytorch_model_fsdp_0"
    script = pathlib.Path(folder) / "save.py"
    script.write_text(f"""
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
columns = min(4096, max(2, int({gigabytes} * 1e9 / 4 / {tensors})))
rows = max(2, int({gigabytes} * 1e9 / 4 / columns / {tensors}))
shape = (rows // 2, columns) if {dim} == 0 else (rows, columns // 2)
torch.manual_seed(dist.get_rank())
noise = torch.randn(shape)
state = {{f"layers.{{i}}.weight": DTensor.from_local(noise, mesh, [Shard({dim})]) for i in range({tensors})}}
dcp.save({{"model": state}}, checkpoint_id="{path}")
""")
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def work_folder():
    return tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp"))


def into(out, command):
    """Runs a command that writes the new folder `out`, after all earlier writes have reached the disk."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    os.sync()
    return run(command)


def warm(path):
    for file in path.iterdir():
        subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)


def bench_merge(accel, repeat, gigabytes):
    with work_folder() as folder:
        source, out = make_checkpoint(folder, gigabytes), pathlib.Path(folder) / "out"
        warm(source)
        compare(f"Merge of {gigabytes:g} GB, 2 shards, warm cache, durable output", {
            "accel merge-weights": lambda: into(out, [accel, "merge-weights", source, out]),
            "cp and fsync": lambda: into(out, ["sh", "-c", f"cp {source}/*.distcp {out} && sync {out}/*"]),
            "accelerate merge-weights (not synced)": lambda: into(
                out, [sys.executable, "-m", "accelerate.commands.merge", source, out]),
        }, repeat)


def bench_metadata(accel, repeat, chunks):
    """Measures reading and planning of `.metadata`. Each process reports its own seconds and peak memory."""
    tool = accel.parent.parent.parent / "bench/metadata-bench"
    script = pathlib.Path(__file__).parent / "metadata.py"

    def own_measure(command):
        result = json.loads(subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout)
        assert result["chunks"] == chunks
        return result["seconds"], result["peak_bytes"]

    for tensors in sorted({1, max(1, chunks // 100), chunks}):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
            subprocess.run([sys.executable, script, "write", folder, str(tensors), str(chunks // tensors)], check=True)
            size = (pathlib.Path(folder) / ".metadata").stat().st_size
            title = f"Metadata of {tensors} tensors in {chunks // tensors} chunks each, {size / 1e6:.0f} MB"
            compare(title, {
                "accel: read, parse, plan": lambda folder=folder: own_measure([tool, folder]),
                "torch: FileSystemReader.read_metadata": lambda folder=folder: own_measure([sys.executable, script, "read", folder]),
            }, repeat)


def bench_memory(accel, sizes):
    """Measures the peak memory of merges of several sizes and kinds."""
    print("\n## Peak memory of a merge\n\n| merge | size | time | peak memory |\n| --- | --- | --- | --- |")
    for dim, title in ((0, "row shards"), (1, "column shards")):
        for gigabytes in sizes:
            with work_folder() as folder:
                source, out = make_checkpoint(folder, gigabytes, dim), pathlib.Path(folder) / "out"
                for note, flags in (("", []), (", `--dtype bf16`", ["--dtype", "bf16"])):
                    seconds, memory = into(out, [accel, "merge-weights", source, out, *flags])
                    print(f"| {title}{note} | {gigabytes:g} GB | {seconds:.2f} s | {memory / 1e6:.1f} MB |", flush=True)


def bench_small(accel, repeat):
    with work_folder() as folder:
        source, out = make_checkpoint(folder, 0.004, tensors=1000), pathlib.Path(folder) / "out"
        warm(source)
        compare("Merge of a thousand small tensors (4 MB), 2 shards", {
            "accel merge-weights": lambda: into(out, [accel, "merge-weights", source, out]),
            "cp and fsync": lambda: into(out, ["sh", "-c", f"cp {source}/*.distcp {out} && sync {out}/*"]),
        }, repeat * 3)


def bench_verify(accel, repeat, gigabytes):
    with work_folder() as folder:
        source = make_checkpoint(folder, gigabytes)
        warm(source)
        candidates = {
            "accel verify, 2 threads": lambda: run([accel, "verify", source, "--threads", "2"]),
            "cat to /dev/null": lambda: run(["sh", "-c", f"cat {source}/*.distcp >/dev/null"]),
            "sha256sum": lambda: run(["sh", "-c", f"sha256sum {source}/*.distcp"]),
        }
        compare(f"Verify {gigabytes:g} GB, 2 shards, warm cache", candidates, repeat)


def bench_diff(accel, repeat, gigabytes):
    """Measures the comparison of a sharded checkpoint with its merged copy. The Python peer loads both."""
    script = """
import sys, safetensors.torch, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
state = {}
_load_state_dict(state, storage_reader=dcp.FileSystemReader(sys.argv[1]), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
merged = safetensors.torch.load_file(sys.argv[2] + "/model.safetensors")
assert all(torch.equal(tensor, merged[name]) for name, tensor in state["model"].items())
"""
    with work_folder() as folder:
        source, out = make_checkpoint(folder, gigabytes), pathlib.Path(folder) / "out"
        into(out, [accel, "merge-weights", source, out])
        copy = pathlib.Path(folder) / "copy"
        shutil.copy(out / "model.safetensors", copy)
        warm(source)
        warm(out)
        compare(f"Diff of two checkpoints of {gigabytes:g} GB, sharded and merged, warm cache", {
            "accel diff": lambda: run([accel, "diff", source, out]),
            "cmp of two copies of the merged file": lambda: run(["cmp", out / "model.safetensors", copy]),
            "Python: load both, torch.equal": lambda: run([sys.executable, "-c", script, source, out]),
        }, repeat)


def bench_collectives(accel, repeat):
    """Measures the trainer's collectives between CPU ranks. Both backends take turns within one process per rank."""
    tool = accel.parent.parent.parent / "bench/collectives-bench"
    for ranks in (2, 4):
        with ports.two_held_ports() as port:
            command = [tool, ranks, 32 * 2**20, repeat, port]
            result = json.loads(subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout)
        print(f"\n## Collectives of {result['bytes'] / 1e6:.1f} MB over {ranks} ranks\n\n"
              "| collective | shared memory | range | Gloo | range | times as fast |\n| --- | --- | --- | --- | --- | --- |")
        for name, seconds in result["seconds"].items():
            cells = [f"{statistics.median(runs) * 1e3:.1f} ms | {min(runs) * 1e3:.1f} to {max(runs) * 1e3:.1f} ms"
                     for runs in (seconds["shm"], seconds["gloo"])]
            ratio = statistics.median(seconds["gloo"]) / statistics.median(seconds["shm"])
            print(f"| {name} | {' | '.join(cells)} | {ratio:.1f} |", flush=True)


def bench_strings(accel, repeat):
    """Measures how ranks get each other's strings through the store, as at the end of a save."""
    tool = accel.parent.parent.parent / "bench/collectives-bench"
    size = 240  # About as long as what a rank says of the three files that it has saved.
    print(f"\n## Strings of {size} bytes through the store, until all ranks go on\n\n"
          "| ranks | what | median | range | bytes through the store | keys that stay |\n| --- | --- | --- | --- | --- | --- |")
    for ranks in (2, 8, 64):
        with ports.held_port() as port:
            command = [tool, "strings", ranks, size, repeat, port]
            result = json.loads(subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout)
        sent = {"nothing": 0, "all_gather_object": (ranks + ranks * ranks) * size, "gather_object": 2 * (ranks - 1) * size}
        for name, runs in result["seconds"].items():
            print(f"| {ranks} | {name} | {statistics.median(runs) * 1e3:.2f} ms | {min(runs) * 1e3:.2f} to "
                  f"{max(runs) * 1e3:.2f} ms | {sent[name]} | {result['keys'][name]} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True, type=pathlib.Path)
    parser.add_argument("--only", choices=["start", "launch", "merge", "memory", "small", "verify", "diff", "metadata",
                                           "collectives", "strings"])
    parser.add_argument("--chunks", type=int, default=1_000_000, help="for --only metadata")
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 1], help="gigabytes, for --only memory")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    wanted = lambda name: arguments.only in (None, name)  # noqa: E731
    if wanted("start"):
        bench_start(arguments.accel, arguments.repeat * 4)
    if wanted("launch"):
        bench_launch(arguments.accel, arguments.repeat)
    if wanted("merge"):
        bench_merge(arguments.accel, arguments.repeat, arguments.gigabytes)
    if wanted("metadata"):
        bench_metadata(arguments.accel, min(arguments.repeat, 3), arguments.chunks)
    if wanted("memory"):
        bench_memory(arguments.accel, arguments.sizes)
    if wanted("small"):
        bench_small(arguments.accel, arguments.repeat)
    if wanted("verify"):
        bench_verify(arguments.accel, arguments.repeat, arguments.gigabytes)
    if wanted("diff"):
        bench_diff(arguments.accel, arguments.repeat, arguments.gigabytes)
    if wanted("collectives"):
        bench_collectives(arguments.accel, arguments.repeat * 3)
    if wanted("strings"):
        bench_strings(arguments.accel, arguments.repeat * 3)


if __name__ == "__main__":
    main()
