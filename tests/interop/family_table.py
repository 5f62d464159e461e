"""Makes docs/models.md: exports a tiny model of each causal-LM family of transformers, trains it, and compares with eager.

    tools/dev models [MODEL_TYPE...]

Each row is printed when it is done and kept in build/models.json, so that a later run goes on. `--again` makes the named
rows (or all) anew, `--list` names the families of the table, and `--every` takes all that transformers has.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "tools/export")]

import torch  # noqa: E402
import transformers  # noqa: E402

import family_configs  # noqa: E402
import family_report  # noqa: E402
import family_row  # noqa: E402

LIMIT_S = 600  # For one family.


def replace(path, text):
    unfinished = path.with_name(f".{path.name}.incomplete")
    unfinished.write_text(text)
    shutil.move(unfinished, path)


class Work:
    """Makes the row in a fork of this process, so that a family that crashes or takes too long does not end the table."""

    def __init__(self, model_type, accel, limit_s=LIMIT_S):
        self.began, self.limit_s = time.monotonic(), limit_s
        self.place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = pathlib.Path(self.place.name)
        self.kept = kept = folder / "row.json"

        def work():
            os.setsid()  # What it starts ends with it.
            torch.set_num_threads(1)  # A fork does not have the other threads of torch.
            family_row.Row(model_type, folder, accel, lambda cells: replace(kept, json.dumps(cells)))

        self.process = multiprocessing.get_context("fork").Process(target=work)
        self.process.start()

    def left_s(self):
        return max(0.0, self.began + self.limit_s - time.monotonic())

    def row(self):
        """Waits for the end, and returns the cells."""
        self.process.join(self.left_s())
        late = self.process.is_alive()
        if late:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()
        cells = json.loads(self.kept.read_text()) if self.kept.exists() else {}
        self.place.cleanup()
        if late or self.process.exitcode != 0:
            reason = f"the family takes longer than {self.limit_s} s" if late else f"the process ends with code {self.process.exitcode}"
            missing = next(column for column in family_row.COLUMNS if column not in cells)
            cells[missing] = {"verdict": "refused", "text": reason}
        return cells


def make_rows(model_types, accel, jobs):
    """Yields each model type, its row and the seconds that it took, `jobs` at a time."""
    waiting, running = list(model_types), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = Work(name, accel)
        multiprocessing.connection.wait([work.process.sentinel for work in running.values()],
                                        min(work.left_s() for work in running.values()))
        for name, work in list(running.items()):
            if not work.process.is_alive() or not work.left_s():
                del running[name]
                yield name, work.row(), time.monotonic() - work.began


def prepare():
    """Imports and runs once what every family needs, so that the forks have it."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    from accel_export import exporter, huggingface  # noqa: F401
    torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),), dynamic_shapes=({0: torch.export.Dim.AUTO},))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--again", action="store_true", help="make rows anew that are there")
    parser.add_argument("--every", action="store_true", help="all families of transformers, and not those of the table alone")
    parser.add_argument("--list", action="store_true", help="name the families and end")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="make N rows at a time (default: 2)")
    options = parser.parse_args()
    if options.list:
        print("\n".join(family_configs.families()))
        return
    build = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", ROOT / "build"))
    accel, kept = build / "src/cli/accel", build / "models.json"
    if not accel.exists():
        sys.exit(f"{accel} is not built; run tools/dev build")
    version = subprocess.run([accel, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    prepare()
    rows = json.loads(kept.read_text()) if kept.exists() else {}
    names = options.families or (family_configs.every_family() if options.every else family_configs.families())
    for name, row, took_s in make_rows([name for name in names if options.again or name not in rows], accel, options.jobs):
        rows[name] = row
        replace(kept, json.dumps(rows, indent=1, sort_keys=True))
        replace(ROOT / "docs/models.md", family_report.markdown(rows, version))
        cells = "; ".join(f"{key}: {cell['text']}" for key, cell in row.items())
        print(f"{name} ({took_s:.0f} s): {cells}", flush=True)
    replace(ROOT / "docs/models.md", family_report.markdown(rows, version))
    print("the table is complete")


if __name__ == "__main__":
    main()
