"""checkpoint.resume with a path, in an output_dir that has checkpoints of its own."""

import json
import shutil

import pytest

import resume_cases
import train_runs
from machines import machines  # noqa: F401
from resume_cases import N
from test_resume import launch, require_equal


def names(directory):
    return {path.name for path in (directory / "out/checkpoints").iterdir()}


@pytest.fixture
def finished(accel_path, made_once, tmp_path):
    """A finished run of 3 N steps with checkpoints of N, 2 N and 3 N."""

    def make(directory):
        resume_cases.prepare(directory, {})
        launch(accel_path, resume_cases.config(directory, {}))

    shutil.copytree(made_once("rollback-finished", make), tmp_path, dirs_exist_ok=True)
    return tmp_path


def roll_back_config(directory, step=N, steps=3 * N, **more):
    path = directory / f"out/checkpoints/checkpoint_{step}"
    return resume_cases.config(directory, {}, steps, **{"checkpoint.resume": str(path), **more})


def test_a_path_is_not_ignored(accel_path, finished):
    """The run, which is finished, did not begin there, so that the launch must not go on with it unasked."""
    before = sorted(finished.rglob("*"))
    said = launch(accel_path, roll_back_config(finished), code=2)
    assert f"out/checkpoints/checkpoint_{N}'" in said and f"checkpoint_{3 * N}'" in said
    assert "--discard-later" in said and "training.checkpoint.resume: auto" in said
    other = finished / "elsewhere"
    shutil.copytree(finished / f"out/checkpoints/checkpoint_{2 * N}", other)
    said = launch(accel_path, resume_cases.config(finished, {}, **{"checkpoint.resume": str(other)}), code=2)
    assert f"'{other}'" in said and f"checkpoint_{3 * N}'" in said
    shutil.rmtree(other)
    assert before == sorted(finished.rglob("*"))


def test_a_run_is_rolled_back_once_by_the_same_command_line(accel_path, finished):
    """The later checkpoints are kept under other names. A requeued launch goes on from the newest one."""
    reference = finished / "reference"
    shutil.copytree(finished / "out", reference / "out")
    said = launch(accel_path, roll_back_config(finished, steps=2 * N), 0, "--discard-later")
    assert f"resuming from '{finished}/out/checkpoints/checkpoint_{N}', step {N} of {2 * N}" in said
    for step in (2 * N, 3 * N):
        assert f"checkpoint_{step}' is renamed to 'checkpoint_{step}.discarded'" in said
    assert names(finished) == {f"checkpoint_{N}", f"checkpoint_{2 * N}", f"checkpoint_{2 * N}.discarded",
                               f"checkpoint_{3 * N}.discarded"}
    said = launch(accel_path, roll_back_config(finished), 0, "--discard-later")
    assert f"resuming from '{finished}/out/checkpoints/checkpoint_{2 * N}'" in said
    assert "was rolled back to" in said
    assert names(finished) == {f"checkpoint_{N}", f"checkpoint_{2 * N}", f"checkpoint_{3 * N}",
                               f"checkpoint_{2 * N}.discarded", f"checkpoint_{3 * N}.discarded"}
    require_equal(finished, reference)
    for flags in ([], ["--discard-later"]):
        assert "the run is finished" in launch(accel_path, roll_back_config(finished), 0, *flags)


def test_a_run_is_rolled_back_on_another_number_of_ranks(accel_path, finished):
    said = launch(accel_path, roll_back_config(finished, 2 * N, num_processes=1, **{"data.batch_size": 8}), 0, "--discard-later")
    assert "the checkpoint is of 2 ranks, and there are 1 now" in said
    assert names(finished) == {f"checkpoint_{3 * N}", f"checkpoint_{3 * N}.discarded", f"checkpoint_{N}",
                               f"checkpoint_{2 * N}"}
    assert len(train_runs.metrics(finished)) == 3 * N


def test_a_run_that_began_elsewhere_is_begun_there_again(accel_path, finished):
    """Without the flag such a run goes on from its own checkpoints, even when the first one is gone."""
    base = finished / "base"
    (finished / "out").rename(base)
    path = base / f"checkpoints/checkpoint_{N}"
    config = resume_cases.config(finished, {}, 2 * N, **{"checkpoint.resume": str(path)})
    launch(accel_path, config)
    assert names(finished) == {f"checkpoint_{2 * N}"}
    config = resume_cases.config(finished, {}, **{"checkpoint.resume": str(path)})
    said = launch(accel_path, config, 0, "--discard-later")
    assert f"resuming from '{path}'" in said
    assert names(finished) == {f"checkpoint_{2 * N}", f"checkpoint_{2 * N}.discarded", f"checkpoint_{3 * N}"}
    assert (finished / "out/metrics.1.jsonl").exists()
    shutil.rmtree(base)
    assert "the run is finished" in launch(accel_path, config, 0, "--discard-later")
    assert "the run is finished" in launch(accel_path, config)


def test_several_machines_roll_back_once(machines, finished):
    hosts = machines(2)
    for step in (N, 2 * N):
        config = roll_back_config(finished, steps=2 * N if step == N else 3 * N)
        ended = [run.finish(120) for run in machines.launch(hosts, config, "--discard-later")]
        assert [code for code, *_ in ended] == [0, 0], ended
        assert f"resuming from '{finished}/out/checkpoints/checkpoint_{step}'" in ended[0][2]
    assert names(finished) == {f"checkpoint_{N}", f"checkpoint_{2 * N}", f"checkpoint_{3 * N}",
                               f"checkpoint_{2 * N}.discarded", f"checkpoint_{3 * N}.discarded"}


def test_discarding_needs_a_path_and_a_training(accel, finished):
    said = accel("launch", resume_cases.config(finished, {}), "--discard-later", code=2).stderr
    assert "--discard-later" in said and "training.checkpoint.resume" in said
    said = accel("launch", "--num-processes", "1", "--discard-later", "--", "true", code=2).stderr
    assert "--discard-later" in said and "training" in said


def test_discarded_checkpoints_are_no_checkpoints_of_the_run(accel, accel_path, finished):
    launch(accel_path, roll_back_config(finished, 2 * N, **{"checkpoint.total_limit": 1}), 0, "--discard-later")
    assert names(finished) == {f"checkpoint_{3 * N}", f"checkpoint_{3 * N}.discarded"}
    listed = json.loads(accel("checkpoints", finished / "out", "--keep-last", "1", "--json").stdout)
    assert [one["step"] for one in listed["checkpoints"]] == [3 * N]
    assert names(finished) == {f"checkpoint_{3 * N}", f"checkpoint_{3 * N}.discarded"}
    (finished / f"out/checkpoints/checkpoint_{3 * N}").rename(finished / "gone")
    said = launch(accel_path, resume_cases.config(finished, {}, **{"checkpoint.resume": "none"}), code=2)
    assert "holds checkpoints of an earlier run" in said
