#!/usr/bin/env python3
"""Computes the held-out loss of the quickstart's GPT from merged safetensors in eager Python, to compare with accel's.

    python examples/held_out_loss.py model.safetensors heldout.txt [--length 128]
"""

import argparse
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from gpt import GPT


def held_out_loss(model: torch.nn.Module, text: bytes, length: int, batch: int = 64) -> float:
    """Returns the mean loss in nats over all windows of `length` + 1 bytes. A window starts every `length` bytes."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    windows = tokens.unfold(0, length + 1, length)
    total = 0.0
    with torch.no_grad():
        for part in windows.split(batch):
            logits = model(part[:, :-1])
            total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()).item() * len(part)
    return total / len(windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=128)
    arguments = parser.parse_args()
    model = GPT(length=arguments.length)
    # The merged file keeps one of two tied tensors; load_state_dict fills both from it.
    missing, unexpected = model.load_state_dict(load_file(arguments.weights), strict=False)
    assert not unexpected and set(missing) <= {"head.weight", "tokens.weight"}, (missing, unexpected)
    assert len(missing) <= 1, missing
    print(f"{held_out_loss(model.eval(), arguments.text.read_bytes(), arguments.length):.6f}")


if __name__ == "__main__":
    main()
