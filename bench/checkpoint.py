#!/usr/bin/env python3
"""Measures saving and resuming beside torch.distributed.checkpoint, on 2 ranks of one thread, in one run.

    tools/dev bench checkpoint [--gigabytes 4] [--repeat 3] [--folder DIR]

Both sides write model and AdamW state of the same layers in float32, and sync the files. accel's numbers are those of
its metrics.jsonl. A stall is the time that training waits for a save. "dd" writes as many bytes with one fsync.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "tests"))
import ports  # noqa: E402
from checkpoint_model import Tokens  # noqa: E402

WIDTH = 4096
RANKS = 2


def layers_for(gigabytes):
    return max(1, round(gigabytes * 1e9 / (WIDTH * (WIDTH + 1) * 4 * 3)))


def launch(accel, folder, name, steps, **checkpoint):
    """Trains, and returns the lines of metrics.jsonl and what was logged."""
    training = {
        "model": {"path": str(folder / "model.pt")},
        "data": {"train": {"format": "text", "path": str(folder / "text.txt"), "sequence_length": 16}, "batch_size": 1},
        "optimizer": {"type": "adamw", "lr": 1e-4}, "max_steps": steps, "seed": 1, "log_every": 1,
        "output_dir": str(folder / name), "checkpoint": {"total_limit": 1, **checkpoint}}
    config = {"distributed_type": "FSDP", "num_processes": RANKS, "use_cpu": True,
              "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                              "fsdp_transformer_layer_cls_to_wrap": "Layer"},
              "training": training}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))
    done = subprocess.run([accel, "launch", path], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout)
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return lines, done.stdout


def torchrun(folder, layers, repeat):
    spec = folder / "spec.json"
    out = folder / "out.json"
    spec.write_text(json.dumps({"width": WIDTH, "layers": layers, "repeat": repeat, "folder": str(folder), "out": str(out)}))
    with ports.held_port() as port:
        ranks = [subprocess.Popen([sys.executable, HERE / "checkpoint_dcp.py", spec],
                                  env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
                                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"})
                 for rank in range(RANKS)]
        if any([rank.wait() for rank in ranks]):
            raise SystemExit("checkpoint_dcp.py failed")
    return json.loads(out.read_text())


def dd(folder, size):
    begin = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={folder / 'dd'}", "bs=16M", f"count={size >> 24}", "conv=fsync"],
                   check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    (folder / "dd").unlink()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True, type=pathlib.Path)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    layers = layers_for(options.gigabytes)
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.folder))
    found = {}
    try:
        torch.manual_seed(0)
        torch.jit.script(Tokens(WIDTH, layers)).save(str(folder / "model.pt"))
        (folder / "text.txt").write_text("all work and no play makes a dull text. " * 400)

        def note(name, *values):
            found.setdefault(name, []).extend(values)

        size = 0
        for _ in range(options.repeat):
            lines, _ = launch(options.accel, folder, "sync", 1, every=1000, **{"async": False})
            saved = [line for line in lines if "checkpoint" in line][-1]
            size = saved["bytes"]
            note("save", saved["save_time_s"])
            shutil.rmtree(folder / "sync/logs", ignore_errors=True)
            # The files have bypassed the page cache, so the first load reads the disk.
            for name in ("load", "load, cached"):
                said = launch(options.accel, folder, "resumed", 2, every=0, resume=str(folder / "sync/checkpoints/checkpoint_1"))[1]
                note(name, float(re.search(r"read in ([0-9.]+) s", said)[1]))
                shutil.rmtree(folder / "resumed")
            shutil.rmtree(folder / "sync")
            steps = 14
            lines, _ = launch(options.accel, folder, "async", steps, every=5)
            saves = [line for line in lines if "checkpoint" in line and line["step"] < steps]
            note("async, stall", *[line["stall_s"] for line in saves])
            note("async, in all", *[line["save_time_s"] for line in saves])
            note("memory", max(line["max_rss_bytes"] for line in lines if "max_rss_bytes" in line))
            shutil.rmtree(folder / "async")
            for name, checkpoint in (("without", {"every": 0}), ("continuous", {"every": "continuous"})):
                lines, _ = launch(options.accel, folder, name, steps, **checkpoint)
                note(f"step, {name}", *[line["step_time_s"] for line in lines if "step_time_s" in line and line["step"] > 2])
                if name == "without":
                    note("memory without", max(line["max_rss_bytes"] for line in lines if "max_rss_bytes" in line))
                shutil.rmtree(folder / name)
            note("dd", dd(folder, size))
            for name, values in torchrun(folder, layers, 1).items():
                note(f"DCP {name}", *values)
    finally:
        shutil.rmtree(folder)

    def median(name):
        return statistics.median(found[name])

    print(f"{size / 1e9:.2f} GB over {RANKS} ranks, {layers} layers of {WIDTH} x {WIDTH}, {options.repeat} runs of each\n\n"
          "| what | median | range | times accel's |\n| --- | --- | --- | --- |")
    for ours, peers in (("save", ("DCP save", "dd")), ("load", ("DCP load",)), ("load, cached", ("DCP load, cached",)),
                        ("async, stall", ("DCP async_save, blocking", "DCP process, blocking")),
                        ("async, in all", ("DCP async_save, in all", "DCP process, in all")),
                        ("step, without", ("step, continuous",))):
        for name in (ours, *peers):
            print(f"| {name} | {median(name):.3f} s | {min(found[name]):.3f} to {max(found[name]):.3f} s "
                  f"| {median(name) / median(ours):.2f} |")
    print(f"\npeak memory of rank 0: {median('memory') / 1e9:.2f} GB, without checkpoints {median('memory without') / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
