"""accel launch --json says what happens to a run, a JSON object a line on stdout, for whatever watches it."""

import fcntl
import json
import os
import subprocess
import time

import train_runs
from machines import machines  # noqa: F401


def events_of(result):
    events = [json.loads(line) for line in result.stdout.splitlines()]
    times = [event["time"] for event in events]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 60
    assert events[-1]["type"] == "finished" and events[-1]["exit_code"] == result.returncode
    return events


def test_a_training_and_its_checkpoints(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    events = events_of(accel("launch", train_runs.config(tmp_path, 2, max_steps=40, checkpoint={"every": 10}), "--json"))
    assert [event["type"] for event in events][:1] == ["started"]
    assert events[0]["world_size"] == 2 and events[0]["attempt"] == 0 and events[0]["command"][0].endswith("accel-worker")
    saved = [event["step"] for event in events if event["type"] == "checkpoint"]
    assert saved == sorted(set(saved)) and saved[-1] == 40  # Two that follow each other within half a second may be one.
    assert {event["type"] for event in events} == {"started", "checkpoint", "finished"}


def test_output_of_ranks_does_not_mix_with_events(accel, tmp_path):
    result = accel("launch", "--json", "--cpu", "--num-processes", "2", "--", "sh", "-c", 'echo "out of $RANK"')
    assert [event["type"] for event in events_of(result)] == ["started", "finished"]
    assert result.stderr == "out of 0\n"


def test_a_failure_and_a_restart(accel, tmp_path):
    program = 'echo $TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3'
    result = accel("launch", "--json", "--cpu", "--num-processes", "2", "--max-restarts", "2", "--", "sh", "-c", program)
    events = events_of(result)
    assert [(event["type"], event.get("attempt")) for event in events] == [
        ("started", 0), ("failed", 0), ("restarted", 1), ("started", 1), ("finished", None)]
    assert "rank 1 of 2 failed: exit code 3" in events[1]["report"]
    assert (events[2]["restarts"], events[2]["max_restarts"]) == (1, 2)
    assert events[3]["restarts"] == 1 and events[3]["run_id"] == events[0]["run_id"]
    failed = accel("launch", "--json", "--cpu", "--", "sh", "-c", "exit 5", code=6)
    assert [event["type"] for event in events_of(failed)] == ["started", "failed", "finished"]


def test_an_error_before_the_start(accel, tmp_path):
    result = accel("launch", "--json", "--cpu", "--", "./missing", code=2)
    assert result.stdout == "" and json.loads(result.stderr)["type"] == "error"


def test_a_rendezvous_of_machines(machines):
    runs = machines.launch(machines(2), "--json", "--cpu", "--num-processes", 2, "--", "true")
    for machine, run in enumerate(runs):
        code, out, said = run.finish(60)
        assert code == 0, said
        events = [json.loads(line) for line in out.splitlines()]
        assert [event["type"] for event in events] == ["rendezvous", "started", "finished"]
        assert (events[0]["num_machines"], events[0]["machine_rank"], events[0]["world_size"]) == (2, machine, 2)
        assert 0 <= events[0]["seconds"] < 60


def test_a_pipe_that_takes_a_part_of_a_line_gets_all_of_it(accel_path):
    """A pipe that does not block takes what it has room for."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    process = subprocess.Popen([accel_path, "launch", "--json", "--cpu", "--", "true", "x" * 50_000], stdout=writer)
    os.close(writer)
    with open(reader) as file:
        events = [json.loads(line) for line in file]
    assert process.wait(30) == 0
    assert [event["type"] for event in events] == ["started", "finished"] and len(events[0]["command"][1]) == 50_000


def test_a_flag_of_the_program_is_none_of_accel(accel):
    said = accel("launch", "--cpu", "--", "./missing", "--json", code=2).stderr
    assert said.startswith("accel: error: ") and "missing" in said
    said = accel("launch", "--cpu", "--json", "--", "./missing", code=2).stderr
    assert json.loads(said)["type"] == "error"
