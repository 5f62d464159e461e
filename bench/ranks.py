#!/usr/bin/env python3
"""Measures time and memory to plan, wrap and load one rank's shard, by number of ranks. The process group is a fake.

    tools/dev bench ranks [--worlds 8,64,256,1024] [--layers 12] [--width 1024] [--repeat 5]

The world sizes take turns. Each run has its own process, and the files are in the page cache. Values are medians. A
ratio compares the larger value of the two ranks with that of the first world size, in the same stage. Memory is the
peak resident memory above that at the start of the stage. The shard itself, which wrapping allocates, is subtracted.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples"))
from gpt import GPT  # noqa: E402


def prepare(folder, layers, width):
    """Writes the model file, and its weights under their names as safetensors; returns the number of parameters."""
    import safetensors.torch

    torch.manual_seed(0)
    model = GPT(vocabulary=8192 if width < 1024 else 256, length=256, width=width, layers=layers, heads=8)
    torch.jit.script(model).save(str(folder / "gpt.pt"))
    safetensors.torch.save_file({name: value.detach() for name, value in model.named_parameters()},
                                str(folder / "model.safetensors"))
    return sum(parameter.numel() for parameter in model.parameters())


def run(tool, folder, weights, ranks, rank):
    command = [tool, folder / "gpt.pt", weights, ranks, rank, "Block"]
    return json.loads(subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, type=pathlib.Path)
    parser.add_argument("--worlds", default="8,64,256,1024")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    worlds = [int(world) for world in options.worlds.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        parameters = prepare(folder, options.layers, options.width)
        sources = {"load from the .pt": "-", "load from safetensors": folder / "model.safetensors"}
        cases = [(world, rank, source) for world in worlds for rank in (0, world - 1) for source in sources]
        runs = {case: [] for case in cases}
        for turn in range(options.repeat + 1):
            for world, rank, source in cases:
                found = run(options.tool, folder, sources[source], world, rank)
                if turn > 0:  # The first turn reads the files into the page cache.
                    runs[world, rank, source].append(found)
    first = runs[cases[0]][0]
    print(f"{parameters / 1e6:.1f} million parameters in {first['units']} units, {options.repeat} runs of each\n\n"
          "| stage | ranks | shard | rank 0 | last rank | ratio | memory of rank 0 | last rank | ratio |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    stages = [("plan", "load from the .pt", "plan"), ("open", "load from the .pt", "open"),
              ("wrap", "load from the .pt", "wrap"), *((source, source, "load") for source in sources)]
    for title, source, stage in stages:
        base = None
        for world in worlds:
            found = [runs[world, rank, source] for rank in (0, world - 1)]
            shard = found[0][0]["shard_bytes"]
            allocated = shard if stage == "wrap" else 0
            seconds = [statistics.median(one[stage]["seconds"] for one in rank) for rank in found]
            memory = [statistics.median(one[stage]["peak_bytes"] for one in rank) - allocated for rank in found]
            base = base or (max(seconds), max(memory))
            print(f"| {title} | {world} | {shard / 1e6:.2f} MB | {seconds[0] * 1e3:.1f} ms | {seconds[1] * 1e3:.1f} ms "
                  f"| {max(seconds) / base[0]:.2f} | {memory[0] / 1e6:.1f} MB | {memory[1] / 1e6:.1f} MB "
                  f"| {max(memory) / base[1]:.2f} |")


if __name__ == "__main__":
    main()
