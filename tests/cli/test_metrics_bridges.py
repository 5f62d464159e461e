"""The bridges of examples/ give each record to the tracker, and name the run so that it goes on as the same one."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
# Stands for the package: prints how a run is opened, and what it is given.
TRACKER = """
import contextlib, itertools, json, os
def say(*what): print(json.dumps(what))
def init(**options):
    say("open", options.get("id") or options["name"])
    return __import__(__name__)
def log(numbers, step): say("log", step, numbers)
log_metrics = log
def finish(): say("finish")
class Info: pass
@contextlib.contextmanager
def start_run(run_id, run_name):
    run = Info()
    run.info = Info()
    run.info.run_id = run_id or os.urandom(4).hex()
    say("open", run.info.run_id)
    yield run
    say("finish")
"""
RECORDS = [{"step": 3, "loss": 0.5, "time": 1.5}, {"step": 4, "checkpoint": "there", "bytes": 8}]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_bridge(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(TRACKER)

    def run(directory, first_step):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / "config.resolved.json").write_text('{"training": {}}')
        result = subprocess.run(
            [sys.executable, EXAMPLES / f"metrics_to_{name}.py"], input="".join(json.dumps(record) + "\n" for record in RECORDS),
            env={**os.environ, "PYTHONPATH": str(tmp_path), "ACCEL_OUTPUT_DIR": str(tmp_path / directory),
                 "ACCEL_FIRST_STEP": str(first_step)}, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        (_, opened), *said, last = map(json.loads, result.stdout.splitlines())
        assert last == ["finish"] and [(kind, step) for kind, step, _ in said] == [("log", 3), ("log", 4)]
        assert said[0][2]["loss"] == 0.5 and said[1][2]["bytes"] == 8 and "checkpoint" not in said[1][2]
        return opened

    begun, gone_on, begun_anew = run("gpt", 1), run("gpt", 3), run("gpt", 1)
    assert begun == gone_on != begun_anew == run("gpt", 3)
    # Two runs whose directories have one name are two.
    (tmp_path / "other").mkdir()
    assert run("other/gpt", 1) not in (begun, begun_anew)
    # One that goes on and had no bridge before gets a name.
    assert run("late", 3) == run("late", 5)
