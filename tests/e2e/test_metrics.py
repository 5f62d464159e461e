"""What metrics.jsonl says of each step."""

import json
import sys
import math
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import save_file

import train_runs


def records(directory, key):
    return [record for record in map(json.loads, (directory / "out/metrics.jsonl").read_text().splitlines()) if key in record]


@pytest.fixture(scope="module")
def each_step(accel_path, tmp_path_factory):
    """The losses of ten steps of a run that writes each, and the time in which it ran."""
    directory = tmp_path_factory.mktemp("each")
    train_runs.export(directory / "gpt.pt")
    begin = time.time()
    process = train_runs.start(accel_path, train_runs.config(directory, 2, max_steps=10), directory)
    assert process.wait(120) == 0, process.stdout.read()
    return directory, train_runs.metrics(directory), (begin, time.time())


@pytest.mark.long
def test_a_record_of_several_steps_has_the_mean_of_their_losses(accel, tmp_path, each_step):
    directory, losses, _ = each_step
    shutil.copy(directory / "gpt.pt", tmp_path)
    accel("launch", train_runs.config(tmp_path, 2, max_steps=10, log_every=4))
    found = records(tmp_path, "loss")
    assert [record["step"] for record in found] == [4, 8, 10]
    for record, steps in zip(found, (losses[:4], losses[4:8], losses[8:]), strict=True):
        assert record["loss"] == sum(steps) / len(steps)
        assert record["last_loss"] == steps[-1]


def test_the_mean_goes_on_with_the_steps_before_the_checkpoint(accel, tmp_path, each_step):
    directory, losses, _ = each_step
    shutil.copy(directory / "gpt.pt", tmp_path)
    options = {"max_steps": 10, "log_every": 4, "checkpoint": {"every": 6, "resume": "auto"}}
    accel("launch", train_runs.config(tmp_path, 2, **options))
    shutil.rmtree(tmp_path / "out/checkpoints/checkpoint_10")
    accel("launch", train_runs.config(tmp_path, 2, **options))
    found = records(tmp_path, "loss")
    assert [record["step"] for record in found] == [4, 8, 10]
    assert found[1]["loss"] == sum(losses[4:8]) / 4
    assert [record["attempt"] for record in found] == [0, 1, 1]
    assert (tmp_path / "out/logs/attempt_1").is_dir()


def test_each_record_has_its_time_and_the_attempt(each_step):
    directory, _, (begin, end) = each_step
    times = [record["time"] for record in records(directory, "time")]
    assert len(times) == 11 and times == sorted(times)
    assert begin <= times[0] and times[-1] <= end
    assert {record["attempt"] for record in records(directory, "step")} == {0}


class Masked(torch.nn.Module):
    """Gives a loss to no position that a mask hides."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(input_ids)) * attention_mask.unsqueeze(2)


def masked_run(directory, processes, mask, **keys):
    """The configuration of a run on samples of 6 tokens with this mask, in their order, two in a batch."""
    torch.manual_seed(0)
    torch.jit.script(Masked()).save(str(directory / "masked.pt"))
    ids = torch.randint(0, 16, mask.shape)
    # The first two labels are those of a prompt.
    labels = ids.roll(-1, 1).masked_fill(torch.arange(6) < 2, -100)
    save_file({"input_ids": ids, "attention_mask": mask, "labels": labels}, directory / "data.safetensors")
    return train_runs.config(directory, processes, **{
        "distributed_type": "MULTI_CPU", "model.path": str(directory / "masked.pt"), "model.inputs": ["input_ids", "attention_mask"],
        "data.train": {"format": "tensors", "path": str(directory / "data.safetensors")}, "data.batch_size": 2, **keys})


def test_tokens_a_second_are_without_padding(accel, tmp_path):
    """Ranks and steps have different numbers of tokens. The two rates of a record are of the same time."""
    lengths = torch.tensor([6, 1, 3, 2, 5, 5, 1, 1, 6, 6, 2, 4])
    mask = (torch.arange(6) < lengths[:, None]).long()
    accel("launch", masked_run(tmp_path, 2, mask, max_steps=3))
    found = records(tmp_path, "loss")
    for record, own in zip(found, lengths.split(4), strict=True):
        assert record["tokens_per_s"] / record["samples_per_s"] == pytest.approx(own.sum().item() / 4, rel=1e-9)


def test_samples_are_those_of_all_ranks_since_the_beginning(accel, tmp_path):
    """Ten samples are three micro-batches of two ranks and five of one, and the last step of an epoch has fewer than
    two. An epoch of two ranks takes two samples again. The run goes on with one rank."""
    keys = {"gradient_accumulation_steps": 2, "data.drop_last": False, "checkpoint": {"every": 4, "resume": "auto"}}
    mask = torch.ones(10, 6, dtype=torch.long)
    config = masked_run(tmp_path, 2, mask, max_steps=4, **keys)
    checked = [json.loads(accel("check", "--json", config, "--set", f"training.max_steps={steps}").stdout)["training_data"]
               for steps in range(1, 5)]
    assert "\nThe training data have 10 samples, with 2 steps per epoch; the run takes 4 steps, 2.00 epochs\n" in accel("check", config).stdout
    accel("launch", config)
    assert checked == [{"samples": 10, "steps_per_epoch": 2, "steps": record["step"], "epochs": record["epoch"]}
                       for record in records(tmp_path, "loss")]
    said = accel("launch", masked_run(tmp_path, 1, mask, max_steps=7, **keys)).stderr
    assert [record["samples"] for record in records(tmp_path, "loss")] == [8, 12, 20, 24, 28, 32, 34]
    assert "trained on 34 samples since the beginning, 3.00 epochs of the data" in said
    state = json.loads((tmp_path / "out/checkpoints/checkpoint_4/trainer_state.json").read_text())
    assert state["samples_trained"] == 24 and state["data"]["samples_done"] == 12


def test_epochs_end_a_run_on_any_number_of_ranks(accel, tmp_path):
    """The data are those above: two steps of two ranks are an epoch, and three steps of one. The last step, the
    schedule's length and what the commands show of it follow from the epochs and from where the run goes on."""
    keys = {"gradient_accumulation_steps": 2, "data.drop_last": False, "checkpoint": {"every": 4, "resume": "auto"}}
    mask = torch.ones(10, 6, dtype=torch.long)

    def with_epochs(processes, epochs):
        config = masked_run(tmp_path, processes, mask, epochs=epochs, **keys)
        document = json.loads(config.read_text())
        del document["training"]["max_steps"]
        config.write_text(json.dumps(document))
        return config

    config = with_epochs(2, 2)
    checked = accel("check", config).stdout
    assert "\nThe training data have 10 samples, with 2 steps per epoch; the run takes 4 steps, 2.00 epochs\n" in checked
    assert "step 4/4 " in accel("launch", config).stderr
    assert "the run is finished" in accel("launch", config).stderr
    config = with_epochs(1, 3)
    said = accel("launch", config).stderr
    assert "step 4 of 7" in said and "step 7/7 " in said and "3.00 epochs of the data" in said
    assert [record["step"] for record in records(tmp_path, "loss")] == [1, 2, 3, 4, 5, 6, 7]
    assert records(tmp_path, "loss")[-1]["epoch"] == 3
    # The warm-up and the cosine of the configuration have a length of seven steps.
    resolved = json.loads((tmp_path / "out/config.resolved.json").read_text())
    assert resolved["training"]["max_steps"] == 7 and resolved["training"]["epochs"] == 3
    assert "is of step 7, and the last step is 7; nothing to do" in accel("launch", config).stderr
    assert "step 7 of 7" in accel("doctor", tmp_path / "out").stdout


def test_an_evaluation_has_the_perplexity(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    held_out = {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 32}
    (tmp_path / "held_out").write_bytes(train_runs.TEXT.read_bytes()[:3000])
    said = accel("launch", train_runs.config(tmp_path, 2, max_steps=2, eval_every=2,
                                             **{"data.eval": {**held_out, "path": str(tmp_path / "held_out")}})).stderr
    [record] = records(tmp_path, "eval_loss")
    assert record["eval_perplexity"] == pytest.approx(math.exp(record["eval_loss"]), rel=1e-12)
    assert f"perplexity {record['eval_perplexity']:.4g}" in said


PARTS = {"start_s": "start", "data_s": "waiting for data", "forward_s": "forward", "backward_s": "backward",
         "reduce_s": "loss and gradient norm", "optimizer_s": "optimizer", "eval_s": "evaluation", "save_s": "checkpoints"}


def test_the_last_record_says_where_the_time_went(accel, tmp_path):
    """The parts lie beside each other in the time of the run, and are those that other records have."""
    train_runs.export(tmp_path / "gpt.pt")
    (tmp_path / "held_out").write_bytes(train_runs.TEXT.read_bytes()[:3000])
    held_out = {"format": "text", "path": str(tmp_path / "held_out"), "sequence_length": 32}
    options = {"eval_every": 3, "checkpoint": {"every": 3, "resume": "auto", "async": False}, "data.eval": held_out}
    for steps in (6, 9):
        begin = time.time()
        said = accel("launch", train_runs.config(tmp_path, 2, max_steps=steps, **options)).stderr
        took, spent = time.time() - begin, records(tmp_path, "run_time_s")[-1]
        of_run = [record for record in records(tmp_path, "time") if record["attempt"] == spent["attempt"]]
        assert of_run[-1] == spent and spent["step"] == steps
        assert set(PARTS) == set(spent) - {"step", "time", "attempt", "run_time_s"}
        assert all(spent[part] > 0 for part in PARTS)
        assert sum(spent[part] for part in PARTS) <= spent["run_time_s"] <= took
        assert spent["eval_s"] == pytest.approx(sum(record["eval_time_s"] for record in of_run if "eval_time_s" in record))
        assert spent["save_s"] >= sum(record["stall_s"] for record in of_run if "stall_s" in record)
        # The time of a step, without evaluations and saves, holds its parts.
        in_steps = sum(record["step_time_s"] for record in of_run if "step_time_s" in record)
        assert sum(spent[part] for part in ("data_s", "forward_s", "backward_s", "reduce_s", "optimizer_s")) <= in_steps
        [line] = [line for line in said.splitlines() if " on rank 0: " in line]
        assert [name for name in PARTS.values() if f"{name} " in line] == list(PARTS.values())
    assert len(records(tmp_path, "run_time_s")) == 2  # That of the run before the resume stays.


def test_a_run_that_a_signal_stops_says_where_the_time_went(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    options = {"max_steps": 100_000, "checkpoint": {"every": 100_000, "resume": "none"}}
    process = train_runs.start(accel_path, train_runs.config(tmp_path, 2, **options), tmp_path)
    train_runs.wait_for_step(tmp_path, process, 2)
    process.send_signal(signal.SIGUSR1)
    said = process.communicate(timeout=120)[0]
    [spent] = records(tmp_path, "run_time_s")
    assert f"stopped after step {spent['step']} of 100000" in said
    [line] = [line for line in said.splitlines() if " on rank 0: " in line]
    assert spent["eval_s"] == 0 and "evaluation" not in line and spent["save_s"] > 0 and "checkpoints" in line


def test_a_command_gets_every_record_of_a_run_and_of_the_run_that_goes_on(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    bridge = tmp_path / "bridge.py"
    bridge.write_text("import os, sys\n"
                      "kept = sorted(name for name in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + name))\n"
                      "with open(os.environ['ACCEL_OUTPUT_DIR'] + '/heard', 'a') as heard:\n"
                      "    heard.write(f\"first {os.environ['ACCEL_FIRST_STEP']}\\ndescriptors {kept}\\n\" + sys.stdin.read())\n")
    keys = {"checkpoint": {"every": 2}, "metrics.command": [sys.executable, str(bridge)]}
    accel("launch", train_runs.config(tmp_path, 2, max_steps=2, **keys))
    accel("launch", train_runs.config(tmp_path, 2, max_steps=4, **keys))
    heard = (tmp_path / "out/heard").read_text().splitlines()
    assert [line for line in heard if line.startswith("first")] == ["first 1", "first 3"]
    assert [line for line in heard if line.startswith("descriptors")] == ["descriptors ['0', '1', '2']"] * 2
    assert [line for line in heard if line.startswith("{")] == (tmp_path / "out/metrics.jsonl").read_text().splitlines()


def test_a_metrics_command_that_is_not_there_is_said_before_the_start(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    said = accel("launch", train_runs.config(tmp_path, 2, **{"metrics.command": ["no-such-command"]}), code=2).stderr
    assert "'training.metrics.command': program 'no-such-command' is not found along PATH" in said
