#!/usr/bin/env python3
"""Write a convolutional classifier of handwritten digits with its pictures, and check what accel made of it.

    python examples/digits.py runs/digits                    writes runs/digits/{digits.pt2,train.safetensors,held-out.safetensors}
    accel launch configs/digits.yaml                         trains
    accel merge-weights runs/digits/out/checkpoints runs/digits/merged
    python examples/digits.py runs/digits --check            prints the held-out loss and accuracy in eager Python

The pictures are those of examples/data/digits.csv.gz. Every sixth of the 1797 is held out.
"""

import argparse
import pathlib

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file


class Block(nn.Sequential):
    """[batch, channels, height, width] -> [batch, wider, height / 2, width / 2]."""

    def __init__(self, channels: int, wider: int):
        super().__init__(nn.Conv2d(channels, wider, 3, padding=1), nn.ReLU(), nn.Conv2d(wider, wider, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2))


def classifier() -> nn.Module:
    """Returns a model of pictures [batch, 1, 8, 8] -> logits [batch, 10]."""
    return nn.Sequential(Block(1, 32), Block(32, 64), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 2 * 2, 10))


def write(directory: pathlib.Path) -> None:
    # Each line has the 64 pixels of a picture, from 0 to 16, and its digit.
    rows = numpy.loadtxt(pathlib.Path(__file__).resolve().parent / "data/digits.csv.gz", delimiter=",", dtype=numpy.float32)
    pictures = torch.from_numpy(rows[:, :-1] / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(rows[:, -1]).long()
    held_out = torch.arange(len(labels)) % 6 == 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", ~held_out), ("held-out", held_out)):
        save_file({"pictures": pictures[part], "labels": labels[part]}, directory / f"{name}.safetensors")

    torch.manual_seed(0)
    model = classifier().train()
    program = torch.export.export(model, (pictures[:4],), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(program, directory / "digits.pt2")
    print(f"{directory / 'digits.pt2'}: {sum(p.numel() for p in model.parameters()):,} parameters")


def check(directory: pathlib.Path) -> None:
    model = classifier().eval()
    model.load_state_dict(load_file(directory / "merged/model.safetensors"))
    held_out = load_file(directory / "held-out.safetensors")
    with torch.no_grad():
        logits = model(held_out["pictures"])
    loss = F.cross_entropy(logits, held_out["labels"]).item()
    right = (logits.argmax(1) == held_out["labels"]).float().mean().item()
    print(f"held-out loss {loss:.6f}, accuracy {right:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="check DIRECTORY/merged/model.safetensors")
    arguments = parser.parse_args()
    (check if arguments.check else write)(arguments.directory)


if __name__ == "__main__":
    main()
