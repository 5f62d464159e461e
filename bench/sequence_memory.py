#!/usr/bin/env python3
"""Measures the peak memory of a rank by the length of the sequences and parallelism_config.sp_size.

    tools/dev bench sequence-memory [--lengths 2048,4096,8192] [--ranks 1,2,4] [--width 256] [--layers 4] [--limit MB]

A GPT with causal attention trains for two steps, one sequence a step, in one group of ranks. The peak is that of rank 0
beyond a run with sequences of 64 tokens at the same sp_size, which holds libtorch and the parameters. --limit sets
RLIMIT_DATA of every process: a length at which a rank then ends for lack of memory has no number.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import tempfile

import torch
from safetensors.torch import save_file
from torch import nn

VOCABULARY, LITTLE = 256, 64


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, length: int, width: int, layers: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 8) for _ in range(layers)])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def run(options, folder, length, ranks, limit):
    """Trains. Returns the peak of rank 0 in bytes, and what the launcher said if a rank ended for lack of memory."""
    work = pathlib.Path(tempfile.mkdtemp(dir=folder))
    positions = max(map(int, options.lengths.split(",")))
    torch.jit.script(Net(positions, options.width, options.layers)).save(
        str(work / "net.pt"), _extra_files={"accel.json": json.dumps({"layer_classes": ["Block"]})})
    ids = torch.randint(VOCABULARY, (2, length + 1))
    save_file({"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous(),
               "position_ids": torch.arange(length).repeat(2, 1)}, work / "data.safetensors")
    (work / "config.yaml").write_text(json.dumps({
        "distributed_type": "FSDP", "use_cpu": True, "num_processes": ranks, "main_process_port": 0,
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        "parallelism_config": {"sp_size": ranks},
        "training": {
            "model": {"path": str(work / "net.pt"), "inputs": ["input_ids", "position_ids"]},
            "data": {"train": {"format": "tensors", "path": str(work / "data.safetensors")}, "batch_size": 1},
            "optimizer": {"type": "sgd", "lr": 0.1}, "max_steps": 2, "log_every": 1, "output_dir": str(work / "out"),
            "checkpoint": {"every": 0, "resume": "none"}}}))
    done = subprocess.run([options.accel, "launch", work / "config.yaml"], capture_output=True, text=True,
                          preexec_fn=lambda: limit and resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
    if done.returncode == 0:
        records = [json.loads(line) for line in (work / "out/metrics.jsonl").read_text().splitlines()]
        return max(record["max_rss_bytes"] for record in records if "max_rss_bytes" in record), ""
    if "memory" not in done.stderr and "bad_alloc" not in done.stderr:
        raise SystemExit(done.stderr)
    return None, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accel", required=True)
    parser.add_argument("--lengths", default="2048,4096,8192")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--limit", type=int, default=0, metavar="MB", help="of the data of a process; 0 for none")
    options = parser.parse_args()
    ranks = [int(number) for number in options.ranks.split(",")]
    print("| tokens |" + "".join(f" sp_size {number} |" for number in ranks) + "\n| --- |" + " --- |" * len(ranks))
    with tempfile.TemporaryDirectory() as name:
        little = {number: run(options, name, LITTLE, number, 0)[0] for number in ranks}
        for length in map(int, options.lengths.split(",")):
            cells = []
            for number in ranks:
                peak, said = run(options, name, length, number, options.limit * 1_000_000)
                cells.append("out of memory" if said else f"{(peak - little[number]) / 1e6:.0f} MB")
            print(f"| {length} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
