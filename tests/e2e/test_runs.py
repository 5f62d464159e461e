"""accel runs lists the trainings below a directory, whatever has become of them."""

import json
import os
import signal
import time

import pytest

import train_runs
from launching import wait_for


def records(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def launch(accel, tmp_path):
    """launch(NAME, code=N, **keys) runs a training into tmp_path/runs/NAME until it ends."""
    train_runs.export(tmp_path / "gpt.pt")

    def run(name, code=0, **keys):
        config = train_runs.config(tmp_path, 2, output_dir=str(tmp_path / "runs" / name), **keys)
        return accel("launch", config, code=code)

    return run


def listed(accel, *arguments):
    return json.loads(accel("runs", "--json", *arguments).stdout)["runs"]


@pytest.mark.long
def test_runs_that_have_ended(accel, launch, tmp_path):
    held_out = {"data.eval": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 32},
                "eval_every": 4}
    launch("a", max_steps=6, **held_out)
    launch("sweep/b", code=6, max_steps=6, max_grad_norm=1e-300, **{"optimizer.lr": 1e30})
    last = records(tmp_path / "runs/a")
    runs = listed(accel)
    assert [run["run"] for run in runs] == ["runs/sweep/b", "runs/a"]  # The newest comes first.
    failed, finished = runs
    assert finished["state"] == "finished" and (finished["step"], finished["max_steps"]) == (6, 6)
    assert finished["loss"] == [record for record in last if "loss" in record][-1]["loss"]
    assert finished["eval_loss"] == [record for record in last if "eval_loss" in record][-1]["eval_loss"]
    end = json.loads((tmp_path / "runs/a/run_end.json").read_text())
    assert finished["time"] == end["time"] and abs(time.time() - end["time"]) < 600
    assert failed["state"] == "failed" and failed["eval_loss"] is None
    assert failed["why"] in json.loads((tmp_path / "runs/sweep/b/run_end.json").read_text())["report"]
    lines = accel("runs").stdout.splitlines()
    assert lines[0].split() == ["RUN", "STEP", "LOSS", "HELD-OUT", "WHEN", "STATE"]
    assert lines[2].split()[:5] == ["runs/a", "6", "of", "6", f"{finished['loss']:.4f}"] and lines[2].endswith(" ago  finished")
    assert lines[1].startswith("  runs/sweep/b ") and lines[1].endswith(f"failed: {failed['why']}")


def test_a_run_that_goes_on_and_one_that_was_killed(accel, accel_path, launch, tmp_path):
    launch("ended", max_steps=2)
    config = train_runs.config(tmp_path, 2, max_steps=100_000, output_dir=str(tmp_path / "runs/live"))
    training = train_runs.start(accel_path, config, tmp_path)
    try:
        metrics = tmp_path / "runs/live/metrics.jsonl"
        wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 1, 60)
        live, ended = listed(accel)
        assert (live["run"], live["state"]) == ("runs/live", "running") and 0 < live["step"] < live["max_steps"] == 100_000
        assert (ended["run"], ended["state"]) == ("runs/ended", "finished")
        training.send_signal(signal.SIGKILL)
        training.communicate(timeout=60)
        wait_for(lambda: listed(accel)[0]["state"] == "killed", 30)
    finally:
        training.kill()
        training.communicate()


def test_damage_and_strange_files(accel, launch, tmp_path):
    launch("good", max_steps=2)
    runs = tmp_path / "runs"
    (runs / "cut").mkdir()
    (runs / "cut/config.resolved.json").write_text('{"training": {"max_st')
    (runs / "fifo").mkdir()
    os.mkfifo(runs / "fifo/metrics.jsonl")
    (runs / "binary").mkdir()
    (runs / "binary/config.resolved.json").write_text('{"training": {"max_steps": 9}}')
    (runs / "binary/metrics.jsonl").write_bytes(bytes(range(256)) * 10)
    (runs / "ev\x1b[31mil").mkdir()
    (runs / "ev\x1b[31mil/metrics.jsonl").write_text("")
    os.symlink("/", runs / "everything")
    os.symlink(".", runs / "again")
    os.symlink(runs / "good", runs / "other_name")
    lines = accel("runs", timeout=60).stdout.splitlines()[1:]
    assert "\x1b" not in "".join(lines)
    by_name = {line.split()[0]: line for line in lines}
    assert set(by_name) == {"runs/good", "runs/cut", "runs/binary", "runs/ev\\x1b[31mil"}
    assert "not readable: config.resolved.json is missing or damaged" in by_name["runs/cut"]
    assert by_name["runs/binary"].split()[1:4] == ["0", "of", "9"]
    assert {run["run"]: run["state"] for run in listed(accel)}["runs/cut"] == "damaged"


def test_depth_and_the_directory_itself(accel, tmp_path):
    def make(directory):
        directory.mkdir(parents=True)
        (directory / "config.resolved.json").write_text('{"training": {"max_steps": 5}}')

    make(tmp_path / "x/1/2/3/4/5/6")
    make(tmp_path / "y/1/2/3/4/5/6/7")
    assert [run["run"] for run in listed(accel, "x")] == ["x/1/2/3/4/5/6"]
    assert listed(accel, "y") == [] and accel("runs", "y").stdout == "y: no runs\n"
    [run] = listed(accel, "x/1/2/3/4/5/6")
    assert run == {"run": "x/1/2/3/4/5/6", "state": "killed", "step": 0, "max_steps": 5, "loss": None, "eval_loss": None, "time": None}


def test_no_directory(accel, tmp_path):
    said = accel("runs", code=2).stderr
    assert "'runs' is not a directory" in said and "accel runs DIR looks elsewhere" in said
    assert "'nothing' is not a directory" in accel("runs", "nothing", code=2).stderr
