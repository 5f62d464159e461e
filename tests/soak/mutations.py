"""Changes files of checkpoints, and compares what accel reads from them with what torch reads."""

import os
import pathlib
import random
import shutil

import commands
import reading
import sources

COMMANDS = ["merge-weights"] * 5 + ["verify"] * 2 + ["inspect", "diff", "save", "load"]


def flip(data, rng):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1:]


def overwrite(data, rng):
    at, count = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 64))
    filling = rng.choice((b"\0", b"\xff", b"\x7f", bytes([rng.randrange(256)]))) * count
    return (data[:at] + filling + data[at + count:])[:len(data)]


def truncate(data, rng):
    return data[:rng.randrange(len(data))]


def extend(data, rng):
    return data + rng.randbytes(rng.choice((1, 8, 4096)))


def duplicate(data, rng):
    at, count = rng.randrange(len(data)), rng.randrange(1, 65)
    return data[:at] + data[at:at + count] * 2 + data[at + count:]


def remove(data, rng):
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randrange(1, 65):]


def move(data, rng):
    at, to, count = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 33)
    return (data[:to] + data[at:at + count] + data[to + count:])[:len(data)]


def digits(data, rng):
    """Replaces a digit with another number. Offsets, shapes and sizes are written in digits."""
    places = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return flip(data, rng)
    at = rng.choice(places)
    return data[:at] + rng.choice((b"0", b"9", b"-1", b"18446744073709551615", b"1e9", str(rng.randrange(10)).encode())) + \
        data[at + 1:]


BYTES = [flip, flip, overwrite, overwrite, truncate, extend, duplicate, remove, move, digits]
# The starts of torch's errors for a pickle that names a missing module, class or attribute.
PICKLE_NAMES = ("ModuleNotFoundError", "ImportError", "AttributeError", "UnicodeDecodeError", "UnpicklingError", "KeyError: 'to")
ESCAPES = ("\x1b[31mred", "two\nlines", "osc\x1b]0;title\x07", "c1\x9b31m", "\r back", "tab\tbed")


class Mutations:
    name = "mutation"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel, self.work = accel, work
        self.sources = sources.make(accel, work / "sources")

    def change(self, directory: pathlib.Path, other: pathlib.Path, rng: random.Random) -> str:
        """Changes or replaces one file below `directory`; returns a description of the change."""
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        # Small files hold the structure, and large files hold mostly data.
        path = rng.choice(files if rng.random() < 0.5 else sorted(files, key=lambda file: file.stat().st_size)[:2])
        name = path.relative_to(directory)
        kind = rng.random()
        if kind < 0.9:
            data, steps = path.read_bytes(), []
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                step = rng.choice(BYTES)
                data = step(data, rng) if data else data
                steps.append(step.__name__)
            path.write_bytes(data)
            return f"{name}: {' '.join(steps)}"
        path.unlink()
        what = rng.choice(("missing", "fifo", "null", "directory", "link to itself", "empty", "another save's", "escape"))
        if what == "fifo":
            os.mkfifo(path)
        elif what == "null":
            path.symlink_to("/dev/null")
        elif what == "directory":
            path.mkdir()
        elif what == "link to itself":
            path.symlink_to(path.name)
        elif what == "empty":
            path.touch()
        elif what == "another save's":
            files = sorted(file for file in other.rglob("*") if file.is_file())
            shutil.copy(rng.choice(files), path)
        elif what == "escape":
            (path.parent / (path.name + rng.choice(ESCAPES))).touch()
        return f"{name}: {what}"

    def one(self, rng: random.Random, directory: pathlib.Path):
        """Returns the variant and the problem, or None as the problem."""
        source = rng.choice(self.sources)
        changed, output = directory / "src", directory / "out"
        shutil.copytree(source.path, changed, symlinks=True)
        how = self.change(changed, rng.choice(self.sources).path, rng)
        entry = changed / source.entry
        command = rng.choice(COMMANDS)
        words = {
            "merge-weights": ["merge-weights", entry, output],
            "verify": ["verify", entry],
            "inspect": ["inspect", entry],
            "diff": ["diff", entry, source.path / source.entry],
            "save": ["save", entry, output, "--type", rng.choice(("full", "local", "sharded"))],
            "load": ["load", entry, "--into", self.work / "sources/script/model.pt", "--out", output],
        }[command]
        if rng.random() < 0.2:
            words.append("--json")
        result = commands.run([self.accel, *words], directory)
        variant = f"{source.path.name}, {command}"
        problem = result.misconduct(allowed={0, 1, 2, 3, 4, 5}) or self.judge(source, entry, command, result, output)
        # `verify` accepts a single file that was replaced by the complete file of another save.
        if command == "verify" and source.entry.endswith((".bin", ".pt", ".safetensors")) and "another save's" in how:
            problem = result.misconduct(allowed={0, 3, 4, 5})
        return variant, problem and f"{how}: {problem}\n$ {' '.join(map(str, words))}\n{result.text[-2000:]}"

    def judge(self, source, entry, command, result, output):
        if command in ("merge-weights", "save", "load") and result.code != 0:
            left = [path for path in output.rglob("*")] if output.is_dir() else [output] * output.exists()
            return f"exit code {result.code}, and it left {left}" if left else None
        if result.code != 0:
            return None
        if command == "inspect":
            return None if len(result.out) > 20 else "inspect says nothing"
        if command in ("merge-weights", "save", "load"):
            ours = self.written(command, output)
            if reading.same(ours, source.expected):
                return None
            theirs = self.torch_reads(source, entry)
            # A merge reports if it has not checked checksums. torch may have checked them.
            unchecked = command != "merge-weights" or "are not checked" in result.text or (
                b'"verified":false' in result.out.replace(b" ", b""))
            if reading.same(ours, theirs) or (isinstance(theirs, str) and isinstance(ours, dict) and unchecked):
                return None
            return f"{command} wrote it, but torch reads otherwise\n ours {ours}\n theirs {theirs}\n before {source.expected}"
        theirs = self.torch_reads(source, entry)
        if reading.same(theirs, source.expected):
            return None
        if command == "diff" and isinstance(theirs, dict):
            return f"diff finds nothing, but torch reads otherwise\n theirs {theirs}\n before {source.expected}"
        # `verify` cannot notice a changed name without a manifest, or a changed class name, which only torch looks up.
        renamed = isinstance(theirs, dict) and sorted(theirs.values()) == sorted(source.expected.values())
        if command == "verify" and source.has_sums and not renamed and not str(theirs).startswith(PICKLE_NAMES):
            return f"verify finds nothing, but torch reads otherwise\n theirs {theirs}\n before {source.expected}"
        return None

    @staticmethod
    def written(command, output):
        """Returns what torch reads from the output of the command."""
        if command == "merge-weights":
            return reading.read("safetensors", output / "model.safetensors")
        if command == "load":
            return reading.read("script", output)
        for path in sorted(output.rglob("*")) if output.is_dir() else []:
            if path.name == ".metadata":
                return reading.read("dcp", path.parent)
            if path.name == "pytorch_model_fsdp.bin":
                return reading.read("torch", path)
        return reading.read("local", output)

    @staticmethod
    def torch_reads(source, entry):
        return reading.read_file(entry) if source.kind in ("torch", "safetensors", "script") else reading.read(source.kind, entry)
