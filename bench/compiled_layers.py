#!/usr/bin/env python3
"""Compares a training step with compiled layers, without, and with torch's fully_shard and torch.compile, which compiles each
block: the GPT of bench/step.py, and a Llama of its width, two CPU ranks of one thread.

    tools/dev bench compiled-layers [--ranks 2] [--steps 10] [--repeat 3]

The runs take turns, and the first steps do not count. Values are medians with the range of the runs.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

import step
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/export"))
from accel_export import cli, export  # noqa: E402

LLAMA = {"vocab_size": 8192, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
         "intermediate_size": 1376, "max_position_embeddings": 256}
COMPILED = {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_fullgraph": True}}


def export_gpt(path):
    torch.manual_seed(0)
    ids = torch.zeros(step.BATCH, step.SIZES["length"], dtype=torch.long)
    export(step.GPT(**step.SIZES), ids, path, compile=True, check=False, say=lambda text: None)


def export_llama(path):
    import transformers

    torch.manual_seed(0)
    directory = path.parent / "llama"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(directory)
    cli.main([str(directory), str(path), "--weights", "--compile", "--no-check", "--inputs", "input_ids"])


def run_fsdp2(accel, folder, ranks, steps, **model):
    """As step.run_fsdp2, with torch.compile. `model` are keys of the peer's SPEC."""
    spec = {"model": step.SIZES, "tokens": str(folder / "tokens.bin"), "batch_size": step.BATCH, "steps": steps, "lr": 1e-4,
            "out": str(folder / "fsdp2.json"), "compile": True, **model}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "fsdp2.yaml").write_text(f"distributed_type: FSDP\nuse_cpu: true\nnum_processes: {ranks}\nmain_process_port: 0\n")
    step.launch(accel, folder / "fsdp2.yaml", "--", sys.executable, step.HERE / "step_fsdp2.py", folder / "spec.json")
    found = json.loads((folder / "fsdp2.json").read_text())
    return statistics.median(found["seconds"][step.WARM_UP:]), found["peak_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        step.prepare(folder, options.steps, options.ranks)
        rows = {}
        for model, make in (("GPT", export_gpt), ("Llama", export_llama)):
            path = folder / f"{model}.pt2"
            began = time.monotonic()
            make(path)
            print(f"{model}: exported and compiled in {time.monotonic() - began:.0f} s")
            for kind, changes in (("interpreted", {}), ("compiled", COMPILED)):
                rows[f"{model}, accel, {kind}"] = lambda path=path, changes=changes: step.measure_accel(
                    options.accel, folder, options.ranks, options.steps, "auto", model={"path": str(path)}, **changes)
        for model, keys in (("GPT", {}), ("Llama", {"transformers": str(folder / "llama"), "layer": "LlamaDecoderLayer"})):
            rows[f"{model}, fully_shard with torch.compile, gloo"] = lambda keys=keys: run_fsdp2(
                options.accel, folder, options.ranks, options.steps, **keys)
        results = {name: [] for name in rows}
        for _ in range(options.repeat):
            for name, measure in rows.items():
                results[name].append(measure())
    print(f"{options.ranks} ranks of one thread, {step.BATCH} x {step.SIZES['length']} tokens a rank\n\n"
          "| | a step | range | peak memory of a rank |\n| --- | --- | --- | --- |")
    for name, values in results.items():
        times = [value[0] for value in values]
        memory = statistics.median(value[1] for value in values)
        print(f"| {name} | {statistics.median(times):.2f} s | {min(times):.2f} to {max(times):.2f} s | {memory / 1e6:.0f} MB |")


if __name__ == "__main__":
    main()
