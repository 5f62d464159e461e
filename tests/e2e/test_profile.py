"""`training.profile` writes a Chrome trace of some steps for each rank."""

import json

import pytest

import train_runs


def spans(path):
    """Returns (name, begin, end) of each event with a duration, in microseconds."""
    events = json.loads(path.read_text())["traceEvents"]
    return [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and "dur" in e]


def times(found, name):
    return [(begin, end) for n, begin, end in found if n == name]


def begun_in(found, outer, inner):
    """Returns how many `inner` spans begin within each `outer` span."""
    return [sum(begin <= start < end for start, _ in times(found, inner)) for begin, end in times(found, outer)]


@pytest.mark.long(but="shm-shm:_all_gather_base")
@pytest.mark.parametrize("backend, gather", [("shm", "shm:_all_gather_base"), ("gloo", "gloo:all_gather")])
def test_shows_units_collectives_and_their_overlap(accel, tmp_path, backend, gather):
    train_runs.export(tmp_path / "gpt.pt", layers=3, width=96)
    config = train_runs.config(tmp_path, max_steps=6, **{"profile.steps": [3, 4]})
    said = accel("launch", config, "--set", f"launch.backend={backend}").stderr
    assert f"wrote the profile {tmp_path / 'out/profile/rank_0.json'}" in said
    assert sorted(path.name for path in (tmp_path / "out/profile").iterdir()) == ["rank_0.json", "rank_1.json"]
    for rank in range(2):
        found = spans(tmp_path / f"out/profile/rank_{rank}.json")
        # The trace has two of the six steps.
        for unit in ["(root)", "blocks.0", "blocks.1", "blocks.2"]:
            assert len(times(found, f"unit {unit}")) == 2, unit
        for name in ["aten::addmm", "aten::linear", gather]:
            assert times(found, name), (name, sorted({n for n, _, _ in found}))
        # Each block prefetches the parameters of the next block, so the last block gathers nothing. Gloo shows some
        # collectives twice.
        assert backend == "gloo" or [begun_in(found, f"unit blocks.{i}", gather) for i in range(3)] == [[1, 1], [1, 1], [0, 0]]


def test_without_gathering_ahead_each_unit_asks_for_its_own(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt", layers=3)
    config = train_runs.config(tmp_path, max_steps=2, **{"profile.steps": [2, 2],
                                                         "fsdp_config.fsdp_forward_prefetch": False})
    accel("launch", config)
    found = spans(tmp_path / "out/profile/rank_1.json")
    assert [begun_in(found, f"unit blocks.{i}", "shm:_all_gather_base") for i in range(3)] == [[1], [1], [1]]


def test_units_that_run_again_are_shown(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=2, **{"profile.steps": [2, 2],
                                                            "fsdp_config.fsdp_activation_checkpointing": True})
    accel("launch", config)
    found = spans(tmp_path / "out/profile/rank_0.json")
    assert len(times(found, "unit blocks.1")) == len(times(found, "unit blocks.1, recomputed")) == 1


def test_losses_are_those_of_a_run_without(accel, tmp_path):
    losses = []
    for profile in ({}, {"profile.steps": [1, 6]}):
        directory = tmp_path / str(len(losses))
        directory.mkdir()
        train_runs.export(directory / "gpt.pt")
        accel("launch", train_runs.config(directory, max_steps=6, **profile))
        losses.append(train_runs.metrics(directory))
    assert losses[0] == losses[1]


def test_no_trace_is_left_unfinished_where_it_cannot_be_written(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    for rank in (0, 1):
        (tmp_path / f"out/profile/rank_{rank}.json.incomplete/in the way").mkdir(parents=True)
    error = accel("launch", train_runs.config(tmp_path, max_steps=2, **{"profile.steps": [1, 1]}), code=6).stderr
    assert str(tmp_path / "out/profile/rank_") in error
    assert not list((tmp_path / "out/profile").glob("*.json"))
