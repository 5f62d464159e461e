"""Files after the shape of those that public repositories ship: what accel makes of each, beside what accelerate does.

ACCEL_ACCELERATE_CONFIGS=PATH writes the table docs/public-configs.md beside PATH (`tools/dev accelerate-configs`). Without it
the table that is made anew is compared with the committed one.
"""

import os
import pathlib
import re
import subprocess
import sys

import accelerate_files
import pytest
import train_runs
import yaml
from public_configs import FILES

PAGE = train_runs.ROOT / "docs/public-configs.md"
WRITES = os.environ.get("ACCEL_ACCELERATE_CONFIGS")
HEAD = """# The configuration files of public repositories

`tools/dev accelerate-configs` writes this table. Its files have the shape of files that public
repositories ship for accelerate: the same keys, values and mistakes. They are in
`tests/interop/public_configs.py`.

- **accel**: what `accel check FILE -- PROGRAM` says on a machine without GPUs. The file is taken,
  or refused with exit code 2 and the message.
- **processes**: how many `accel launch FILE -- PROGRAM` starts. A test compares the number, and the
  variables that the program gets, with those of `accelerate launch`.
- **accelerate 1.15 differs**: where it does otherwise. It is not compared where accel lacks a
  system.

| file | accel | processes | accelerate 1.15 differs |
| --- | --- | --- | --- |
"""


@pytest.fixture
def run(accel_path, tmp_path):
    """run(ARGS...) runs accel without GPUs. Returns the exit code, stdout and stderr."""
    environment = {**accelerate_files.without_variables(), "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}

    def ended(*arguments):
        result = subprocess.run([accel_path, *map(str, arguments)], cwd=tmp_path, env=environment, text=True, timeout=120,
                                stdin=subprocess.DEVNULL, capture_output=True)
        return result.returncode, result.stdout, result.stderr

    return ended


def without_place(text):
    return re.sub(r"^\s*\S+\.(yaml|json):\d+:\d+: ", "", text)


def section(text, title):
    """The lines of a section of what `accel check` prints."""
    lines = text.split(f"\n{title}\n\n")[1].split("\n\n")[0].splitlines() if f"\n{title}\n" in text else []
    return [without_place(line) for line in lines]


def accelerates(path):
    """What accelerate makes of a file: the number of processes and the variables of a program, or the error."""
    try:
        return accelerate_files.launch_of(path), None
    except (ValueError, TypeError, AttributeError) as error:
        return None, error


def require_as_stated(name, file, ours, theirs, error):
    """accelerate does the same as accel, but for what `file.otherwise` says."""
    words = file.otherwise or ""
    if words.startswith("accelerate starts one process"):
        assert theirs[0] == 1 < ours[0], name
    elif words.startswith("accelerate wants the flag"):
        assert "--num_processes" in str(error), (name, error)
    elif "refuses" in words:
        assert isinstance(error, ValueError) and "unknown keys" in str(error), (name, error)
    else:
        assert error is None and (ours is None or ours[0] == theirs[0]), (name, ours, theirs, error)
    if ours is None or theirs is None:
        return
    different = {key for key in ours[1] | theirs[1] if ours[1].get(key) != theirs[1].get(key)}
    # What ACCELERATE_USE_CPU asks for is in a run of accel that has no GPU anyway.
    different -= {"ACCELERATE_USE_CPU"} if words.startswith("accelerate starts one process") else set()
    stated = {word for word in words.split() if word.isupper() and "_" in word}
    if words.startswith("accelerate takes the letters"):
        stated = {key for key in ours[1] if key.startswith("ACCELERATE_FP8_OVERRIDE_")}
    assert different == stated, (name, different)


def row(name, file, run, path):
    """The row of the table."""
    code, out, err = run("check", path, "--all", "--", sys.executable)
    differs = file.otherwise or ""
    if file.refusal:
        assert code == 2 and out == "", (name, code, err)
        said = without_place(err.splitlines()[0].removeprefix("accel: error: "))
        assert file.refusal in said, (name, said)
        if file.otherwise:
            theirs, error = accelerates(path)
            if "passes over" in file.otherwise:
                assert error is None
            else:
                require_as_stated(name, file, None, theirs, error)
        return f"| {name} | refused: {said} | | {differs} |"
    assert code == 0, (name, err)
    # That this machine has no GPU is not of the file.
    warnings = [text for text in section(out, "Warnings:") if not text.strip().startswith("on CPUs ")]
    assert [file.warning] == [text[:len(file.warning)] for text in warnings] if file.warning else not warnings, (name, out)
    values = {line.split()[0]: line.split()[1] for line in out.splitlines() if len(line.split()) > 2}
    processes = int(values["num_processes"])
    document = yaml.safe_load(path.read_text())
    if document.get("num_machines", 1) == 1:
        code, out, err = run("launch", path, "--main-process-port", 0, "--", "env")
        assert code == 0, (name, err)
        variables = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        runs_by_itself = document.get("distributed_type") in ("NO", False)  # NO without quotes is False in YAML.
        assert variables.get("WORLD_SIZE") == (None if runs_by_itself else str(processes)), name
        require_as_stated(name, file, (processes, accelerate_files.meaning_of(variables)), *accelerates(path))
    return f"| {name} | {'; '.join(['taken', *(f'warning: {text}' for text in warnings)])} | {processes} | {differs} |"


@pytest.mark.long
def test_the_table_is_that_of_the_page(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(FILES) >= 70
    rows = []
    for name, file in FILES.items():
        text = file.content if isinstance(file.content, str) else yaml.safe_dump(file.content)
        path = tmp_path / f"config.{'json' if text.startswith('{') else 'yaml'}"
        path.write_text(text)
        rows.append(row(name, file, run, path))
    page = HEAD + "".join(f"{line}\n" for line in rows)
    if WRITES:
        (pathlib.Path(WRITES).parent / PAGE.name).write_text(page)
    assert page == PAGE.read_text()


def test_it_is_said_that_a_system_is_not_there_whatever_else_is_in_the_file(run, tmp_path):
    """A file for another system has keys of its own, and values that accel would refuse elsewhere."""
    file = tmp_path / "config.yaml"
    strange = "no_such_key: 1\nfsdp_config: {no_such_key: 1, fsdp_version: 7}\nmixed_precision: int4\n"
    for asked, system in [("distributed_type: DEEPSPEED\ndeepspeed_config: {no_such_key: [1]}\n", "DeepSpeed"),
                          ("distributed_type: MEGATRON_LM\nmegatron_lm_config: {no_such_key: 1}\n", "Megatron-LM"),
                          ("compute_environment: AMAZON_SAGEMAKER\n", "SageMaker"), ("distributed_type: TPU\n", "TPUs"),
                          ("tpu_use_cluster: true\n", "TPU pods")]:
        file.write_text(strange + asked)
        for command in (["check", file, "--", "true"], ["check", file], ["launch", file, "--", "true"], ["plan", file]):
            code, out, err = run(*command)
            assert code == 2 and f"asks for {system}, which accel does not have" in err and out == "", (command, err)
    # A flag that asks for something else has the last word, and then the rest of the file counts.
    file.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {no_such_key: 1}\nnum_processes: 1\nuse_cpu: true\n")
    assert run("check", file, "--set", "distributed_type=NO", "--", "true")[0] == 0
    file.write_text("distributed_type: DEEPSPEED\nno_such_key: 1\n")
    assert "unknown key 'no_such_key'" in run("check", file, "--set", "distributed_type=NO", "--", "true")[2]
