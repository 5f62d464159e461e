"""`accel checkpoints` lists the checkpoints of a run and deletes some, but not the last whole one."""

import fcntl
import json
import os
import pathlib
import zlib

import pytest


def make(root, step, ranks=2):
    directory = root / f"checkpoints/checkpoint_{step}"
    (directory / "model").mkdir(parents=True)
    (directory / "model/data").write_bytes(b"x" * 1000)
    state = {"version": 2, "step": step, "optimizer_steps": step, "epoch": 0, "lr": 0, "seed": 0, "world_size": ranks,
             "skipped_in_a_row": 0, "skipped_since_log": 0, "settings": {},
             "data": {"epoch": 0, "samples_done": 0, "samples": 1, "sequence_length": 0, "shuffle": False}}
    (directory / "trainer_state.json").write_text(json.dumps(state))
    files = [{"name": name, "bytes": (directory / name).stat().st_size, "crc32": zlib.crc32((directory / name).read_bytes())}
             for name in ("model/data", "trainer_state.json")]
    (directory / "accel_manifest.json").write_text(
        json.dumps({"version": 1, "step": step, "world_size": ranks, "files": files, "tensors": {}}))
    return directory


@pytest.fixture
def run(tmp_path):
    root = tmp_path / "run"
    for step in (5, 10, 100):
        make(root, step)
    (make(root, 20) / "model/data").unlink()
    (root / "checkpoints/checkpoint_120.incomplete").mkdir()
    return root


def steps(root):
    return sorted(int(path.name.split("_")[1]) for path in (root / "checkpoints").iterdir() if path.name[-1].isdigit())


def listed(accel, path, *options):
    return json.loads(accel("checkpoints", path, "--json", *options).stdout)["checkpoints"]


@pytest.mark.parametrize("inner", ["", "checkpoints"])
def test_the_losses_of_a_step_stand_beside_it(accel, run, inner):
    records = [{"step": 5, "loss": 5.25}, {"step": 8, "loss": 4.5}, {"step": 10, "eval_loss": 4.75}, {"step": 9, "loss": 4},
               {"step": 100, "eval_loss": 4.875}, {"step": 20, "eval_loss": 1.5}, {"step": 90, "loss": 3.125},
               {"step": 101, "loss": 9}, {"step": 99, "eval_loss": 0.5}, {"step": 100, "eval_loss": None}]
    # A run may be writing its last line.
    lines = [json.dumps(record) for record in records] + ["not JSON", "[1]", '{"step": "x", "loss": 1}', '{"step": 100, "lo']
    (run / "metrics.jsonl").write_text("\n".join(lines))
    found = listed(accel, run / inner)
    assert [(one["step"], one["loss"], one["eval_loss"], one["best"]) for one in found] == [
        (5, 5.25, None, False), (10, 4, 4.75, True), (20, 4, 1.5, False), (100, 3.125, 4.875, False)]
    text = accel("checkpoints", run / inner).stdout.splitlines()
    assert text[0].split() == ["STEP", "SIZE", "RANKS", "WRITTEN", "LOSS", "HELD-OUT", "STATE"]
    assert text[2].endswith("  4.0000    4.7500  whole, best held-out loss") and text[4].endswith("  3.1250    4.8750  whole")
    # Without any evaluation there is no such column.
    (run / "metrics.jsonl").write_text(lines[0] + "\n")
    assert accel("checkpoints", run / inner).stdout.splitlines()[0].split()[-2:] == ["LOSS", "STATE"]
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    result = accel("checkpoints", run / inner)
    assert "metrics.jsonl" in result.stderr and len(result.stdout.splitlines()) == 5


@pytest.mark.parametrize("inner", ["", "checkpoints", "checkpoints/"])
def test_lists_what_a_run_has(accel, run, inner):
    os.utime(run / "checkpoints/checkpoint_5/accel_manifest.json", (0, 1_000_000_000))
    found = listed(accel, f"{run}/{inner}")
    assert [(one["step"], one["ranks"], one["whole"]) for one in found] == [
        (5, 2, True), (10, 2, True), (20, 2, False), (100, 2, True)]
    assert found[0]["written"] == 1_000_000_000
    assert found[2]["why"] == "'model/data' is missing"
    size = sum(file.stat().st_size for file in (run / "checkpoints/checkpoint_5").rglob("*") if file.is_file())
    assert found[0]["bytes"] == size
    text = accel("checkpoints", run, env={"TZ": "UTC"}).stdout.splitlines()
    assert text[0].split() == ["STEP", "SIZE", "RANKS", "WRITTEN", "STATE"]
    assert text[1].split()[-4:] == ["2", "2001-09-09", "01:46:40", "whole"]
    assert text[3].endswith("not whole: 'model/data' is missing")


def test_deletes_the_steps_that_are_named(accel, run):
    result = accel("checkpoints", run, "--delete", 10, "--delete", "20")
    assert steps(run) == [5, 100]
    assert "removed" in result.stderr and "checkpoint_10'" in result.stderr
    assert not list((run / "checkpoints").glob("*.deleting"))


@pytest.mark.parametrize("keep, left", [(1, [100]), (2, [10, 20, 100]), (3, [5, 10, 20, 100]), (9, [5, 10, 20, 100])])
def test_keeps_the_newest_whole_ones(accel, run, keep, left):
    accel("checkpoints", run, "--keep-last", keep)
    assert steps(run) == left


def test_the_best_stays_beside_the_newest(accel, run):
    (run / "metrics.jsonl").write_text('{"step": 5, "eval_loss": 1.0}\n{"step": 10, "eval_loss": 2.0}\n{"step": 100, "eval_loss": 3.0}\n')
    said = accel("checkpoints", run, "--keep-last", 1).stderr
    assert "checkpoint_5' is the best checkpoint, and stays; --delete 5 removes it" in said
    assert steps(run) == [5, 100]


@pytest.mark.parametrize("missing", ["accel_manifest.json", "trainer_state.json"])
def test_what_no_training_wrote_is_deleted_by_name_alone(accel, run, missing):
    """Another program, or `accel save`, may have written a directory of such a name."""
    (run / "checkpoints/checkpoint_5" / missing).unlink()
    said = accel("checkpoints", run, "--keep-last", 1).stderr
    assert "checkpoint_5' is not a checkpoint of a training, and stays; --delete 5 removes it" in said
    assert steps(run) == [5, 100]
    accel("checkpoints", run, "--delete", 5)
    assert steps(run) == [100]


def test_the_last_whole_one_stays_without_force(accel, run):
    everything = ["--delete", "5", "--delete", "10", "--delete", "100"]
    assert "the last whole checkpoint" in accel("checkpoints", run, *everything, code=2).stderr
    assert steps(run) == [5, 10, 20, 100]
    accel("checkpoints", run, *everything, "--force")
    assert steps(run) == [20]
    # One that is not whole may go.
    accel("checkpoints", run, "--delete", "20")
    assert steps(run) == []


def test_a_wrong_step_or_place_is_named(accel, run, tmp_path):
    assert "holds no checkpoint of step 7" in accel("checkpoints", run, "--delete", 7, code=4).stderr
    assert "'x' is not the number of a step" in accel("checkpoints", run, "--delete", "x", code=2).stderr
    assert "'-5' is not the number of a step" in accel("checkpoints", run, "--delete=-5", code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoints of a run" in accel("checkpoints", tmp_path / "empty", code=4).stderr
    assert "is not a directory" in accel("checkpoints", tmp_path / "gone", code=4).stderr
    assert steps(run) == [5, 10, 20, 100]


@pytest.mark.parametrize("inner", ["", "checkpoints"])
def test_nothing_is_deleted_while_a_run_writes(accel, run, inner):
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    owner = {"token": "1", "what": "a run", "run_id": "r", "host": "node07", "boot": boot, "device": os.stat(run).st_dev, "locked": True, "pid": 4211,
             "since": 1_700_000_000, "stale_after_s": 60, "beats": 3}
    with open(run / ".lock", "w") as lock:
        json.dump(owner, lock)
        lock.flush()
        fcntl.lockf(lock, fcntl.LOCK_EX)
        said = accel("checkpoints", run / inner, "--keep-last", 1, code=2).stderr
        assert f"another run is writing into '{run}': its lock is held by node07, pid 4211, since 2023-11-1" in said
        assert "total_limit removes old checkpoints during a run" in said
        assert steps(run) == [5, 10, 20, 100]
        assert len(listed(accel, run)) == 4
    # The owner has let go of it, and this is its kernel: it was killed.
    accel("checkpoints", run / inner, "--keep-last", 1)
    assert steps(run) == [100]
    assert not (run / ".lock").exists()


def test_readers_of_a_run_cannot_block_it(accel, run):
    """Everybody who may read a directory can lock it with flock."""
    lock = os.open(run, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        accel("checkpoints", run, "--keep-last", 1)
    finally:
        os.close(lock)


def test_an_interrupted_removal_is_finished(accel, run):
    (run / "checkpoints/checkpoint_10.deleting").mkdir()
    accel("checkpoints", run, "--delete", 10)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "checkpoint_100", "checkpoint_120.incomplete", "checkpoint_20", "checkpoint_5"]
