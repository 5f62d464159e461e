"""The interop matrix: which checkpoints accel and the Python packages read from each other, by torch version.

    tools/dev python tests/interop/matrix.py

It runs the tests of the matrix and writes docs/interop-matrix.md from their outcomes.
"""

import os
import pathlib
import subprocess
import sys

from judges import TORCHES

# Maps (table, row, column, torch) to whether all tests of that cell passed.
SEEN: dict[tuple[str, str, str, str], bool] = {}

READS = "Python writes, accel reads"
WRITES = "accel writes, Python reads"

HEAD = """# Interop matrix

`tools/dev python tests/interop/matrix.py` runs the tests of the matrix and writes this file. Each
cell names the torch versions with which its tests passed, with equal bits. `FAILED` marks the
versions with which they did not pass. An empty cell was not tried, or is impossible: safetensors
has no complex32 and complex128. The versions of accelerate, safetensors and transformers are those
of `tools/requirements.txt` and `tools/requirements-test.txt`.
"""


def _unique(values) -> list[str]:
    return list(dict.fromkeys(values))


def _cell(table: str, row: str, column: str) -> str:
    seen = {version: SEEN[key] for version in TORCHES if (key := (table, row, column, version)) in SEEN}
    passed, failed = ([v for v in seen if seen[v] is wanted] for wanted in (True, False))
    return ", ".join(passed) + (f" FAILED {', '.join(failed)}" if failed else "")


def markdown() -> str:
    text = HEAD
    for table in _unique(key[0] for key in SEEN):
        rows = _unique(key[1] for key in SEEN if key[0] == table)
        columns = _unique(key[2] for key in SEEN if key[0] == table)
        text += f"\n## {table}\n\n| kind | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}\n"
        for row in rows:
            text += f"| {row} | {' | '.join(_cell(table, row, column) for column in columns)} |\n"
    return text


def summary() -> str:
    failed = [key for key, passed in SEEN.items() if not passed]
    text = f"interop matrix: {len(SEEN)} cells, {len(failed)} failed"
    return text + "".join(f"\n  FAILED: {', '.join(key)}" for key in failed)


def main() -> int:
    here = pathlib.Path(__file__).resolve().parent
    out = here.parents[1] / "docs/interop-matrix.md"
    names = ("matrix_read", "matrix_check", "matrix_save", "matrix_write", "transformers")
    tests = [str(path) for name in names if (path := here / f"test_{name}.py").exists()]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-W", "ignore", *tests, *sys.argv[1:]]
    status = subprocess.run(command, cwd=here.parents[1], env={**os.environ, "ACCEL_MATRIX": str(out)}).returncode
    print(f"{out}: written")
    return status


if __name__ == "__main__":
    sys.exit(main())
