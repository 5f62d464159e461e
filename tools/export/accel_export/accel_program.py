"""The program accel, whose `import` makes of a .pt2 file what will be trained."""

import os
import shutil
import subprocess

from .refused import Refused


def find(given, words):
    """Returns the path of the program. Raises Refused if there is none."""
    found = shutil.which(str(given) if given else "accel")
    if found is None:
        where = f"'{given}' is not a program" if given else "there is no program 'accel' in PATH"
        raise Refused(f"{where}, and the comparison with the model is made on what `accel import` makes of the file\n"
                      f"hint: name the program with {words.accel}, or leave the comparison out with {words.no_check}")
    return found


def import_file(program, source, target):
    """Turns the .pt2 file into TorchScript. Raises Refused with what accel says."""
    done = subprocess.run([program, "import", source, target], capture_output=True, text=True,
                          env={**os.environ, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("accel: error: ").replace(f"'{source}': ", "")
        if " in place, and the graph does not say" in said:  # LongRoPE computes a buffer anew in each forward, which tracing holds.
            said = said.partition("\nhint: ")[0] + "\nhint: record the model by tracing: choose a name for the file that ends in .pt"
        raise Refused(f"accel import refuses the file: {said or f'exit code {done.returncode}'}")
    return target
