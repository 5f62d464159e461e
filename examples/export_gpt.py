#!/usr/bin/env python3
"""Write the quickstart's model as a TorchScript file, and split its text.

    python examples/export_gpt.py gpt.pt [--width 192] [--layers 4] [--length 128] [--seed 0]
    python examples/export_gpt.py gpt.pt --data DIR    also writes DIR/genesis-exodus.{train,heldout}.txt

`accel launch` trains the file without Python. The extra file accel.json names the classes to wrap, so that
TRANSFORMER_BASED_WRAP needs no list.
"""

import argparse
import json
import pathlib

import torch

from gpt import GPT

HELD_OUT = 0.1  # The share of the verses that is held out. They are the last ones.


def split_text(directory: pathlib.Path) -> None:
    source = pathlib.Path(__file__).resolve().parent / "data/genesis-exodus.txt"
    verses = source.read_bytes().splitlines(keepends=True)
    cut = round(len(verses) * (1 - HELD_OUT))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "genesis-exodus.train.txt").write_bytes(b"".join(verses[:cut]))
    (directory / "genesis-exodus.heldout.txt").write_bytes(b"".join(verses[cut:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the TorchScript file to write")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=pathlib.Path, help="write the training and held-out text into this folder")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    model = GPT(arguments.vocabulary, arguments.length, arguments.width, arguments.layers, arguments.heads,
                arguments.dropout)
    notes = {"layer_classes": ["Block"], "non_persistent": []}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.script(model).save(str(arguments.out), _extra_files={"accel.json": json.dumps(notes)})
    count = sum(p.numel() for p in model.parameters())
    print(f"{arguments.out}: {count:,} parameters")
    if arguments.data:
        split_text(arguments.data)


if __name__ == "__main__":
    main()
