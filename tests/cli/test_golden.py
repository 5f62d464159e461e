"""Golden tests: each file in golden/ holds a command, its exit code, stdout and stderr.

ACCEL_ACCEPT=1 writes the commands' current results into the files; read the diff before committing it. A new case is a
new file with only its first line, "$ accel ...". Commands run in a fresh copy of inputs/, without GPUs.
"""

import os
import pathlib
import re
import shlex
import shutil

import pytest

HERE = pathlib.Path(__file__).parent
CASES = sorted((HERE / "golden").glob("*.golden"))


def normal(text, directory):
    """Replaces the values that differ from run to run by names."""
    text = text.replace(str(directory), "$DIR")
    text = re.sub(r"host: \S+, pid \d+", "host: HOST, pid PID", text)
    text = re.sub(r"^commit ([0-9a-f]{12}(-dirty)?|unknown)$", "commit COMMIT", text, flags=re.MULTILINE)
    return re.sub(r"\b(accel|libtorch|NCCL) (\d+\.\d+\.\d+\S*|none$)", r"\1 VERSION", text, flags=re.MULTILINE)


def block(name, text):
    """Returns a stream as a golden file holds it, with a note if the last newline is missing."""
    if text and not text.endswith("\n"):
        text += "\n(no newline at the end)\n"
    return f"--- {name}\n{text}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_golden(case, accel, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(HERE / "inputs", work)
    command = case.read_text().split("\n", 1)[0]
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "accel"
    result = accel(*arguments, code=None, cwd=work, env={"CUDA_VISIBLE_DEVICES": "", "HOME": str(work)})
    actual = (f"{command}\nexit code {result.returncode}\n" + block("stdout", normal(result.stdout, work)) +
              block("stderr", normal(result.stderr, work)))
    if os.environ.get("ACCEL_ACCEPT"):
        case.write_text(actual)
    assert case.read_text() == actual
