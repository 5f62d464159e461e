#!/usr/bin/env python3
"""Compares a training step on GPUs with torch's fully_shard, eager and with torch.compile. The models are GPTs of 125
million and 1 billion parameters in bfloat16, and each GPU has one rank.

    tools/dev bench gpu-step [--models 125m,1b] [--ranks 1] [--steps 30] [--repeat 3] [--rows "accel;accel, fp8"]

If nothing can be installed, run python3 bench/gpu_step.py --accel build/src/cli/accel with a python3 that has torch.
accel and its peers take turns, and the first ten steps do not count. Each value is a median, with the range of the
runs' medians. Memory is the peak that tensors allocate on one GPU. MFU is the share of the GPU's peak that the products
of the model take. Host is the time of a step in which the host does not wait for the GPU; accel's is the median step
without the mean `reduce_s`, in which it waits. `--json FILE` writes the values as JSON, too.
`--device cpu --models tiny` tries the script.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import torch

from step import HERE, launch, run_and_time_accel
sys.path.insert(0, str(HERE.parent / "examples"))
from gpt import GPT  # noqa: E402

MODELS = {
    "tiny": ({"vocabulary": 256, "length": 64, "width": 64, "layers": 2, "heads": 2}, 2),
    "125m": ({"vocabulary": 50304, "length": 1024, "width": 768, "layers": 12, "heads": 12}, 16),
    "1b": ({"vocabulary": 50304, "length": 1024, "width": 2048, "layers": 20, "heads": 16}, 8),
}
ROWS = ["fully_shard", "fully_shard, torch.compile", "accel", "accel, from .pt2", "accel, whole logits", "accel, fp8"]
WARM_UP = 10  # torch.compile compiles during the first steps.
# Products of bfloat16 a second without sparsity, from NVIDIA's data sheets. Other GPUs have no MFU.
PEAKS = {"NVIDIA H100 80GB HBM3": 989.4e12, "NVIDIA H200": 989.4e12, "NVIDIA A100-SXM4-40GB": 312e12,
         "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA A100-PCIE-40GB": 312e12, "NVIDIA A100 80GB PCIe": 312e12}


def flops_per_token(model, sizes):
    """The operations of forward and backward in products, as PaLM counts them (arXiv 2204.02311, appendix B): 6 for each
    element of a matrix, and attention without regard to its causal mask. Recomputation does not count."""
    matrices = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    return 6 * matrices + 12 * sizes["layers"] * sizes["width"] * sizes["length"]


def prepare(folder, sizes, batch, ranks, steps):
    """Writes the model's structure without weights, and tokens for every step; returns the number of parameters, and
    flops_per_token()."""
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
    return sum(parameter.numel() for parameter in model.parameters()), flops_per_token(model, sizes)


def measure_accel(options, folder, sizes, batch, file="gpt.pt", precision="bf16", **model):
    changes = {"use_cpu": options.device == "cpu", "mixed_precision": precision}
    lines, times = run_and_time_accel(options.accel, folder, options.ranks, options.steps, "auto", sizes=sizes, batch=batch,
                                      model={"path": str(folder / file), "init": {"std": 0.02}, **model}, **changes)
    memory = lines[-1].get("max_memory_allocated_bytes", lines[-1]["max_rss_bytes"])
    seconds = statistics.median(line["step_time_s"] for line in lines[WARM_UP:])
    return seconds, memory, seconds - times["reduce_s"] / options.steps, lines[-1]["loss"]


def measure_peer(options, folder, sizes, batch, compiles):
    spec = {"model": sizes, "tokens": str(folder / "tokens.bin"), "batch_size": batch, "steps": options.steps, "lr": 1e-4,
            "device": options.device, "precision": "bfloat16", "compile": compiles, "out": str(folder / "peer.json")}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "peer.yaml").write_text(
        f"distributed_type: FSDP\nuse_cpu: {json.dumps(options.device == 'cpu')}\nnum_processes: {options.ranks}\n"
        "main_process_port: 0\n")
    launch(options.accel, folder / "peer.yaml", "--", sys.executable, HERE / "step_fsdp2.py", folder / "spec.json")
    found = json.loads((folder / "peer.json").read_text())
    return (statistics.median(found["seconds"][WARM_UP:]), found["peak_bytes"],
            statistics.median(found["host_seconds"][WARM_UP:]), found["loss"])


def table(name, options):
    """Measures one model, and prints a table; returns its rows."""
    sizes, batch = MODELS[name]
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        parameters, flops = prepare(folder, sizes, batch, options.ranks, options.steps)
        rows = {
            "fully_shard": lambda: measure_peer(options, folder, sizes, batch, False),
            "fully_shard, torch.compile": lambda: measure_peer(options, folder, sizes, batch, True),
            "accel": lambda: measure_accel(options, folder, sizes, batch),
            "accel, from .pt2": lambda: measure_accel(options, folder, sizes, batch, "gpt.pt2"),
            "accel, whole logits": lambda: measure_accel(options, folder, sizes, batch, fused_head="never"),
            "accel, fp8": lambda: measure_accel(options, folder, sizes, batch, precision="fp8"),
        }
        rows = {row: rows[row] for row in options.rows}
        results = {row: [] for row in rows}
        for _ in range(options.repeat):
            for row, measure in rows.items():
                results[row].append(measure())
    tokens = options.ranks * batch * sizes["length"]
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    peak_flops = PEAKS.get(where, 0) * options.ranks
    print(f"\n{parameters / 1e6:.1f} million parameters, {options.ranks} x {where}, {batch} x {sizes['length']} tokens a rank, bfloat16, "
          f"torch {torch.__version__}\n\n| | tokens/s | range | of the first | MFU | host | peak memory | of the first | last loss |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    seconds, peak, *_ = (statistics.median(values) for values in zip(*next(iter(results.values()))))
    rows = []
    for row, values in results.items():
        times, memory, host, losses = zip(*values)
        median = statistics.median(times)
        mfu = tokens * flops / median / peak_flops if peak_flops else None
        print(f"| {row} | {tokens / median:.0f} | {tokens / max(times):.0f} to {tokens / min(times):.0f} | {seconds / median:.2f} "
              f"| {f'{mfu:.1%}' if mfu else 'unknown'} | {statistics.median(host) * 1e3:.1f} ms | {statistics.median(memory) / 1e9:.2f} GB "
              f"| {statistics.median(memory) / peak:.2f} | {losses[-1]:.3f} |", flush=True)
        rows.append({"model": name, "row": row, "device": where, "tokens_per_s": tokens / median, "mfu": mfu,
                     "host_s": statistics.median(host), "peak_bytes": statistics.median(memory), "last_loss": losses[-1]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--models", default="125m,1b")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=lambda text: text.split(";"), default=ROWS[:4], metavar="ROW;...",
                        help=f"what to measure, of: {'; '.join(ROWS)}. Ratios are those to the first")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.accel = str(pathlib.Path(options.accel).resolve())
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_step: torch sees no GPU here; --device cpu --models tiny tries the script")
    if options.steps <= WARM_UP:
        sys.exit(f"gpu_step: --steps must be more than the {WARM_UP} that do not count")
    unknown = set(options.models.split(",")) - set(MODELS)
    if unknown:
        sys.exit(f"gpu_step: no such model: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if unknown := set(options.rows) - set(ROWS):
        sys.exit(f"gpu_step: no such row: {'; '.join(sorted(unknown))}; there are {'; '.join(ROWS)}")
    rows = []
    for name in options.models.split(","):
        rows += table(name, options)
        if options.json:
            options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
