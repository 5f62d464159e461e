#!/usr/bin/env python3
"""Compares a training step with torch's fully_shard: a GPT of 29.5 million parameters, two CPU ranks of one thread.

    tools/dev bench step [--ranks 2] [--steps 10] [--repeat 3] [--backends gloo,auto]

accel and its peer take turns, and the first two steps do not count. Values are medians with the range of the runs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples"))
from gpt import GPT  # noqa: E402

SIZES = {"vocabulary": 8192, "length": 256, "width": 512, "layers": 8, "heads": 8}
BATCH = 4
WARM_UP = 2


def prepare(folder, steps, ranks, sizes=SIZES, batch=BATCH):
    import numpy

    torch.manual_seed(0)
    model = GPT(**sizes)
    extra = {"accel.json": json.dumps({"layer_classes": ["Block"]})}
    torch.jit.script(model).save(str(folder / "gpt.pt"), _extra_files=extra)
    ids = torch.zeros(batch, sizes["length"], dtype=torch.long)
    torch.export.save(torch.export.export(model.train(), (ids,), strict=False), folder / "gpt.pt2")
    count = (steps * ranks * batch + 1) * sizes["length"] + 1
    numpy.random.default_rng(0).integers(sizes["vocabulary"], size=count, dtype=numpy.uint16).tofile(folder / "tokens.bin")
    return sum(parameter.numel() for parameter in model.parameters())


def launch(accel, *arguments, threads=1):
    """Runs `accel launch`; if it fails, exits with its stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run([accel, "launch", *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace")
    if result.returncode != 0:
        sys.exit(f"{result.stderr}\n{pathlib.Path(sys.argv[0]).name}: accel launch {' '.join(map(str, arguments))} ended "
                 f"with exit code {result.returncode}")


def configure(folder, ranks, steps, backend, sizes=SIZES, batch=BATCH, model=None, **changes):
    """Writes config.yaml of a run into a new folder, and returns that. `changes` are keys of its top level."""
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    config = {
        "distributed_type": "FSDP", "use_cpu": True, "num_processes": ranks, "main_process_port": 0,
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        "launch": {"backend": backend},
        "training": {
            "model": {"path": str(folder / "gpt.pt"), **(model or {})},
            "data": {"train": {"format": "tokens", "dtype": "uint16", "path": str(folder / "tokens.bin"),
                               "sequence_length": sizes["length"]},
                     "batch_size": batch, "shuffle": False},
            "optimizer": {"type": "adamw", "lr": 1e-4}, "max_steps": steps, "max_grad_norm": 1.0, "log_every": 1,
            "output_dir": str(out), "checkpoint": {"every": 0, "resume": "none"}},
        **changes}
    (out / "config.yaml").write_text(json.dumps(config))
    return out


def run_and_time_accel(accel, folder, *arguments, **options):
    """Trains with accel as configure() says; returns the records of its steps, and that of where the time of rank 0 went."""
    out = configure(folder, *arguments, **options)
    launch(accel, out / "config.yaml")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record], next(record for record in records if "forward_s" in record)


def run_accel(*arguments, **options):
    return run_and_time_accel(*arguments, **options)[0]


def measure_accel(*arguments, **options):
    lines = run_accel(*arguments, **options)
    return statistics.median(line["step_time_s"] for line in lines[WARM_UP:]), lines[-1]["max_rss_bytes"]


def run_fsdp2(accel, folder, ranks, steps):
    spec = {"model": SIZES, "tokens": str(folder / "tokens.bin"), "batch_size": BATCH, "steps": steps, "lr": 1e-4,
            "out": str(folder / "fsdp2.json")}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "fsdp2.yaml").write_text(
        f"distributed_type: FSDP\nuse_cpu: true\nnum_processes: {ranks}\nmain_process_port: 0\n")
    launch(accel, folder / "fsdp2.yaml", "--", sys.executable, HERE / "step_fsdp2.py", folder / "spec.json")
    found = json.loads((folder / "fsdp2.json").read_text())
    return statistics.median(found["seconds"][WARM_UP:]), found["peak_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--backends", default="gloo,auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        parameters = prepare(folder, options.steps, options.ranks)
        rows = {"fully_shard, gloo": lambda: run_fsdp2(options.accel, folder, options.ranks, options.steps)}
        for backend in options.backends.split(","):
            rows[f"accel, {backend}"] = lambda backend=backend: measure_accel(
                options.accel, folder, options.ranks, options.steps, backend)
        rows[f"accel, {backend}, from .pt2"] = lambda: measure_accel(
            options.accel, folder, options.ranks, options.steps, backend, model={"path": str(folder / "gpt.pt2")})
        results = {name: [] for name in rows}
        for _ in range(options.repeat):
            for name, measure in rows.items():
                results[name].append(measure())
    print(f"{parameters / 1e6:.1f} million parameters, {options.ranks} ranks of one thread, {BATCH} x {SIZES['length']} "
          f"tokens a rank\n\n| | a step | range | of fully_shard's | peak memory of a rank | of fully_shard's |\n"
          "| --- | --- | --- | --- | --- | --- |")
    seconds, peak = (statistics.median(values) for values in zip(*results["fully_shard, gloo"]))
    for name, values in results.items():
        times = [value[0] for value in values]
        memory = statistics.median(value[1] for value in values)
        print(f"| {name} | {statistics.median(times):.2f} s | {min(times):.2f} to {max(times):.2f} s "
              f"| {statistics.median(times) / seconds:.2f} | {memory / 1e6:.0f} MB | {memory / peak:.2f} |")


if __name__ == "__main__":
    main()
