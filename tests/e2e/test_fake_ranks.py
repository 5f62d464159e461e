"""Ranks of a large world run alone, with a backend that makes up the others."""

import json
import math
import subprocess

import pytest

import fake_ranks
import train_runs

WORLD = 1024


def run_rank(accel_path, resolved, rank):
    command, environment = fake_ranks.command(accel_path, resolved, rank, WORLD)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def config(tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    return train_runs.config(tmp_path, 2, max_steps=2)


@pytest.mark.parametrize("rank", [0, 511, 1023])
def test_a_rank_of_1024_trains_alone_and_says_that_it_is_not_real(accel_path, tmp_path, config, rank):
    result = run_rank(accel_path, fake_ranks.resolve(accel_path, config, WORLD), rank)
    # A loss that is not finite ends a run with an error, on any rank.
    assert result.returncode == 0, result.stderr
    assert "backend fake: THE OTHER RANKS DO NOT EXIST" in result.stderr
    assert (tmp_path / "out/metrics.jsonl").exists() == (rank == 0)
    if rank == 0:
        losses = train_runs.metrics(tmp_path)
        assert len(losses) == 2 and all(map(math.isfinite, losses))


@pytest.mark.parametrize("section, values, message", [
    ("checkpoint", {"every": 1}, "with the backend fake no checkpoint is written or read"),
    ("checkpoint", {"resume_from": "out/checkpoints/checkpoint_1"}, "with the backend fake no checkpoint is written or read"),
    ("model", {"broadcast_from_rank0": True}, "with the backend fake there is no rank 0 that reads the weights")])
def test_it_writes_no_checkpoint_and_needs_no_other_rank(accel_path, tmp_path, config, section, values, message):
    resolved = fake_ranks.resolve(accel_path, config, WORLD)
    document = json.loads(resolved.read_text())
    assert document["training"][section].keys() >= values.keys()
    document["training"][section].update(values)
    resolved.write_text(json.dumps(document))
    result = run_rank(accel_path, resolved, 0)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not (tmp_path / "out/checkpoints").exists()


def test_no_setting_gives_the_backend(accel, config):
    result = accel("check", config, "--set", "launch.backend=fake", code=2)
    assert "'launch.backend' must be one of auto, nccl, gloo, shm; found 'fake'" in result.stderr
