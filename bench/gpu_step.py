#!/usr/bin/env python3
"""Compares a training step on GPUs with torch's fully_shard, eager and with torch.compile. The models are GPTs of 125
million and 1 billion parameters in bfloat16, and each GPU has one rank.

    tools/dev bench gpu-step [--models 125m,1b] [--ranks 1] [--steps 30] [--repeat 3]

If nothing can be installed, run python3 bench/gpu_step.py --accel build/src/cli/accel with a python3 that has torch.
accel and its peers take turns, and the first ten steps do not count. Each value is a median, with the range of the
runs' medians. Memory is the peak that tensors allocate on one GPU. `--device cpu --models tiny` tries the script.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import torch

from step import HERE, launch, run_accel
sys.path.insert(0, str(HERE.parent / "examples"))
from gpt import GPT  # noqa: E402

MODELS = {
    "tiny": ({"vocabulary": 256, "length": 64, "width": 64, "layers": 2, "heads": 2}, 2),
    "125m": ({"vocabulary": 50304, "length": 1024, "width": 768, "layers": 12, "heads": 12}, 16),
    "1b": ({"vocabulary": 50304, "length": 1024, "width": 2048, "layers": 20, "heads": 16}, 8),
}
WARM_UP = 10  # torch.compile compiles during the first steps.


def prepare(folder, sizes, batch, ranks, steps):
    """Writes the model's structure without weights, and tokens for every step; returns the number of parameters."""
    with torch.device("meta"):
        model = GPT(**sizes)
    extra = {"accel.json": json.dumps({"layer_classes": ["Block"], "ties": []})}
    torch.jit.script(model).save(str(folder / "gpt.pt"), _extra_files=extra)
    ids = torch.zeros(batch, sizes["length"], dtype=torch.long, device="meta")
    torch.export.save(torch.export.export(model.train(), (ids,), strict=False), folder / "gpt.pt2",
                      extra_files=extra)
    count = (steps * ranks * batch + 1) * sizes["length"] + 1
    tokens = torch.randint(sizes["vocabulary"], (count,), generator=torch.Generator().manual_seed(0)).to(torch.uint16)
    (folder / "tokens.bin").write_bytes(bytes(tokens.untyped_storage()))
    return sum(parameter.numel() for parameter in model.parameters())


def measure_accel(options, folder, sizes, batch, file="gpt.pt"):
    changes = {"use_cpu": options.device == "cpu", "mixed_precision": "bf16"}
    lines = run_accel(options.accel, folder, options.ranks, options.steps, "auto", sizes=sizes, batch=batch,
                      model={"path": str(folder / file), "init": {"std": 0.02}}, **changes)
    memory = lines[-1].get("max_memory_allocated_bytes", lines[-1]["max_rss_bytes"])
    return statistics.median(line["step_time_s"] for line in lines[WARM_UP:]), memory, lines[-1]["loss"]


def measure_peer(options, folder, sizes, batch, compiles):
    spec = {"model": sizes, "tokens": str(folder / "tokens.bin"), "batch_size": batch, "steps": options.steps, "lr": 1e-4,
            "device": options.device, "precision": "bfloat16", "compile": compiles, "out": str(folder / "peer.json")}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "peer.yaml").write_text(
        f"distributed_type: FSDP\nuse_cpu: {json.dumps(options.device == 'cpu')}\nnum_processes: {options.ranks}\n"
        "main_process_port: 0\n")
    launch(options.accel, folder / "peer.yaml", "--", sys.executable, HERE / "step_fsdp2.py", folder / "spec.json")
    found = json.loads((folder / "peer.json").read_text())
    return statistics.median(found["seconds"][WARM_UP:]), found["peak_bytes"], found["loss"]


def table(name, options):
    sizes, batch = MODELS[name]
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        parameters = prepare(folder, sizes, batch, options.ranks, options.steps)
        rows = {
            "fully_shard": lambda: measure_peer(options, folder, sizes, batch, False),
            "fully_shard, torch.compile": lambda: measure_peer(options, folder, sizes, batch, True),
            "accel": lambda: measure_accel(options, folder, sizes, batch),
            "accel, from .pt2": lambda: measure_accel(options, folder, sizes, batch, "gpt.pt2"),
        }
        results = {row: [] for row in rows}
        for _ in range(options.repeat):
            for row, measure in rows.items():
                results[row].append(measure())
    tokens = options.ranks * batch * sizes["length"]
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"\n{parameters / 1e6:.1f} million parameters, {options.ranks} x {where}, {batch} x {sizes['length']} tokens a rank, bfloat16, "
          f"torch {torch.__version__}\n\n| | tokens/s | range | of fully_shard's | peak memory | of fully_shard's | last loss |\n"
          "| --- | --- | --- | --- | --- | --- | --- |")
    seconds, peak, _ = (statistics.median(values) for values in zip(*results["fully_shard"]))
    for row, values in results.items():
        times, memory, losses = zip(*values)
        median = statistics.median(times)
        print(f"| {row} | {tokens / median:.0f} | {tokens / max(times):.0f} to {tokens / min(times):.0f} | {seconds / median:.2f} "
              f"| {statistics.median(memory) / 1e9:.2f} GB | {statistics.median(memory) / peak:.2f} | {losses[-1]:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--models", default="125m,1b")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    options.accel = str(pathlib.Path(options.accel).resolve())
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_step: torch sees no GPU here; --device cpu --models tiny tries the script")
    if options.steps <= WARM_UP:
        sys.exit(f"gpu_step: --steps must be more than the {WARM_UP} that do not count")
    unknown = set(options.models.split(",")) - set(MODELS)
    if unknown:
        sys.exit(f"gpu_step: no such model: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    for name in options.models.split(","):
        table(name, options)


if __name__ == "__main__":
    main()
