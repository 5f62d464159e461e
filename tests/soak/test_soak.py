"""Runs a few cases of each soak campaign on accel, and on faulty programs whose faults the soak must find."""

import collections

import pytest
import soak

CASES = {"mutation": 40, "kill": 10, "full disk": 6, "training": 2, "launch": 8, "config": 30}


def worker(accel_path, tmp_path, campaign, seed=5):
    (tmp_path / "work").mkdir()
    (tmp_path / "found").mkdir()
    return soak.Worker(accel_path, tmp_path / "work", seed, [campaign], tmp_path / "found")


def found(tmp_path):
    return "\n\n".join(path.read_text() for path in sorted((tmp_path / "found").glob("*/problem.txt")))


@pytest.mark.parametrize("campaign", CASES)
def test_nothing_is_wrong(accel_path, tmp_path, campaign):
    run = worker(accel_path, tmp_path, campaign)
    for _ in range(CASES[campaign]):
        run.one()
    assert run.wrong == collections.Counter(), found(tmp_path)
    assert sum(run.counts.values()) == CASES[campaign]


# A shell script that replaces accel, and what the soak must report about it.
LIARS = {
    "mutation": ("exit 0", "torch reads otherwise"),
    "kill": ("mkdir -p out; : > out/model.safetensors; sleep 0.2; exit 0", "it left"),
    "full disk": ("exit 0", "without the output"),
    "launch": ("exit 0", "exit code 0, expected one of [6]"),
    "config": ("echo 'std::bad_alloc' >&2; exit 1", "exit code 1"),
}


@pytest.mark.parametrize("campaign", LIARS)
def test_a_program_that_lies_is_found(accel_path, tmp_path, campaign):
    script, expected = LIARS[campaign]
    run = worker(accel_path, tmp_path, campaign)
    liar = tmp_path / "liar"
    liar.write_text(f"#!/bin/sh\n{script}\n")
    liar.chmod(0o755)
    for chosen in run.campaigns:
        chosen.accel = liar
    for _ in range(CASES[campaign]):
        run.one()
    assert run.wrong, campaign
    assert expected in found(tmp_path)
