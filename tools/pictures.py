#!/usr/bin/env python3
"""Draw docs/pictures/*.svg from the numbers in docs/pictures/measured.json.

    tools/dev python tools/pictures.py             draws
    tools/dev python tools/pictures.py --losses    trains the quickstart's model with accel and with fully_shard first, and notes the losses

The numbers of `merge` and `memory` are those of bench/RESULTS.md, which a test compares. The pictures have light and dark
colours, of which a browser takes those of its user.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/pictures"
WIDTH = 720
LIGHT = {"back": "#ffffff", "text": "#1f2328", "dim": "#59636e", "grid": "#d1d9e0", "accel": "#0969da", "peer": "#a8b1bb"}
DARK = {"back": "#0d1117", "text": "#f0f6fc", "dim": "#9198a1", "grid": "#3d444d", "accel": "#4493f8", "peer": "#656c76"}


class Picture:
    """The elements of an SVG of WIDTH x `height`. The colours are names of LIGHT."""

    def __init__(self, height: int, title: str, source: str):
        self.height = height
        self.title = title
        self.elements: list[str] = []
        self.text(20, 26, title, size=15, weight="bold")
        self.text(20, height - 12, source, colour="dim", size=11)

    def text(self, x: float, y: float, text: str, colour: str = "text", size: int = 13, anchor: str = "start", weight: str = "normal"):
        self.elements.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{colour}" font-size="{size}" text-anchor="{anchor}" '
                             f'font-weight="{weight}">{escape(text)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str):
        self.elements.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.5):.1f}" height="{height:.1f}" class="{colour}"/>')

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 1):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{path}" class="{colour}-line" stroke-width="{width}"/>')

    def svg(self) -> str:
        def rules(colours: dict[str, str]) -> str:
            return "".join(f".{name}{{fill:{value}}}.{name}-line{{fill:none;stroke:{value}}}" for name, value in colours.items())

        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}" '
            f'role="img" font-family="system-ui, sans-serif"><title>{escape(self.title)}</title>',
            f"<style>{rules(LIGHT)}@media (prefers-color-scheme:dark){{{rules(DARK)}}}</style>",
            f'<rect width="{WIDTH}" height="{self.height}" class="back"/>',
            *self.elements, "</svg>", ""])


def source_of(entry: dict) -> str:
    return f"{entry['machine']}, commit {entry['commit']}, {entry['date']}"


def bars(picture: Picture, top: float, caption: str, rows: list[tuple[str, float, str]], left: float = 290) -> None:
    """Draws (name, value, label) as horizontal bars on one scale. The bars of accel have its colour."""
    picture.text(20, top, caption, colour="dim")
    scale = (WIDTH - left - 100) / max(value for _, value, _ in rows)
    for index, (name, value, label) in enumerate(rows):
        y = top + 12 + 26 * index
        picture.text(left - 10, y + 14, name, anchor="end")
        picture.bar(left, y, value * scale, 18, "accel" if name.startswith("accel ") else "peer")
        picture.text(left + max(value * scale, 1.5) + 8, y + 14, label)


def merge(entry: dict) -> Picture:
    picture = Picture(250, f"Merge of {entry['checkpoint']} into one safetensors file", source_of(entry))
    bars(picture, 56, "seconds", [(name, ms, f"{ms / 1000:.1f} s") for name, ms in entry["milliseconds"].items()])
    bars(picture, 160, "peak memory", [(name, mb, f"{mb:.1f} MB") for name, mb in entry["megabytes"].items()])
    return picture


def memory(entry: dict) -> Picture:
    picture = Picture(176, f"Peak memory of rank 0, a GPT of {entry['parameters']:,} parameters", source_of(entry))
    bars(picture, 56, f"weights, gradients and optimizer state are {entry['state']} together",
         [(f"accel on {ranks} rank{'s' if ranks != '1' else ''}", gb, f"{gb:.2f} GB") for ranks, gb in entry["gigabytes"].items()], 150)
    return picture


def losses(entry: dict) -> Picture:
    ours, theirs = entry["accel"], entry["fully_shard"]
    picture = Picture(400, f"Losses of the quickstart's GPT, {len(ours)} steps on {entry['ranks']} CPU ranks", source_of(entry))
    left, right = 80, WIDTH - 30

    def panel(top: float, bottom: float, low: float, high: float, ticks: dict[float, str], series: list[tuple[str, float, list[float]]]):
        def y(value: float) -> float:
            return bottom - (value - low) / (high - low) * (bottom - top)

        for value, label in ticks.items():
            picture.line([(left, y(value)), (right, y(value))], "grid")
            picture.text(left - 8, y(value) + 4, label, colour="dim", anchor="end", size=11)
        for colour, width, values in series:
            step = (right - left) / (len(values) - 1)
            picture.line([(left + step * index, y(value)) for index, value in enumerate(values)], colour, width)

    panel(70, 240, 2, 6, {2: "2", 3: "3", 4: "4", 5: "5", 6: "6"}, [("peer", 6, theirs), ("accel", 1.5, ours)])
    for x, colour, name in ((430, "peer", "torch's fully_shard"), (590, "accel", "accel")):
        picture.bar(x, 84, 22, 6 if colour == "peer" else 2, colour)
        picture.text(x + 30, 91, name)
    difference = [a - b for a, b in zip(ours, theirs, strict=True)]
    largest = max(map(abs, difference))
    bound = 2 * 10 ** math.ceil(math.log10(largest / 2))
    picture.text(20, 56, "loss, nats a byte", colour="dim")
    picture.text(20, 272, f"loss of accel minus loss of fully_shard, at most {largest:.1e}", colour="dim")
    panel(284, 354, -bound, bound, {-bound: f"{-bound:.0e}", 0: "0", bound: f"{bound:.0e}"}, [("accel", 1.5, difference)])
    for step in range(0, len(ours) + 1, 20):
        picture.text(left + (right - left) * step / len(ours), 370, str(step) if step else "step 0", colour="dim", anchor="middle", size=11)
    return picture


DRAWN = {"merge": merge, "memory": memory, "losses": losses}


def pictures() -> dict[pathlib.Path, str]:
    """Returns the text of each picture by its path."""
    measured = json.loads((FOLDER / "measured.json").read_text())
    return {FOLDER / f"{name}.svg": draw(measured[name]).svg() for name, draw in DRAWN.items()}


def train(accel: str) -> dict[str, list[float]]:
    """Trains the quickstart's model with accel and with fully_shard, on the same samples in their order. Returns the losses."""
    steps, batch, ranks = 100, 12, 2
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def run(*command) -> None:
            subprocess.run([*map(str, command)], cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

        run(sys.executable, ROOT / "examples/export_gpt.py", "runs/quickstart/gpt.pt", "--data", "runs/quickstart/data")
        settings = {"max_steps": steps, "data.batch_size": batch, "data.shuffle": "false", "eval_every": 0, "log_every": 1,
                    "checkpoint.every": 0}
        run(accel, "launch", ROOT / "configs/quickstart.yaml", "--num-processes", ranks,
            *(word for key, value in settings.items() for word in ("--set", f"training.{key}={value}")))
        lines = map(json.loads, (folder / "runs/quickstart/out/metrics.jsonl").read_text().splitlines())
        ours = [line["loss"] for line in lines if "loss" in line]
        spec = {"model": {"length": 128}, "path": str(folder / "runs/quickstart/gpt.pt"), "out": str(folder / "losses.json"),
                "data": str(folder / "runs/quickstart/data/genesis-exodus.train.txt"), "batch_size": batch, "accumulate": 1,
                "lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "no_decay": ["bias", "norm"],
                "warmup_steps": 30, "min_lr_ratio": 0.1, "max_steps": steps, "max_grad_norm": 1.0}
        (folder / "spec.json").write_text(json.dumps(spec))
        run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
            ROOT / "tests/interop/fsdp_reference.py", folder / "spec.json")
        return {"ranks": ranks, "accel": ours, "fully_shard": json.loads((folder / "losses.json").read_text())["loss"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", action="store_true", help="train the two curves first; then write machine, commit and date by hand")
    parser.add_argument("--accel", default="build/src/cli/accel", help="the program to train with")
    arguments = parser.parse_args()
    if arguments.losses:
        measured = json.loads((FOLDER / "measured.json").read_text())
        measured["losses"].update(train(str(pathlib.Path(arguments.accel).resolve())))
        (FOLDER / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    for path, text in pictures().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
