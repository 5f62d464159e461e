#!/usr/bin/env python3
"""Print the loss curve of a run as text:  python examples/loss_curve.py runs/quickstart/out/metrics.jsonl"""

import json
import pathlib
import sys

WIDTH, HEIGHT = 72, 16


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lines = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    train = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    held_out = [(line["step"], line["eval_loss"]) for line in lines if "eval_loss" in line]
    last = train[-1][0]
    values = [loss for _, loss in train + held_out]
    low, high = min(values), max(values)
    grid = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]
    for points, mark in ((train, "."), (held_out, "o")):
        for step, loss in points:
            row = round((high - loss) / ((high - low) or 1) * HEIGHT)
            grid[row][round(step / last * WIDTH)] = mark
    for row, cells in enumerate(grid):
        print(f"{high - (high - low) * row / HEIGHT:6.2f} |{''.join(cells).rstrip()}")
    print("       +" + "-" * WIDTH)
    print(f"        0{'step ' + str(last):>{WIDTH}}")
    print("        . training loss   o held-out loss   (nats a byte)")


if __name__ == "__main__":
    main()
