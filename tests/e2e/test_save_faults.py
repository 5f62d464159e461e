"""One of two ranks meets a fault in a save (src/base/files/fault.hpp). The newest complete checkpoint stays valid,
and the next run works. tests/unit/train/checkpoint/save_crash_test.cpp tries every call of one rank's save."""

import json
import shutil

import pytest

import train_runs

WORKER = """#!/bin/sh
if [ "$RANK" = {rank} ]; then export {variable}; fi
exec {worker}
"""


@pytest.fixture
def run(accel, accel_path, tmp_path):
    """run(RANK, VARIABLE, CODE) trains two steps and saves after each. Only that rank gets the environment variable."""
    train_runs.export(tmp_path / "gpt.pt")
    worker = accel_path.parent.parent / "train/accel-worker"

    def started(rank, variable, code):
        (tmp_path / "out/metrics.jsonl").unlink(missing_ok=True)
        script = tmp_path / "worker"
        script.write_text(WORKER.format(rank=rank, variable=variable, worker=worker))
        script.chmod(0o755)
        config = train_runs.config(tmp_path, 2, max_steps=2, checkpoint={"every": 1, "total_limit": 1, "resume": "none"},
                                   **{"launch.worker": str(script)})
        return accel("launch", config, code=code).stderr

    return started


def remove_checkpoints(tmp_path):
    for path in (tmp_path / "out/checkpoints").glob("checkpoint_?"):
        shutil.rmtree(path)


def calls_of(run, tmp_path, rank):
    """Returns the calls of a run without faults, and the number of the second save's first call."""
    log = tmp_path / "calls"
    for variable in ("NONE=1", f"ACCEL_FAULT_LOG={log}"):  # The first run creates directories that later runs find.
        run(rank, variable, 0)
        remove_checkpoints(tmp_path)
    calls = [line.split(" ", 2) for line in log.read_text().splitlines()]
    second = next(int(number) for number, _, path in calls if "checkpoint_2" in path)
    return calls, second


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "out/checkpoints").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_leaves_nothing_of_the_save_behind(accel, run, tmp_path, rank):
    """The error names the rank whose disk is full, and the unfinished checkpoint is removed at once."""
    calls, second = calls_of(run, tmp_path, rank)
    for number in sorted({second, (second + int(calls[-1][0])) // 2}):
        said = run(rank, f"ACCEL_FAULT=full@{number}", 6)
        assert f"rank {rank} of 2 failed: " in said and "No space left on device" in said, number
        assert names(tmp_path) == ["checkpoint_1"]
        assert accel("verify", tmp_path / "out/checkpoints/checkpoint_1").returncode == 0
        remove_checkpoints(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_leaves_a_whole_checkpoint_and_the_next_run_works(accel, run, tmp_path, rank):
    calls, second = calls_of(run, tmp_path, rank)
    last = int(calls[-1][0])
    for number in range(second, last + 1, max(1, (last - second) // 3)):
        said = run(rank, f"ACCEL_FAULT=kill@{number}", 6)
        assert "SIGKILL" in said, said
        complete = [name for name in names(tmp_path) if "." not in name]
        assert complete
        accel("verify", tmp_path / "out/checkpoints" / complete[-1])
        remove_checkpoints(tmp_path)
        run(rank, "NONE=1", 0)
        assert names(tmp_path) == ["checkpoint_2"]
        accel("verify", tmp_path / "out/checkpoints/checkpoint_2")
        remove_checkpoints(tmp_path)


def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(run, tmp_path):
    said = run(0, "ACCEL_FAULT=fail@rmdir:EACCES", 0)
    assert "an old checkpoint in '" in said and "Permission denied" in said
    assert names(tmp_path) == ["checkpoint_1.deleting", "checkpoint_2"]


@pytest.mark.long(but="ENOSYS")
@pytest.mark.parametrize("error", ["ENOSYS", "EOPNOTSUPP", "EINVAL"])
def test_a_file_system_without_fsync_is_written(accel, run, tmp_path, error):
    faults = f"fail@sync:{error},fail@sync-dir:{error}"
    run(0, f"ACCEL_FAULT={faults}", 0)
    assert names(tmp_path) == ["checkpoint_2"]
    accel("verify", tmp_path / "out/checkpoints/checkpoint_2")
    accel("merge-weights", tmp_path / "out", tmp_path / "merged", env={"ACCEL_FAULT": faults})
    accel("diff", tmp_path / "merged", tmp_path / "out/checkpoints/checkpoint_2/pytorch_model_fsdp_0")
    accel("merge-weights", tmp_path / "out", tmp_path / "again", env={"ACCEL_FAULT": "fail@sync:EIO"}, code=1)


@pytest.mark.long
def test_a_failed_save_need_not_end_the_run(accel, run, tmp_path):
    """With on_failure: continue the run goes on after a warning, except if the last checkpoint fails."""
    calls, second = calls_of(run, tmp_path, 0)
    first = next(int(number) for number, _, path in calls if "checkpoint_1" in path)
    config = tmp_path / "config.yaml"

    def again(fault, code):
        document = json.loads(config.read_text())
        document["training"]["checkpoint"].update(on_failure="continue", verify=True)
        worker = tmp_path / "worker"
        worker.write_text(worker.read_text().replace(worker.read_text().split("export ")[1].split(";")[0], fault))
        config.write_text(json.dumps(document))
        (tmp_path / "out/metrics.jsonl").unlink(missing_ok=True)
        return accel("launch", config, code=code).stderr

    said = again(f"ACCEL_FAULT=fail@{first + 3}:ENOSPC", 0)
    assert "warning: the checkpoint of step 1 is not saved, and the run goes on: " in said
    assert "No space left on device" in said
    assert names(tmp_path) == ["checkpoint_2"]
    assert accel("verify", tmp_path / "out/checkpoints/checkpoint_2").returncode == 0
    assert [line for line in train_runs.metrics(tmp_path, "checkpoint_error") if "No space left" in line]
    remove_checkpoints(tmp_path)
    assert "No space left on device" in again(f"ACCEL_FAULT=fail@{second + 3}:ENOSPC", 6)
    assert names(tmp_path) == ["checkpoint_1"]
