"""TensorBoard's own reader shows what metrics.jsonl has, every step once."""

import json
import os
import signal
import subprocess
import sys

import needs
import numpy
import pytest
import resume_cases
import train_runs

pytestmark = pytest.mark.long

# TensorBoard is beside the environment; see tools/dev.
sys.path.append(os.environ.get("ACCEL_TENSORBOARD_PACKAGES", ""))
N = 4


def curves(directory):
    """The scalars of an event directory: for each tag, a list of (step, value, time)."""
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        needs.missing("there is no TensorBoard; tools/dev installs it")
    events = event_accumulator.EventAccumulator(str(directory), size_guidance={event_accumulator.SCALARS: 0}).Reload()
    return {tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]}


def records(directory):
    return [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]


def curve_of(records, name):
    return [(record["step"], numpy.float32(record[name]), record["time"]) for record in records if name in record]


def prepare(directory, steps, **options):
    held_out = directory / "eval.txt"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[:2000])
    return train_runs.config(directory, max_steps=steps, **{
        "metrics.tensorboard": True, "eval_every": 2, "checkpoint": {"every": N, "resume": "auto"},
        "lr_scheduler.total_steps": 3 * N, "data.eval": {"format": "text", "path": str(held_out), "sequence_length": 32},
        **options})


def launch(accel_path, config):
    return subprocess.run([accel_path, "launch", config], capture_output=True, text=True, timeout=300)


def test_a_run_that_was_killed_and_goes_on_has_every_step_once(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    log = tmp_path / "calls"
    worker = resume_cases.faulty_worker(tmp_path, accel_path, 1, f"ACCEL_FAULT_LOG={log}")
    assert launch(accel_path, prepare(tmp_path, N, **{"launch.worker": worker})).returncode == 0
    calls = len(log.read_text().splitlines())
    # Steps 5 to 12 run, and the process is killed while it saves the last of them.
    worker = resume_cases.faulty_worker(tmp_path, accel_path, 1, f"ACCEL_FAULT=kill@{calls + calls // 2 + 1}")
    killed = launch(accel_path, prepare(tmp_path, 3 * N, **{"launch.worker": worker}))
    assert killed.returncode == 6 and signal.Signals.SIGKILL.name in killed.stderr
    before = curves(tmp_path / "out/tensorboard")
    assert before["train/loss"][-1][0] > 2 * N, "the killed run has not gone beyond its last checkpoint"
    assert launch(accel_path, prepare(tmp_path, 3 * N)).returncode == 0

    found, written = curves(tmp_path / "out/tensorboard"), records(tmp_path)
    assert len(list((tmp_path / "out/tensorboard").iterdir())) == 3
    assert [step for step, *_ in found["train/loss"]] == list(range(1, 3 * N + 1))
    assert [step for step, *_ in found["eval/loss"]] == list(range(2, 3 * N + 1, 2))
    assert [step for step, *_ in found["checkpoint/stall_s"]] == [N, 2 * N, 3 * N]
    for tag, name in {"train/loss": "loss", "train/lr": "lr", "train/grad_norm": "grad_norm", "train/epoch": "epoch",
                      "train/samples": "samples",
                      "train/tokens_per_s": "tokens_per_s", "train/max_rss_bytes": "max_rss_bytes", "eval/loss": "eval_loss",
                      "eval/perplexity": "eval_perplexity", "checkpoint/stall_s": "stall_s"}.items():
        assert found[tag] == curve_of(written, name), tag


def test_a_run_that_begins_anew_hides_the_one_before(accel_path, tmp_path):
    """Without a checkpoint the same command begins with step 1 again."""
    train_runs.export(tmp_path / "gpt.pt")
    for steps in (3, 2):
        config = prepare(tmp_path, steps, checkpoint={"every": 0, "resume": "auto"})
        assert launch(accel_path, config).returncode == 0
    assert curves(tmp_path / "out/tensorboard")["train/loss"] == curve_of(records(tmp_path), "loss")


def test_without_the_key_there_are_no_event_files(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    assert launch(accel_path, prepare(tmp_path, 1, **{"metrics.tensorboard": False})).returncode == 0
    assert (tmp_path / "out/metrics.jsonl").exists() and not (tmp_path / "out/tensorboard").exists()
