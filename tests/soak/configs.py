"""Runs `accel plan` on faulty configurations. It must print a plan, or an error that names the file."""

import json
import pathlib
import random
import shutil
import sys

import commands
import mutations
import sources

sys.path.insert(0, str(sources.TESTS))
import train_runs  # noqa: E402

VALUES = [None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e308, 10**19, 2**63, "", " ", "none", "auto", "0", "1e-4", "yes", "nan", "inf",
          [], [1], {}, {"a": 1}, "x" * 5000, "\x1b[31m", "a\nb", "ä", "/", "../..", "/dev/null", "/nonexistent", "[", "(", "*", "Block",
          [[]], [None], "FULL_SHARD", "bf16", "NO"]


def places(document, path=()):
    found = []
    for key, value in document.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


class Configs:
    name = "config"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel = accel
        self.template = work / "config"
        self.template.mkdir(parents=True)
        train_runs.export(self.template / "gpt.pt", layers=1, width=16)

    def one(self, rng: random.Random, directory: pathlib.Path):
        shutil.copy(self.template / "gpt.pt", directory)
        path = train_runs.config(directory)
        document = json.loads(path.read_text())
        for _ in range(rng.choice((1, 1, 2, 3))):
            *outer, key = rng.choice(places(document))
            section = document
            for name in outer:
                section = section[name]
            what = rng.random()
            if what < 0.6:
                section[key] = rng.choice(VALUES)
            elif what < 0.75:
                del section[key]
            elif what < 0.9:
                section[key + rng.choice("sx_")] = section.pop(key)
            else:
                section[rng.choice(list(section))] = section[key]
        text = json.dumps(document, indent=1)
        variant = "values"
        if rng.random() < 0.25:
            variant = "bytes"
            data = rng.choice(mutations.BYTES)(text.encode(), rng)
            path.write_bytes(data)
        else:
            path.write_text(text)
        result = commands.run([self.accel, "plan", path, *(["--json"] if rng.random() < 0.2 else [])], directory)
        problem = result.misconduct(allowed={0, 2, 4, 5})
        if not problem and result.code == 2 and "config.yaml" not in result.text:
            problem = "the error does not name the file"
        return variant, problem and f"{problem}\n{result.text[-2000:]}\n{path.read_text(errors='replace')}"
