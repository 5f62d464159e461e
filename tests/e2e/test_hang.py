"""A run that makes no progress is noticed, explained and ended: who did not join, and where each rank stands."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time

import pytest
import torch
import torch.nn as nn

import train_runs
from launching import Run, wait_for

TRAP = 81  # The letter Q. The text of the test has it once.


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x)


class Endless(Layer):
    """Never ends on the rank that gets the trap."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        while bool((x > 1000).any()):
            pass
        return x + y


class Net(nn.Module):
    def __init__(self, second, skips: bool):
        super().__init__()
        self.tokens = nn.Embedding(256, 16)
        self.first = Layer()
        self.second = second
        self.third = Layer()
        self.head = nn.Linear(16, 256)
        self.skips = skips

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        trapped = (ids == 81).any()
        x = self.first(self.tokens(ids))
        if not self.skips:
            x = x + trapped * 10000
        if not (self.skips and bool(trapped)):
            x = self.second(x)
        return self.head(self.third(x))


def training(directory, second, skips, **more):
    """A run whose third window, which one rank alone gets, has the trap."""
    torch.manual_seed(0)
    torch.jit.script(Net(second, skips)).save(str(directory / "gpt.pt"))
    text = bytearray(b"abcdefgh" * 1000)
    text[33 * 32] = TRAP
    (directory / "text.txt").write_bytes(text)
    return train_runs.config(directory, 2, data=directory / "text.txt",
                             **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer" if skips else "Layer,Endless", "launch.hang_timeout": 3,
                                "launch.grace_period": 5, "data.batch_size": 8, **more})


needs_stacks = pytest.mark.skipif(not shutil.which("eu-stack"), reason="eu-stack (elfutils) is not installed")


@pytest.mark.long
@needs_stacks
def test_a_rank_that_does_not_leave_a_unit_is_named(accel, tmp_path):
    said = accel("launch", training(tmp_path, Endless(), False), code=6).stderr
    print(said)
    assert "the run hangs: no progress for 3 s (launch.hang_timeout)" in said
    [(stuck, waiting)] = re.findall(r"rank (\d) did not join: rank (\d) waits in all-gather \d+ of '(?:third|head)' \([\d.]+ kB, group \S+\) for [34] s", said)
    assert {stuck, waiting} == {"0", "1"}
    assert re.search(rf"rank {stuck}, step \d+: is in forward of 'second' for [34] s", said)
    assert re.search(rf"rank {waiting}, step \d+: waits in all-gather \d+ of '(third|head)'", said)
    for rank in (0, 1):
        stacks = (tmp_path / f"out/logs/attempt_0/rank_{rank}/stacks.txt").read_text()
        assert "torch::jit::InterpreterState::run" in stacks
    assert not re.search(r"no stack", said)


@pytest.mark.long
def test_a_rank_that_skips_a_collective_is_named(accel, tmp_path):
    """In Gloo, which does not see that the ranks call different operations. Shared memory does."""
    config = training(tmp_path, Layer(), True, **{"launch.backend": "gloo"})
    said = accel("launch", config, code=6, env={"GLOO_SOCKET_IFNAME": "lo"}).stderr
    print(said)
    # Forward gathers ahead, so that the order of the ranks differs in backward only.
    [(one, number, other, other_number)] = re.findall(
        r"disagree: rank (\d) called \S+ (\d+) of '\w+' .*, and rank (\d) \S+ (\d+) of '\w+' ", said)
    assert ({one, other}, number) == ({"0", "1"}, other_number)
    config = training(tmp_path, Layer(), True, output_dir=str(tmp_path / "other"))
    assert "the ranks disagree" in accel("launch", config, code=6).stderr


def test_a_stopped_rank_is_named_and_the_run_begins_again(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, **{"max_steps": 400, "checkpoint": {"every": 50}, "launch.max_restarts": 1,
                                               "launch.hang_timeout": 2, "launch.grace_period": 2})
    run = Run(accel_path, tmp_path, config)
    wait_for(lambda: (tmp_path / "out/checkpoints/checkpoint_50").exists(), 60)
    os.kill(train_runs.worker_of(1, run.process.pid), signal.SIGSTOP)
    code, _, said = run.finish(120)
    assert code == 0, said
    assert "  rank 1 is stopped, by a signal or a debugger\n" in said
    assert re.search(r"process \d+: stopped", said)
    assert "restart 1 of 1" in said


DEADLOCK = """
import threading, time
first, second = threading.Lock(), threading.Lock()
def other():
    with second:
        time.sleep(0.2)
        with first:
            pass
threading.Thread(target=other).start()
print("about to lock", flush=True)
with first:
    time.sleep(0.2)
    with second:
        pass
"""


@needs_stacks
def test_a_deadlocked_python_program_is_shown(accel, tmp_path):
    (tmp_path / "program.py").write_text(DEADLOCK)
    said = accel("launch", "--cpu", "--num-processes", "2", "--hang-timeout", "2", "--set", "launch.grace_period=1", "--",
                 sys.executable, "program.py", code=6).stderr
    print(said)
    assert "the run hangs: no rank has written anything for 2 s (launch.hang_timeout)" in said
    assert len(re.findall(r"rank [01]\n  .*last output \d s ago", said)) == 2
    assert "program.py" in said or "PyThread_acquire_lock" in said


@pytest.mark.long
def test_long_work_with_output_is_not_a_hang(accel, tmp_path):
    accel("launch", "--cpu", "--num-processes", "2", "--hang-timeout", "2", "--", "sh", "-c",
          "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done")


@pytest.mark.long
def test_doctor_shows_a_run_live_and_after_its_end(accel, accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    run = Run(accel_path, tmp_path, train_runs.config(tmp_path, 2, max_steps=100000))
    # The file is there before the first step ends.
    wait_for(lambda: (tmp_path / "out/metrics.jsonl").exists() and (tmp_path / "out/metrics.jsonl").read_text().count("\n") > 2, 60)
    stopped = train_runs.worker_of(1, run.process.pid)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(1.5)
    # A mapped file of a server that stalls or loses it would stall or end the rank.
    assert f"{tmp_path}/out" not in pathlib.Path(f"/proc/{stopped}/maps").read_text()
    by_directory = accel("doctor", tmp_path / "out").stdout
    assert re.match(r"running: step \d+ of 100000, loss \d\.\d+, .* left; the last line is of .* ago\nthere is no checkpoint\n", by_directory)
    assert "rank 1 is stopped" in by_directory
    assert re.search(rf"rank 1, step \d+: .*\n  \S+, process {stopped}: stopped", by_directory)
    assert "accel::train" in by_directory or not shutil.which("eu-stack")
    for target in (run.process.pid, stopped):
        found = json.loads(accel("doctor", target, "--json", "--no-stacks").stdout)
        assert [rank["pid"] for rank in found["ranks"]][-1] == stopped
        assert found["ranks"][-1]["events"][-1]["operation"] in ("forward", "backward", "the optimizer", "all-gather", "reduce-scatter", "all-reduce")
        assert len(found["ranks"]) == (2 if target == run.process.pid else 1)
    os.kill(run.process.pid, signal.SIGKILL)
    run.finish(30)
    wait_for(lambda: not os.path.exists(f"/proc/{stopped}"), 30)
    after = accel("doctor", tmp_path / "out").stdout
    assert re.match(r"ended without a word: the launcher was killed, or its machine was lost; the last line is of step \d+ of 100000, ", after)
    assert len(re.findall(r"rank [01], step \d+: .*\n  \S+, process \d+: has ended", after)) == 2
    records = [tmp_path / f"out/logs/attempt_0/rank_{rank}/rank_{rank}.flight" for rank in range(2)]
    wait_for(lambda: not any(record.is_symlink() for record in records), 10)
    ranks = after.partition("\n\n")[2]
    assert accel("doctor", tmp_path / "out").stdout.endswith(ranks) and "rank 1" in ranks
    # The run goes on elsewhere, with a temporary directory that is not seen from here.
    records[1].unlink()
    records[1].symlink_to("/tmp/of another machine/rank_1.flight")
    partly = accel("doctor", tmp_path / "out")
    assert "rank 1 left out: on another machine" in partly.stderr and not re.search("^rank 1", partly.stdout, re.MULTILINE)
    records[0].unlink()
    records[0].symlink_to("/tmp/of another machine/rank_0.flight")
    assert "ranks 0, 1: on another machine" in accel("doctor", tmp_path / "out", code=4).stderr
    assert "neither a directory nor a process" in accel("doctor", "nowhere", code=4).stderr
    assert "no flight record" in accel("doctor", tmp_path, code=4).stderr
