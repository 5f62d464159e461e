"""Early stopping against transformers' EarlyStoppingCallback, and which checkpoints a run keeps."""

import json
import shutil
import signal
import statistics
import types

import pytest
import train_runs
import transformers
from transformers.trainer_utils import SaveStrategy

import resume_cases

STEPS = 14


def stop_of(values, patience, threshold=0.0, greater=False):
    """The step at which transformers' callback ends a run with these values by step; None if it does not."""
    args = types.SimpleNamespace(greater_is_better=greater, metric_for_best_model="m", save_strategy=SaveStrategy.STEPS)
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    callback = transformers.EarlyStoppingCallback(patience, threshold)
    trainer = types.SimpleNamespace(args=args, state=state)
    for step, value in values.items():
        callback.on_evaluate(args, state, control, {"eval_m": value})
        transformers.Trainer._determine_best_metric(trainer, {"eval_m": value}, None)
        if control.should_training_stop:
            return step
    return None


def prepare(directory, **training):
    """A run whose held-out losses rise and fall, as its rate is far too high."""
    train_runs.export(directory / "gpt.pt", layers=1)
    (directory / "held.txt").write_bytes(train_runs.TEXT.read_bytes()[-1024:])
    (directory / "wiki.txt").write_bytes(train_runs.TEXT.read_bytes()[20_000:20_700])
    return train_runs.config(directory, 2, **{
        "data.eval": {"format": "text", "path": str(directory / "held.txt"), "sequence_length": 32},
        "data.eval_sets": {"wiki": str(directory / "wiki.txt")}, "lr_scheduler": {"type": "constant"},
        "optimizer.lr": 0.05, "max_steps": STEPS, "eval_every": 1, "checkpoint": {"every": 0, "resume": "auto"}, **training})


def evaluations(directory, key="eval_loss"):
    records = [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record[key] for record in records if key in record}


@pytest.fixture(scope="module")
def full(accel_path, tmp_path_factory):
    """The numbers of a run that does not stop early."""
    directory = tmp_path_factory.mktemp("full")
    process = train_runs.start(accel_path, prepare(directory), directory)
    said = process.stdout.read()
    assert process.wait(120) == 0, said
    found = {name: evaluations(directory, f"eval_{name}") for name in ("loss", "accuracy", "wiki_loss", "wiki_accuracy")}
    assert all(list(values) == list(range(1, STEPS + 1)) for values in found.values())
    return found


def end_of_log(ended):
    """The last line of the ranks, behind which the launcher says where the weights are."""
    lines = ended.stderr.splitlines()
    return lines[-2] if "the run is finished" in lines[-1] else lines[-1]


CASES = {"loss": ("loss", 2, 0), "threshold": ("loss", 2, 0.3), "accuracy": ("accuracy", 2, 0),
         "loss of a set": ("wiki_loss", 1, 0), "accuracy of a set": ("wiki_accuracy", 3, 0.02)}


@pytest.mark.long(but="loss")
@pytest.mark.parametrize("metric, patience, threshold", CASES.values(), ids=CASES)
def test_a_run_stops_where_transformers_does(accel, tmp_path, full, metric, patience, threshold):
    expected = stop_of(full[metric], patience, threshold, metric.endswith("accuracy"))
    assert expected is not None and expected < STEPS, "the case shows nothing"
    ended = accel("launch", prepare(tmp_path, best_metric=metric, checkpoint={"every": 100, "export": "safetensors"},
                                    early_stopping={"patience": patience, "threshold": threshold}))
    assert evaluations(tmp_path, f"eval_{metric}") == {step: full[metric][step] for step in range(1, expected + 1)}
    assert f"stopped early after step {expected} of {STEPS}: eval_{metric} was not better than" in end_of_log(ended)
    # The last step has a checkpoint, as at the end of any run.
    [saved] = json.loads(accel("checkpoints", tmp_path / "out", "--json").stdout)["checkpoints"]
    assert saved["step"] == expected and saved["whole"] and (tmp_path / "out/export/model.safetensors").is_file()


@pytest.mark.long
def test_a_run_that_was_killed_stops_at_the_same_step(accel, accel_path, tmp_path, full):
    patience = 3
    expected = stop_of(full["loss"], patience)
    assert expected is not None and expected < STEPS
    before = expected - 2  # The step from which the run goes on.
    keys = {"early_stopping.patience": patience, "checkpoint": {"every": 1, "resume": "auto", "async": False}}
    log = tmp_path / "calls"
    worker = resume_cases.faulty_worker(tmp_path, accel_path, 1, f"ACCEL_FAULT_LOG={log}")
    accel("launch", prepare(tmp_path, **keys, **{"launch.worker": worker, "max_steps": before}))
    calls = len(log.read_text().splitlines())
    shutil.rmtree(tmp_path / "out")
    # Rank 1 is killed while it saves the checkpoint of the next step.
    worker = resume_cases.faulty_worker(tmp_path, accel_path, 1, f"ACCEL_FAULT=kill@{calls + 2}")
    killed = accel("launch", prepare(tmp_path, **keys, **{"launch.worker": worker}), code=6)
    assert signal.Signals.SIGKILL.name in killed.stderr
    assert max(evaluations(tmp_path)) == before + 1
    state = json.loads((tmp_path / f"out/checkpoints/checkpoint_{before}/trainer_state.json").read_text())
    assert state["early_stopping"]["patience_counter"] > 0, "the case shows nothing"
    ended = accel("launch", prepare(tmp_path, **keys))
    assert "resuming from" in ended.stderr
    assert evaluations(tmp_path) == {step: full["loss"][step] for step in range(1, expected + 1)}
    assert f"stopped early after step {expected}" in end_of_log(ended)
    # Another launch finds nothing to do, and one with more patience goes on.
    again = accel("launch", prepare(tmp_path, **keys)).stderr
    assert "the run is finished" in again and "has stopped early there; nothing to do" in again
    assert max(evaluations(tmp_path)) == expected
    accel("launch", prepare(tmp_path, **{**keys, "early_stopping.patience": STEPS}))
    assert evaluations(tmp_path) == full["loss"]


def test_runs_and_doctor_say_why_a_run_has_ended(accel, tmp_path, full):
    expected = stop_of(full["loss"], 2)
    assert expected % 2 == 1, "the last step has a line of its own"
    accel("launch", prepare(tmp_path, **{"early_stopping.patience": 2, "log_every": 2}))
    why = "eval_loss was not better than"
    assert f"{expected} of {STEPS}" in accel("runs", tmp_path).stdout
    assert f"finished early: {why}" in accel("runs", tmp_path).stdout
    [run] = json.loads(accel("runs", tmp_path, "--json").stdout)["runs"]
    assert run["state"] == "finished" and run["why"].startswith(why) and run["step"] == expected
    assert f"early at step {expected} of {STEPS}: {why}" in accel("doctor", tmp_path / "out").stdout
    assert f"stopped early after step {expected}" in accel("watch", "--once", tmp_path / "out").stdout


def test_the_steps_before_an_early_stop_are_recorded(accel, tmp_path, full):
    """The last record is the mean over the steps since the one before, though log_every does not divide the step."""
    expected = stop_of(full["loss"], 2)
    found = {}
    for name, every in {"each": 1, "one": 100}.items():
        accel("launch", prepare(tmp_path, **{"early_stopping.patience": 2, "log_every": every, "output_dir": str(tmp_path / name)}))
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        found[name] = {record["step"]: record["loss"] for record in records if "loss" in record}
    assert list(found["each"]) == list(range(1, expected + 1)) and list(found["one"]) == [expected]
    assert found["one"][expected] == pytest.approx(statistics.fmean(found["each"].values()), rel=1e-9)
    [run] = [run for run in json.loads(accel("runs", tmp_path, "--json").stdout)["runs"] if run["run"].endswith("/one")]
    assert (run["step"], run["loss"]) == (expected, found["one"][expected])
    # An earlier accel did not write this record: there is no loss then.
    metrics = tmp_path / "one/metrics.jsonl"
    metrics.write_text("".join(line for line in metrics.read_text().splitlines(keepends=True) if '"loss"' not in line))
    [run] = [run for run in json.loads(accel("runs", tmp_path, "--json").stdout)["runs"] if run["run"].endswith("/one")]
    assert (run["step"], run["loss"]) == (expected, None)
    [line] = [line for line in accel("runs", tmp_path).stdout.splitlines() if "/one " in line]
    assert "0.0000" not in line and f"{full['loss'][expected]:.4f}" in line


def best_of(values, greater=False):
    """Of equals the last is the best."""
    best = (max if greater else min)(values.values())
    return max(step for step, value in values.items() if value == best)


def kept(accel, directory):
    found = json.loads(accel("checkpoints", directory / "out", "--json").stdout)["checkpoints"]
    assert all(one["whole"] for one in found)
    return [one["step"] for one in found], [one["step"] for one in found if one["best"]]


def first(values, steps):
    return {step: value for step, value in values.items() if step <= steps}


@pytest.mark.long(but="True-loss-2")
@pytest.mark.parametrize("metric, limit", [("loss", 2), ("accuracy", 1)])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_best_is_kept_beside_the_newest(accel, tmp_path, full, metric, limit, asynchronous):
    def best_after(steps):
        return best_of(first(full[metric], steps), metric == "accuracy")

    # So many steps that the best is not one of the newest.
    steps = next(steps for steps in range(3, STEPS + 1) if best_after(steps) <= steps - limit)
    values, best = first(full[metric], steps), best_after(steps)
    newest = list(range(steps - limit + 1, steps + 1))
    accel("launch", prepare(tmp_path, best_metric=metric, max_steps=steps, checkpoint={
        "every": 1, "total_limit": limit, "keep_best": True, "async": asynchronous}))
    assert evaluations(tmp_path, f"eval_{metric}") == values
    assert kept(accel, tmp_path) == ([best, *newest], [best])
    accel("merge-weights", tmp_path / "out", tmp_path / "by_best", "--best")
    accel("merge-weights", tmp_path / f"out/checkpoints/checkpoint_{best}", tmp_path / "by_step")
    merged, expected = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("by_best", "by_step"))
    assert merged == expected


def test_the_evaluation_is_in_the_checkpoint(accel, tmp_path, full):
    """Without metrics.jsonl a run that goes on still knows which checkpoint is the best."""
    best_after = {steps: best_of(first(full["loss"], steps)) for steps in range(1, STEPS + 1)}
    steps = next(steps for steps in range(2, STEPS) if best_after[steps] < steps and best_after[steps + 1] < steps)
    keys = {"checkpoint": {"every": 1, "total_limit": 1, "keep_best": True, "resume": "auto"}}
    accel("launch", prepare(tmp_path, **keys, max_steps=steps))
    (tmp_path / "out/metrics.jsonl").unlink()
    accel("launch", prepare(tmp_path, **keys, max_steps=steps + 1))
    assert kept(accel, tmp_path)[0] == [best_after[steps], steps + 1]


def test_commands_and_retention_agree_on_the_best(accel, tmp_path, full):
    """metrics.jsonl may lose a record, and the checkpoints of an earlier accel have no evaluation in their states."""
    best_after = {steps: best_of(first(full["loss"], steps)) for steps in range(1, STEPS + 1)}
    steps = next(steps for steps in range(2, STEPS) if best_after[steps] < steps and best_after[steps + 1] < steps)
    best, checkpoints, metrics = best_after[steps], tmp_path / "out/checkpoints", tmp_path / "out/metrics.jsonl"
    accel("launch", prepare(tmp_path, max_steps=steps, checkpoint={"every": 1, "resume": "auto"}))
    assert kept(accel, tmp_path) == (list(range(1, steps + 1)), [best])
    text = metrics.read_text()
    metrics.write_text("".join(line for line in text.splitlines(keepends=True)
                               if json.loads(line)["step"] != best or "eval_loss" not in line))
    assert kept(accel, tmp_path)[1] == [best]
    [loss] = [one["eval_loss"] for one in json.loads(accel("checkpoints", tmp_path / "out", "--json").stdout)["checkpoints"]
              if one["step"] == best]
    assert loss == full["loss"][best]
    accel("merge-weights", tmp_path / "out", tmp_path / "by_best", "--best")
    accel("merge-weights", checkpoints / f"checkpoint_{best}", tmp_path / "by_step")
    merged, expected = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("by_best", "by_step"))
    assert merged == expected
    metrics.write_text(text)
    for step in range(1, steps + 1):
        train_runs.forget_evaluation(checkpoints / f"checkpoint_{step}")
    assert kept(accel, tmp_path)[1] == [best]
    accel("launch", prepare(tmp_path, max_steps=steps + 1, checkpoint={
        "every": 1, "total_limit": 1, "keep_best": True, "resume": "auto"}))
    assert kept(accel, tmp_path) == ([best, steps + 1], [best])


def test_losses_of_other_held_out_data_are_not_compared(accel, tmp_path):
    def launch(steps, **sets):
        said = accel("launch", prepare(tmp_path, max_steps=steps, lr_scheduler={"type": "reduce_lr_on_plateau"}, checkpoint={
            "every": 1, "total_limit": 1, "keep_best": True, "resume": "auto"}, **{
                "early_stopping.patience": 100, "optimizer.lr": 0.01, **sets})).stderr
        return said, json.loads((tmp_path / f"out/checkpoints/checkpoint_{steps}/trainer_state.json").read_text())

    def text(name, data):
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    # No model that has read text knows these bytes.
    other = {"format": "text", "path": text("other.txt", bytes(range(128, 256)) * 8), "sequence_length": 32}
    _, before = launch(4)
    said, after = launch(5, **{"data.eval": other})
    loss = after["evaluation"]["eval_loss"]
    assert before["early_stopping"]["best"] < loss, "the case shows nothing"
    # The sets take all but their paths from data.eval, so that those of wiki are the same.
    assert "resuming: contents of training.data.eval (CRC-32 of samples) was " in said and "eval_sets.wiki (" not in said
    assert "early stopping begins anew" in said
    assert after["early_stopping"] == {"metric": "eval_loss", "best": loss, "patience_counter": 0}
    assert (after["plateau"]["best"], after["plateau"]["num_bad_epochs"]) == (loss, 0)
    assert kept(accel, tmp_path) == ([5], [5])
    # Another set than that of the metric is said, and changes nothing.
    said, last = launch(6, **{"data.eval": other, "data.eval_sets": {"wiki": text("wiki2.txt", bytes(range(64)) * 16)}})
    assert "resuming: contents of training.data.eval_sets.wiki (CRC-32 of samples) was " in said
    assert "begins anew" not in said and "compares no loss" not in said
    values = {5: loss, 6: last["evaluation"]["eval_loss"]}
    assert last["early_stopping"]["best"] == last["plateau"]["best"] == min(values.values())
    best = best_of(values)
    assert kept(accel, tmp_path) == (sorted({best, 6}), [best])


@pytest.mark.long
def test_a_kill_never_leaves_a_run_without_its_best_or_its_newest_checkpoints(accel, accel_path, tmp_path, full):
    """Rank 0 writes the manifest, renames, and removes old checkpoints; it is killed at points of all of them."""
    keys = {"max_steps": 6, "checkpoint": {"every": 1, "total_limit": 2, "keep_best": True, "resume": "auto"}}
    log = tmp_path / "calls"
    worker = resume_cases.faulty_worker(tmp_path, accel_path, 0, f"ACCEL_FAULT_LOG={log}")
    accel("launch", prepare(tmp_path, **keys, **{"launch.worker": worker}))
    calls = len(log.read_text().splitlines())
    partly = 0
    for point in range(calls // 3, calls, calls // 9):
        shutil.rmtree(tmp_path / "out")
        worker = resume_cases.faulty_worker(tmp_path, accel_path, 0, f"ACCEL_FAULT=kill@{point}")
        accel("launch", prepare(tmp_path, **keys, **{"launch.worker": worker}), code=6)
        found = json.loads(accel("checkpoints", tmp_path / "out", "--json").stdout)["checkpoints"]
        whole = [one["step"] for one in found if one["whole"]]
        newest = max(whole)
        best = best_of(first(full["loss"], newest))
        assert {best, newest, max(newest - 1, 1)} <= set(whole), (point, whole)
        partly += newest < 6
    assert partly >= 4


@pytest.mark.parametrize("keys, says", [
    ({"checkpoint": {"every": 3, "keep_best": True}, "eval_every": 2}, "'training.checkpoint.every: 3' is not a multiple of"),
    ({"checkpoint": {"every": 3, "keep_best": True}, "eval_every": 0}, "'training.checkpoint.keep_best' goes by the evaluations"),
    ({"early_stopping.patience": 1, "eval_every": 0}, "'training.early_stopping.patience' goes by the evaluations"),
    ({"best_metric": "code_loss"}, "are loss, accuracy, wiki_loss, wiki_accuracy"),
])
def test_what_has_no_evaluation_to_go_by_is_refused(accel, tmp_path, keys, says):
    assert says in accel("check", prepare(tmp_path, **keys), code=2).stderr
