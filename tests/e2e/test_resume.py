"""A training that is interrupted and goes on is the training that was not interrupted, bit for bit on as many ranks."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

import resume_cases
import train_runs
from launching import wait_for
from resume_cases import CASES, N

ROWS: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", autouse=True)
def matrix():
    """Writes docs/resume-matrix.md if `tools/dev resume-matrix` asks for it."""
    yield
    file = os.environ.get("ACCEL_RESUME_MATRIX")
    if not file:
        return
    columns = ["stop", "kill -9", "other ranks"]
    table = ["# Runs that go on, and what is equal to a run that was not interrupted", "",
             "`tools/dev resume-matrix` writes this table. Each run has 12 steps and a checkpoint after every 4.", "",
             "- **stop**: the run ends after step 4 and goes on to step 12.",
             "- **kill -9**: the run ends after step 4, goes on, is killed within its third save, and goes on.",
             "- **other ranks**: the run ends after step 4 and goes on with half as many ranks, or twice as many.", "",
             "\"Bit for bit\" compares the checksums of all files of the last checkpoint (weights, optimizer,",
             "random states, place in the data) and all numbers of `metrics.jsonl` that do not depend on time.", "",
             "| | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    for case in CASES:
        table.append(f"| {case} | " + " | ".join(ROWS.get((case, column), "") for column in columns) + " |")
    pathlib.Path(file).write_text("\n".join(table) + "\n")


@pytest.fixture
def uninterrupted(accel_path, made_once):
    """uninterrupted(CASE) returns the directory of the run that nothing interrupts."""

    def run(name) -> pathlib.Path:
        def make(directory):
            resume_cases.prepare(directory, CASES[name])
            launch(accel_path, resume_cases.config(directory, CASES[name]))

        return made_once("resume-" + "".join(c if c.isalnum() else "-" for c in name), make)

    return run


def launch(accel_path, config, code=0, *flags) -> str:
    result = subprocess.run([accel_path, "launch", config, *flags], capture_output=True, text=True, timeout=300,
                            env={**os.environ, "NO_COLOR": "1"})
    assert result.returncode == code, result.stderr
    return result.stderr


def require_equal(directory, reference):
    states = [json.loads((run / f"out/checkpoints/checkpoint_{3 * N}/trainer_state.json").read_text()) for run in (directory, reference)]
    assert states[0] == states[1]
    assert resume_cases.manifest(directory, 3 * N) == resume_cases.manifest(reference, 3 * N)
    assert resume_cases.lines(directory) == resume_cases.lines(reference)


@pytest.mark.long(but="plain")
@pytest.mark.parametrize("name", CASES)
def test_stopped_and_killed_runs_go_on_bit_for_bit(accel_path, uninterrupted, tmp_path, name):
    """The run stops after N steps, goes on, is killed while it writes its last checkpoint, and goes on again."""
    reference = uninterrupted(name)
    case = CASES[name]
    resume_cases.prepare(tmp_path, case)
    rank = case.get("processes", 2) - 1
    log = tmp_path / "calls"
    worker = resume_cases.faulty_worker(tmp_path, accel_path, rank, f"ACCEL_FAULT_LOG={log}")
    first = launch(accel_path, resume_cases.config(tmp_path, case, N, **{"launch.worker": worker}))
    assert "resum" not in first
    calls = len(log.read_text().splitlines())
    stopped = tmp_path / "stopped"
    resume_cases.prepare(stopped, case)
    shutil.copytree(tmp_path / "out", stopped / "out")

    said = launch(accel_path, resume_cases.config(stopped, case))
    assert f"resuming from '{stopped}/out/checkpoints/checkpoint_{N}', step {N} of {3 * N}" in said
    require_equal(stopped, reference)
    ROWS[name, "stop"] = "bit for bit"

    worker = resume_cases.faulty_worker(tmp_path, accel_path, rank, f"ACCEL_FAULT=kill@{calls + calls // 2 + 1}")
    said = launch(accel_path, resume_cases.config(tmp_path, case, **{"launch.worker": worker}), code=6)
    assert "killed by SIGKILL" in said
    said = launch(accel_path, resume_cases.config(tmp_path, case))
    assert f"checkpoint_{2 * N}', step {2 * N} of {3 * N}" in said
    require_equal(tmp_path, reference)
    ROWS[name, "kill -9"] = "bit for bit"
    assert sorted(path.name for path in (tmp_path / "out/checkpoints").iterdir()) == [
        f"checkpoint_{3 * N}", f"checkpoint_{N}", f"checkpoint_{2 * N}"]


# The optimizer's step divides rounding errors of tiny gradients by their own size.
OTHER_RANKS = {
    "plain": (1, 3e-4), "shuffling": (4, 3e-4), "1 rank": (2, 3e-4), "HYBRID_SHARD": (2, None), "dropout": (1, None),
    "MULTI_CPU": (1, None), "offloaded parameters": (4, 3e-4), "activation checkpointing": (4, None),
    "accumulation, short last group, several epochs": (1, None), "fp16 with a loss scale": (1, 3e-3),
    "MULTI_CPU, PowerSGD": (4, None), "BatchNorm": (4, None),
}


@pytest.mark.long(but="plain")
@pytest.mark.parametrize("name", OTHER_RANKS)
def test_goes_on_with_another_number_of_ranks(accel_path, uninterrupted, tmp_path, name):
    """The samples go on where they stopped. With as many samples in a step, the losses are equal up to rounding."""
    reference, case = uninterrupted(name), CASES[name]
    processes, bound = OTHER_RANKS[name]
    resume_cases.prepare(tmp_path, case)
    launch(accel_path, resume_cases.config(tmp_path, case, N))
    batch = 4 * case.get("processes", 2) // processes
    layout = {"parallelism_config.dp_shard_size": None} if "parallelism_config.dp_shard_size" in case else {}
    config = resume_cases.config(tmp_path, {**case, **layout}, processes=processes, **{"data.batch_size": batch})
    said = launch(accel_path, config)
    assert f"the checkpoint is of {case.get('processes', 2)} ranks, and there are {processes} now" in said
    ours, theirs = train_runs.metrics(tmp_path), train_runs.metrics(reference)
    assert ours[:N] == theirs[:N] and len(ours) == len(theirs)
    assert train_runs.metrics(tmp_path, "lr") == train_runs.metrics(reference, "lr")
    assert train_runs.metrics(tmp_path, "epoch") == train_runs.metrics(reference, "epoch")
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    if bound:
        assert worst < bound
    ROWS[name, "other ranks"] = (f"to {processes}: losses within {worst:.0e}" if bound else
                                 f"to {processes}: goes on; random numbers or statistics are others")


def test_a_finished_run_has_nothing_to_do(accel_path, uninterrupted):
    directory = uninterrupted("plain")

    def times():
        """Those of all that is there. The lock comes and goes in the output_dir, whose own time it changes."""
        return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path != directory / "out"}

    before = times()
    said = launch(accel_path, directory / "config.yaml")
    assert "the run is finished" in said and "nothing to do" in said
    assert before == times()


@pytest.fixture
def stopped(accel_path, tmp_path):
    """A run of 2 N steps of 3 N, with two checkpoints."""
    resume_cases.prepare(tmp_path, {})
    launch(accel_path, resume_cases.config(tmp_path, {}, 2 * N))
    return tmp_path


def damage(checkpoint, how):
    if how == "a missing file":
        (checkpoint / "optimizer_0/__1_0.distcp").unlink()
    elif how == "a short file":
        with open(checkpoint / "pytorch_model_fsdp_0/__0_0.distcp", "r+b") as file:
            file.truncate(1000)
    elif how == "no manifest":
        (checkpoint / "accel_manifest.json").unlink()
    else:
        (checkpoint / "accel_manifest.json").write_text("{")


@pytest.mark.long(but="a missing file")
@pytest.mark.parametrize("how", ["a missing file", "a short file", "no manifest", "a broken manifest"])
def test_a_checkpoint_that_is_not_whole_is_skipped_and_kept(accel_path, uninterrupted, stopped, how):
    damage(stopped / f"out/checkpoints/checkpoint_{2 * N}", how)
    said = launch(accel_path, resume_cases.config(stopped, {}))
    assert f"warning: skipping '{stopped}/out/checkpoints/checkpoint_{2 * N}': " in said
    assert f"resuming from '{stopped}/out/checkpoints/checkpoint_{N}'" in said
    assert (stopped / f"out/checkpoints/checkpoint_{2 * N}.damaged").is_dir()
    require_equal(stopped, uninterrupted("plain"))


def test_checkpoints_of_which_none_is_whole_are_an_error(accel_path, stopped):
    for step in (N, 2 * N):
        damage(stopped / f"out/checkpoints/checkpoint_{step}", "no manifest")
    before = sorted(stopped.rglob("*"))
    said = launch(accel_path, resume_cases.config(stopped, {}), code=4)
    assert "holds 2 checkpoints, and none of them is whole" in said
    assert before == sorted(stopped.rglob("*"))


def test_resume_none_refuses_and_a_path_begins_another_run(accel_path, uninterrupted, stopped):
    said = launch(accel_path, resume_cases.config(stopped, {}, **{"checkpoint.resume": "none"}), code=2)
    assert "holds checkpoints of an earlier run" in said and "training.checkpoint.resume: auto" in said
    first = stopped / f"out/checkpoints/checkpoint_{N}"
    other = resume_cases.config(stopped, {}, **{"checkpoint.resume": str(first), "output_dir": str(stopped / "other")})
    said = launch(accel_path, other)
    assert f"resuming from '{first}'" in said
    manifest = json.loads((stopped / f"other/checkpoints/checkpoint_{3 * N}/accel_manifest.json").read_text())
    assert manifest == resume_cases.manifest(uninterrupted("plain"), 3 * N)
    # The second launch of the same command goes on with its own run.
    assert "the run is finished" in launch(accel_path, other)


@pytest.mark.parametrize("path, message", [("gone", "'gone' does not exist"),
                                           ("checkpoint", "is not a checkpoint of a training")])
def test_a_wrong_path_is_named(accel, tmp_path, path, message):
    resume_cases.prepare(tmp_path, {})
    (tmp_path / "checkpoint").mkdir()
    config = resume_cases.config(tmp_path, {}, **{"checkpoint.resume": path})
    error = accel("launch", config, code=2).stderr
    assert "'training.checkpoint.resume': " in error and message in error
    assert accel("check", config, code=2).stderr == error


def test_other_data_or_another_model_is_refused(accel_path, stopped):
    (stopped / "train.txt").write_bytes(train_runs.TEXT.read_bytes()[:5000])
    said = launch(accel_path, resume_cases.config(stopped, {}), code=2)
    assert "training.data.train has 156 samples of 32 tokens, but the checkpoint is of a run on 93 samples" in said
    train_runs.export(stopped / "gpt.pt", layers=3)
    said = launch(accel_path, resume_cases.config(stopped, {}), code=2)
    assert "the run that is there is of another model: " in said and "has no weights for" in said


def test_what_has_changed_is_said(accel_path, stopped):
    """The weights go on; what makes the numbers differ from those of the earlier run is named."""
    (stopped / "train.txt").write_bytes(train_runs.TEXT.read_bytes()[50_000:][:93 * 32 + 1])
    said = launch(accel_path, resume_cases.config(stopped, {}, **{
        "optimizer.lr": 1e-3, "seed": 7, "gradient_accumulation_steps": 2, "mixed_precision": "bf16"}))
    for change in ("training.optimizer.lr was 0.003 and is 0.001", "training.seed was 42 and is 7",
                   "training.gradient_accumulation_steps was 1 and is 2", "mixed_precision was no and is bf16",
                   "contents of training.data.train (CRC-32 of samples) was "):
        assert f"resuming: {change}" in said, said
    assert said.count("resuming: ") == 5


def test_a_merged_model_beside_the_shards_is_not_taken(accel, accel_path, uninterrupted, stopped):
    """`merge-weights` may write into the checkpoint. The run goes on from the shards."""
    checkpoint = stopped / f"out/checkpoints/checkpoint_{2 * N}"
    accel("merge-weights", checkpoint, checkpoint, "--dtype", "bf16")
    accel("merge-weights", checkpoint / "pytorch_model_fsdp_0", checkpoint / "merged")
    launch(accel_path, resume_cases.config(stopped, {}))
    require_equal(stopped, uninterrupted("plain"))


def test_a_refused_launch_changes_nothing(accel_path, stopped):
    """Neither another data set nor a wrong path touches the metrics, and an unfinished save stays where it is."""
    with open(stopped / "out/metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 2 * N + 1, "loss": 1.0}) + "\n")
    metrics = (stopped / "out/metrics.jsonl").read_text()
    text = (stopped / "train.txt").read_bytes()
    (stopped / "train.txt").write_bytes(text[:2000])
    launch(accel_path, resume_cases.config(stopped, {}), code=2)
    said = launch(accel_path, resume_cases.config(stopped, {}, **{"launch.preflight": False}), code=6)
    assert "the same command goes on" not in said, "it would be refused again"
    (stopped / "train.txt").write_bytes(text)
    assert (stopped / "out/metrics.jsonl").read_text() == metrics

    unfinished = stopped / "out/checkpoints/checkpoint_99.incomplete"
    (stopped / f"out/checkpoints/checkpoint_{2 * N}").rename(unfinished)
    shutil.rmtree(stopped / f"out/checkpoints/checkpoint_{N}")
    for path, message in [("checkpont_4", "does not exist"), (str(unfinished), "has not finished")]:
        config = resume_cases.config(stopped, {}, **{"checkpoint.resume": path})
        assert message in launch(accel_path, config, code=2)
        assert (stopped / "out/metrics.jsonl").read_text() == metrics
        assert (unfinished / "accel_manifest.json").exists()


def test_metrics_of_a_run_without_a_checkpoint_are_kept(accel_path, tmp_path):
    resume_cases.prepare(tmp_path, {})
    launch(accel_path, resume_cases.config(tmp_path, {}, 2, checkpoint={"every": 0}))
    before = (tmp_path / "out/metrics.jsonl").read_text()
    said = launch(accel_path, resume_cases.config(tmp_path, {}, 2, checkpoint={"every": 0}))
    assert "it is renamed to 'metrics.1.jsonl'" in said
    assert (tmp_path / "out/metrics.1.jsonl").read_text() == before
    assert len(train_runs.metrics(tmp_path)) == 2


LONG = {"lr_scheduler": {"type": "constant"}, "dropout": 0.1, "data.shuffle": True}


def long_config(directory, steps):
    path = resume_cases.config(directory, LONG, steps, **{"checkpoint.every": 1_000_000})
    document = json.loads(path.read_text())
    document["training"]["lr_scheduler"].pop("total_steps")
    path.write_text(json.dumps(document))
    return path


@pytest.mark.long(but="SIGTERM")
@pytest.mark.parametrize("name, to_group", [("SIGTERM", False), ("SIGUSR1", False), ("SIGUSR2", False),
                                            ("SIGTERM", True)],
                         ids=["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGTERM to every process, as Slurm sends it"])
def test_a_stop_signal_leads_to_a_checkpoint_and_exit_code_7(accel_path, tmp_path, name, to_group):
    """All ranks stop after the same step. The run then goes on to the end of one that was not stopped."""
    resume_cases.prepare(tmp_path, LONG)
    process = train_runs.start(accel_path, long_config(tmp_path, 100_000), tmp_path)
    train_runs.wait_for_step(tmp_path, process, 3)
    targets = [process.pid]
    if to_group:
        targets += map(int, open(f"/proc/{process.pid}/task/{process.pid}/children").read().split())
    for pid in targets:
        os.kill(pid, getattr(signal, name))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 7, output
    assert "goes on from it" in output
    step = train_runs.metrics(tmp_path, "step")[-1]
    assert (tmp_path / f"out/checkpoints/checkpoint_{step}/accel_manifest.json").exists()
    launch(accel_path, long_config(tmp_path, step + 2))
    whole = tmp_path / "whole"
    resume_cases.prepare(whole, LONG)
    launch(accel_path, long_config(whole, step + 2))
    assert resume_cases.manifest(tmp_path, step + 2) == resume_cases.manifest(whole, step + 2)


def test_no_thread_of_a_worker_runs_a_handler_of_a_stop_signal(accel_path, tmp_path):
    """A handler on the stack of a thread that computes breaks oneDNN's products (docs/design/028)."""
    resume_cases.prepare(tmp_path, LONG)
    process = train_runs.start(accel_path, long_config(tmp_path, 1_000_000), tmp_path)
    train_runs.wait_for_step(tmp_path, process, 3)
    stop = sum(1 << (number - 1) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
    threads = list(pathlib.Path(f"/proc/{train_runs.worker_of(0, process.pid)}/task").iterdir())
    waiting = 0
    for thread in threads:
        masks = dict(line.split(":\t") for line in (thread / "status").read_text().splitlines() if line.startswith("Sig") and "Q" not in line)
        assert int(masks["SigCgt"], 16) & stop == 0
        waiting += int(masks["SigBlk"], 16) & stop != stop
    assert waiting == 1 and len(threads) > 2
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 7


@pytest.mark.long
def test_gnu_timeout_preempts(accel_path, tmp_path):
    resume_cases.prepare(tmp_path, LONG)
    command = ["timeout", "--signal=USR1", "6", accel_path, "launch", long_config(tmp_path, 1_000_000)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 124, result.stderr  # What timeout says when it had to signal.
    assert "goes on from it" in result.stderr
    status = ["timeout", "--preserve-status", *command[1:]]
    assert subprocess.run(status, capture_output=True, timeout=120).returncode == 7


def test_a_second_signal_ends_a_run_at_once(accel_path, tmp_path):
    """Rank 1 is stopped, so no step ends and no checkpoint can be written."""
    resume_cases.prepare(tmp_path, LONG)
    process = train_runs.start(accel_path, long_config(tmp_path, 1_000_000), tmp_path)
    train_runs.wait_for_step(tmp_path, process, 3)
    os.kill(train_runs.worker_of(1, process.pid), signal.SIGSTOP)
    process.send_signal(signal.SIGUSR1)  # SIGTERM would be followed by SIGCONT.
    time.sleep(1.5)
    assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert process.returncode not in (0, 7), output
    assert not list((tmp_path / "out/checkpoints").glob("checkpoint_?"))


def test_a_rank_that_dies_while_the_others_save_is_named(accel_path, tmp_path):
    """The launcher has passed on SIGTERM. Rank 1 is killed before it can save, and nobody waits for it."""
    resume_cases.prepare(tmp_path, LONG)
    process = train_runs.start(accel_path, long_config(tmp_path, 1_000_000), tmp_path)
    train_runs.wait_for_step(tmp_path, process, 3)
    rank1 = train_runs.worker_of(1, process.pid)
    os.kill(rank1, signal.SIGSTOP)
    time.sleep(0.2)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    os.kill(rank1, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 6 and "rank 1 of 2 failed: killed by SIGKILL" in output, output
    assert time.monotonic() - begin < 10


def test_a_failed_rank_still_ends_the_others_at_once(accel_path, tmp_path):
    """The other ranks catch SIGTERM, but must not wait for the rank that is gone."""
    resume_cases.prepare(tmp_path, LONG)
    process = train_runs.start(accel_path, long_config(tmp_path, 1_000_000), tmp_path)
    train_runs.wait_for_step(tmp_path, process, 3)
    os.kill(train_runs.worker_of(1, process.pid), signal.SIGKILL)
    begin = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 6 and "rank 1 of 2 failed: killed by SIGKILL" in output, output
    assert time.monotonic() - begin < 10


@pytest.mark.long
def test_a_signal_in_an_evaluation_saves_and_the_run_that_goes_on_makes_it_up(accel, accel_path, tmp_path):
    """The learning rate follows the held-out loss, of which none counts as better, and halves with each evaluation."""
    held_out = tmp_path / "held-out.txt"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[:100_000])  # An evaluation takes a second.

    def config(directory):
        return train_runs.config(directory, 2, max_steps=5, eval_every=2, **{
            "data.eval": {"format": "text", "path": str(held_out), "sequence_length": 32},
            "lr_scheduler": {"type": "reduce_lr_on_plateau", "factor": 0.5, "patience": 0, "threshold": 0.9},
            "checkpoint": {"every": 5, "resume": "auto"}})

    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for directory in (straight, stopped):
        directory.mkdir()
        train_runs.export(directory / "gpt.pt")
    accel("launch", config(straight))
    process = subprocess.Popen([accel_path, "launch", config(stopped)], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    metrics = stopped / "out/metrics.jsonl"
    wait_for(lambda: metrics.exists() and '"step":2' in metrics.read_text().replace(" ", ""), 60)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 7 and "stopped after step 2 of 5" in said, said
    assert "eval_loss" not in metrics.read_text()
    assert json.loads((stopped / "out/checkpoints/checkpoint_2/trainer_state.json").read_text())["evaluation_is_due"]
    accel("launch", config(stopped))
    expected = resume_cases.lines(straight)
    assert resume_cases.lines(stopped) == expected
    assert [line["lr"] for line in expected if "lr" in line] == [3e-3, 3e-3, 3e-3, 3e-3, 1.5e-3]
