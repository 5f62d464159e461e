"""Trainings whose output_dir is on a file server that is slow, full or gone for a while, or that goes on from another host."""

import errno
import json

import pytest
import train_runs
from launching import wait_for
from two_hosts import two_hosts  # noqa: F401

STEPS, EVERY = 40, 4
# A host that is gone without a word keeps the directory for so long.
TRAINING = {"max_steps": STEPS, "checkpoint": {"every": EVERY, "resume": "auto"}, "launch.lock_timeout": 15}
HELD = f"checkpoint_{2 * EVERY}.*.incomplete"


@pytest.fixture
def runs(accel_path, two_hosts, tmp_path):
    """What a test does with runs in the folder of two hosts. The fixture kills those that are left."""
    train_runs.export(tmp_path / "gpt.pt")
    begun = []

    class Runs:
        folder = two_hosts.folder / "out"

        @staticmethod
        def begin(host):
            config = train_runs.config(tmp_path, 2, output_dir=str(host.path / "out"), **TRAINING)
            begun.append(train_runs.start(accel_path, config, tmp_path))
            return begun[-1]

        @staticmethod
        def held(host):
            """Begins a run that stops in its second checkpoint, until host.clear(HELD)."""
            host.stall("rename", name=HELD)
            process = Runs.begin(host)
            host.wait_until_stalled(HELD)
            return process

        @staticmethod
        def steps():
            """The steps in metrics.jsonl, whose last line may be in the making."""
            lines = (Runs.folder / "metrics.jsonl").read_text().split("\n")[:-1]
            return [line["step"] for line in map(json.loads, lines) if "loss" in line]

        @staticmethod
        def ended(process, code=0):
            said = process.communicate(timeout=120)[0]
            assert process.returncode == code, said
            return said

    yield Runs
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def undisturbed(accel_path, tmp_path_factory):
    """The manifest, with the sums of all files, of the last checkpoint of a run on this host's own disk."""
    directory = tmp_path_factory.mktemp("undisturbed")
    train_runs.export(directory / "gpt.pt")
    config = train_runs.config(directory, 2, **TRAINING)
    process = train_runs.start(accel_path, config, directory)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    return manifest(directory / "out")


def manifest(folder):
    return json.loads((folder / f"checkpoints/checkpoint_{STEPS}/accel_manifest.json").read_text())


def go_on_and_compare(runs, host, undisturbed):
    """The same command on `host` finishes the run as if nothing had been."""
    said = runs.ended(runs.begin(host))
    assert "resuming from" in said
    assert manifest(runs.folder) == undisturbed


@pytest.mark.long
def test_a_run_goes_on_on_another_host(runs, two_hosts, undisturbed):
    first, second = two_hosts()
    process = runs.held(first)
    process.terminate()
    first.clear()
    assert "stopped" in runs.ended(process, 7)
    go_on_and_compare(runs, second, undisturbed)


@pytest.mark.long
def test_a_run_goes_on_on_another_host_when_its_own_loses_the_file_server(runs, two_hosts, undisturbed):
    first, second = two_hosts()
    process = runs.held(first)
    first.die()
    assert "Transport endpoint is not connected" in runs.ended(process, 6)
    go_on_and_compare(runs, second, undisturbed)


@pytest.mark.long
def test_ranks_train_on_while_a_write_of_the_log_stalls(runs, two_hosts, undisturbed):
    first, _ = two_hosts()
    process = runs.held(first)
    first.stall("write", name="stderr.log")
    first.clear(HELD)
    first.wait_until_stalled("stderr.log")
    wait_for(lambda: runs.steps()[-1] == STEPS, 60)
    assert process.poll() is None
    first.clear()
    said = runs.ended(process)
    log = (runs.folder / "logs/attempt_0/rank_0/stderr.log").read_text()
    assert f"step {STEPS}/{STEPS}" in said and f"step {STEPS}/{STEPS}" in log
    assert manifest(runs.folder) == undisturbed


@pytest.mark.long(but="write-*.distcp")
@pytest.mark.parametrize(("operation", "name"), [("write", "*.distcp"), ("fsync", "*.distcp"), ("rename", "checkpoint_*"),
                                                 ("write", "metrics.jsonl")])
def test_a_run_outlasts_a_file_server_that_does_not_answer(runs, two_hosts, undisturbed, operation, name):
    first, _ = two_hosts()
    process = runs.held(first)
    first.stall(operation, name=name)
    first.clear(HELD)
    first.wait_until_stalled(name)
    assert process.poll() is None
    first.clear()
    runs.ended(process)
    assert manifest(runs.folder) == undisturbed


@pytest.mark.long
@pytest.mark.parametrize(("error", "operation", "name"), [
    (errno.ENOSPC, "write", "*.distcp"), (errno.ENOSPC, "fsync", "*.distcp"), (errno.EIO, "fsync", ".accel_manifest*"),
    (errno.ENOSPC, "write", "metrics.jsonl"), (errno.ESTALE, "all", "*")])
def test_a_file_server_that_fails_leaves_whole_checkpoints(runs, two_hosts, accel, undisturbed, error, operation, name):
    first, second = two_hosts()
    process = runs.held(first)
    first.fail(error, operation, name=name)
    first.clear(HELD)
    said = runs.ended(process, 6)
    assert {errno.ENOSPC: "No space left on device", errno.EIO: "Input/output error", errno.ESTALE: "Stale file handle"}[error] in said
    first.clear()
    whole = [path for path in (runs.folder / "checkpoints").iterdir() if path.suffix != ".incomplete"]
    assert whole
    for checkpoint in whole:
        accel("verify", checkpoint)
    go_on_and_compare(runs, second, undisturbed)
