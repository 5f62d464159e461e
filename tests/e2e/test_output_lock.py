"""A run refuses a directory into which another run writes, and one that holds an earlier run's metrics."""

import json
import signal

import pytest
import train_runs
from launching import Run


def test_a_second_run_into_the_same_directory_is_refused(accel, accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=100_000, checkpoint={"every": 100_000, "resume": "none"})
    first = train_runs.start(accel_path, config, tmp_path)
    try:
        train_runs.wait_for_step(tmp_path, first)
        (tmp_path / "other").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "out")
        for name in ("out", "link"):
            second = train_runs.config(tmp_path / "other", 1, max_steps=2, output_dir=str(tmp_path / name),
                                       **{"model.path": str(tmp_path / "gpt.pt")})
            said = accel("launch", second, code=2).stderr
            assert f"another run is writing into '{tmp_path / name}'" in said
            assert "hint: wait until it ends, or choose another output_dir" in said
        assert first.poll() is None
        # The second run has written nothing.
        assert json.loads((tmp_path / "out/config.resolved.json").read_text())["training"]["max_steps"] == 100_000
        assert (tmp_path / "out/logs/attempt_0/rank_1").is_dir() and "step" in (tmp_path / "out/logs/attempt_0/rank_0/stderr.log").read_text()
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    (tmp_path / "out/metrics.jsonl").rename(tmp_path / "metrics of the first")
    accel("launch", second)
    assert len(train_runs.metrics(tmp_path)) >= 2


def test_metrics_of_an_earlier_run_are_not_overwritten(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=2)
    accel("launch", config)
    before = (tmp_path / "out/metrics.jsonl").read_bytes()
    logs = (tmp_path / "out/logs/attempt_0/rank_0/stderr.log").stat().st_mtime_ns
    error = accel("launch", config, code=2).stderr
    assert "config.yaml:" in error and "'training.output_dir'" in error
    assert f"'{tmp_path}/out/metrics.jsonl' holds the metrics of an earlier run" in error
    assert "hint: choose another output_dir, or move that file away" in error
    assert (tmp_path / "out/metrics.jsonl").read_bytes() == before
    assert (tmp_path / "out/logs/attempt_0/rank_0/stderr.log").stat().st_mtime_ns == logs
    # A run accepts a directory with only logs and an empty metrics file, because no metrics are lost.
    (tmp_path / "out/metrics.jsonl").write_bytes(b"")
    accel("launch", config)
    assert len(train_runs.metrics(tmp_path)) == 2


@pytest.mark.long
def test_a_lock_that_is_lost_between_two_attempts_ends_the_run_for_that_reason(accel_path, tmp_path):
    run = Run(accel_path, tmp_path, "--cpu", "--num-processes", 1, "--log-dir", tmp_path / "logs", "--set",
              "launch.lock_timeout=1", "--set", "launch.max_restarts=20", "--", "false")
    lock = tmp_path / "logs/.lock"
    try:
        # The pauses between attempts become longer.
        assert any("in 4 s" in line for line in run.process.stderr)
        other = json.loads(lock.read_text()) | {"token": "another", "host": "node09"}
        (tmp_path / "other").write_text(json.dumps(other))
        (tmp_path / "other").rename(lock)
        code, _, said = run.finish(60)
    finally:
        run.kill_all()
    assert code == 1, said
    assert f"another run has taken '{tmp_path}/logs' over: node09, pid " in said
    assert json.loads(lock.read_text())["token"] == "another"
