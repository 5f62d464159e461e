"""Runs a few cases of each soak campaign on accel, and on faulty programs whose faults the soak must find."""

import collections
import multiprocessing

import pytest
import soak

CASES = {"mutation": 40, "kill": 10, "full disk": 6, "training": 2, "launch": 8, "config": 30, "together": 2}


def cases(accel, directory, campaign, liar=None, seed=5):
    """Runs CASES[campaign] cases, of `liar` if it is given. Returns the counts of cases and of wrong ones, by name."""
    (directory / "work").mkdir()
    (directory / "found").mkdir()
    run = soak.Worker(accel, directory / "work", seed, [campaign], directory / "found")
    for chosen in run.campaigns:
        chosen.accel = liar or accel
    for _ in range(CASES[campaign]):
        run.one()
    return run.counts, run.wrong


def in_a_small_process(*arguments):
    """Returns cases(*arguments). A command's peak memory includes that of the process that starts it, and this one may
    have imported anything."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(cases, arguments)


def found(tmp_path):
    return "\n\n".join(path.read_text() for path in sorted((tmp_path / "found").glob("*/problem.txt")))


@pytest.mark.long(but="kill")
@pytest.mark.parametrize("campaign", CASES)
def test_nothing_is_wrong(accel_path, tmp_path, campaign):
    counts, wrong = in_a_small_process(accel_path, tmp_path, campaign)
    assert wrong == collections.Counter(), found(tmp_path)
    assert sum(counts.values()) == CASES[campaign]


# A shell script that replaces accel, and what the soak must report about it.
LIARS = {
    "mutation": ("exit 0", "torch reads otherwise"),
    "kill": ("mkdir -p out; : > out/model.safetensors; sleep 0.2; exit 0", "it left"),
    "full disk": ("exit 0", "without the output"),
    "launch": ("exit 0", "exit code 0, expected one of [6]"),
    # All runs use one port. Only the ranks can notice.
    "together": ('while [ "$1" != -- ]; do shift; done; shift\nexport EXCHANGE_TIMEOUT=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517\n'
                 'RANK=0 "$@" & first=$!; RANK=1 "$@" || exit 1; wait $first', "runs that began together failed"),
    "config": ("echo 'std::bad_alloc' >&2; exit 1", "exit code 1"),
}


@pytest.mark.long
@pytest.mark.parametrize("campaign", LIARS)
def test_a_program_that_lies_is_found(accel_path, tmp_path, campaign):
    script, expected = LIARS[campaign]
    liar = tmp_path / "liar"
    liar.write_text(f"#!/bin/sh\n{script}\n")
    liar.chmod(0o755)
    _, wrong = in_a_small_process(accel_path, tmp_path, campaign, liar)
    assert wrong, campaign
    assert expected in found(tmp_path)
