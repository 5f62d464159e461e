"""Makes docs/models.md: exports a tiny model of each causal-LM family of transformers, trains it, and compares with eager.

    tools/dev models [MODEL_TYPE...]

Each row is printed when it is done and kept in build/models.json, so that a later run goes on. `--again` makes the named
rows (or all) anew, `--list` names the families of the table, and `--every` takes all that transformers has.
"""

import argparse
import json
import multiprocessing
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

LIMIT_S = 300  # For one family.


def replace(path, text):
    unfinished = path.with_name(f".{path.name}.incomplete")
    unfinished.write_text(text)
    shutil.move(unfinished, path)


def make_row(model_type, accel, limit_s=LIMIT_S):
    """Makes the row in a fork of this process, so that a family that crashes or takes too long does not end the table."""

    def work():
        os.setsid()  # What it starts ends with it.
        torch.set_num_threads(1)  # A fork does not have the other threads of torch.
        family_row.Row(model_type, folder, accel, lambda cells: replace(kept, json.dumps(cells)))

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = pathlib.Path(place)
        kept = folder / "row.json"
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(limit_s)
        late = process.is_alive()
        if late:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        cells = json.loads(kept.read_text()) if kept.exists() else {}
        if late or process.exitcode != 0:
            reason = f"the family takes longer than {limit_s} s" if late else f"the process ends with code {process.exitcode}"
            missing = next(column for column in family_row.COLUMNS if column not in cells)
            cells[missing] = {"verdict": "refused", "text": reason}
        return cells


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
    for name in options.families or (family_configs.every_family() if options.every else family_configs.families()):
        if name in rows and not options.again:
            continue
        began = time.monotonic()
        rows[name] = make_row(name, accel)
        replace(kept, json.dumps(rows, indent=1, sort_keys=True))
        replace(ROOT / "docs/models.md", family_report.markdown(rows, version))
        cells = "; ".join(f"{key}: {cell['text']}" for key, cell in rows[name].items())
        print(f"{name} ({time.monotonic() - began:.0f} s): {cells}", flush=True)
    replace(ROOT / "docs/models.md", family_report.markdown(rows, version))
    print("the table is complete")


if __name__ == "__main__":
    main()
