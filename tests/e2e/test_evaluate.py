"""accel evaluate computes what torch computes from the same checkpoint, and writes nothing into the run's directory."""

import json
import math
import signal
import socket

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import train_runs

LENGTH = 32


def held_out(directory):
    """The second part of the text. Its windows are no multiple of the ranks' batches."""
    path = directory / "held-out.txt"
    path.write_bytes(train_runs.TEXT.read_bytes()[-LENGTH * 37 - 1:])
    return path


def by_torch(weights, path):
    """Loss and accuracy of the model over the file."""
    model = train_runs.GPT(**train_runs.SIZES).eval()
    model.load_state_dict(weights, strict=False)
    tokens = torch.tensor(list(path.read_bytes()))
    inputs, labels = tokens[:-1].reshape(-1, LENGTH), tokens[1:].reshape(-1, LENGTH)
    with torch.no_grad():
        logits = model(inputs).double()
    return (F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item(),
            (logits.argmax(-1) == labels).double().mean().item(), len(inputs))


def evaluate(accel, *args):
    return json.loads(accel("evaluate", *args, "--json").stdout)


@pytest.fixture
def run(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    data = {"format": "text", "path": str(held_out(tmp_path)), "sequence_length": LENGTH}
    config = train_runs.config(tmp_path, 2, max_steps=6, eval_every=3, **{"data.eval": data, "checkpoint": {"every": 3}})
    accel("launch", config)
    return config


def test_a_checkpoint_is_evaluated_as_in_its_training_and_as_by_torch(accel, tmp_path, run):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    losses = train_runs.metrics(tmp_path, "eval_loss")
    accuracies = train_runs.metrics(tmp_path, "eval_accuracy")
    for step, loss, accuracy in zip((3, 6), losses, accuracies, strict=True):
        checkpoint = tmp_path / f"out/checkpoints/checkpoint_{step}"
        found = evaluate(accel, run, checkpoint)
        [result] = found["results"]
        assert found["weights"] == str(checkpoint) and result["loss"] == loss and result["accuracy"] == accuracy
        assert result["perplexity"] == pytest.approx(math.exp(loss), rel=1e-12)
        accel("merge-weights", checkpoint, tmp_path / f"merged_{step}")
        weights = load_file(tmp_path / f"merged_{step}/model.safetensors")
        expected, right, samples = by_torch(weights, tmp_path / "held-out.txt")
        assert result["loss"] == pytest.approx(expected, rel=1e-5) and result["samples"] == samples
        # A sum of another order may decide between two logits that are nearly equal.
        assert abs(result["accuracy"] - right) <= 2 / (samples * LENGTH)
        # The same from merged weights, by one rank.
        [merged] = evaluate(accel, run, tmp_path / f"merged_{step}", "--num-processes", 1)["results"]
        assert merged["loss"] == pytest.approx(loss, rel=1e-6)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


@pytest.mark.long
def test_the_newest_checkpoint_and_other_data(accel, tmp_path, run):
    newest = str(tmp_path / "out/checkpoints/checkpoint_6")
    assert evaluate(accel, run)["weights"] == evaluate(accel, run, tmp_path / "out")["weights"] == newest
    other = tmp_path / "other.txt"
    other.write_bytes(train_runs.TEXT.read_bytes()[: LENGTH * 5 + 1])
    found = evaluate(accel, run, "--data", other, "--data", tmp_path / "held-out.txt")["results"]
    assert [result["data"] for result in found] == [str(other), str(tmp_path / "held-out.txt")]
    assert found[0]["samples"] == 5 and found[1]["loss"] == train_runs.metrics(tmp_path, "eval_loss")[-1]
    table = accel("evaluate", run, "--data", other).stdout.splitlines()
    assert table[1].split() == ["DATA", "SAMPLES", "LOSS", "PERPLEXITY", "ACCURACY"] and table[2].split()[1] == "5"


def test_without_a_checkpoint_the_weights_of_the_configuration_are_taken(accel, tmp_path):
    model = train_runs.export(tmp_path / "gpt.pt")
    data = {"format": "text", "path": str(held_out(tmp_path)), "sequence_length": LENGTH}
    config = train_runs.config(tmp_path, 1, **{"data.eval": data})
    found = evaluate(accel, config)
    assert found["weights"] == "the weights of the configuration"
    assert found["results"][0]["loss"] == pytest.approx(by_torch(model.state_dict(), tmp_path / "held-out.txt")[0], rel=1e-5)
    assert not (tmp_path / "out").exists()


def test_errors(accel, tmp_path, run):
    assert "'nowhere' does not exist" in accel("evaluate", run, "nowhere", code=2).stderr
    (tmp_path / "plain").mkdir()
    config = train_runs.config(tmp_path / "plain", 1, **{"model.path": str(tmp_path / "gpt.pt")})
    assert "there is no training.data.eval" in accel("evaluate", config, code=2).stderr
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    said = accel("evaluate", run, tmp_path / "other.safetensors", code=2).stderr
    assert "has no weights for" in said and said.count("error:") == 1
    # One flipped bit of a shard is found.
    shard = next((tmp_path / "out/checkpoints/checkpoint_6/pytorch_model_fsdp_0").glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert shard.name in accel("evaluate", run, code=6).stderr


def test_the_port_is_that_of_the_command_line(accel, run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = accel("evaluate", run, "--main-process-port", port, code=2).stderr
        assert str(port) in said and "in use" in said
        document = json.loads(run.read_text())
        run.write_text(json.dumps({**document, "main_process_port": port}))
        evaluate(accel, run)  # A training may have the port of the configuration.


def test_restarts_are_said_to_have_no_effect(accel, run):
    said = accel("evaluate", run, "--max-restarts", 2).stderr
    assert "--max-restarts has no effect" in said
    assert accel("--quiet", "evaluate", run).stderr == ""


class Adapted(torch.nn.Module):
    """A frozen base with statistics, and a trained part with a name of LoRA."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.lora_head = torch.nn.Linear(16, 256)
        for parameter in [*self.tokens.parameters(), *self.norm.parameters()]:
            parameter.requires_grad_(False)

    def forward(self, ids):
        return self.lora_head(self.norm(self.tokens(ids).transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_adapter_is_evaluated_on_its_base_with_its_statistics(accel, tmp_path, ranks):
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.jit.script(Adapted()).save(str(tmp_path / f"base_{seed}.pt"))
    data = {"format": "text", "path": str(held_out(tmp_path)), "sequence_length": LENGTH}
    keys = {"data.eval": data, "eval_every": 4, "checkpoint": {"every": 4, "adapter_only": True},
            "fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": None}
    config = train_runs.config(tmp_path, ranks, max_steps=4, **keys, **{"model.path": str(tmp_path / "base_0.pt")})
    accel("launch", config)
    assert evaluate(accel, config)["results"][0]["loss"] == train_runs.metrics(tmp_path, "eval_loss")[-1]
    other = train_runs.config(tmp_path, ranks, max_steps=4, **keys, **{"model.path": str(tmp_path / "base_1.pt")})
    assert "is of an adapter on other frozen weights than those of this run" in accel("evaluate", other, code=6).stderr


def test_a_run_that_would_go_on_from_a_path_is_evaluated_there(accel, tmp_path, run):
    config = train_runs.config(tmp_path, 2, output_dir=str(tmp_path / "next"), **{
        "data.eval": {"format": "text", "path": str(tmp_path / "held-out.txt"), "sequence_length": LENGTH},
        "checkpoint": {"every": 3, "resume": str(tmp_path / "out/checkpoints/checkpoint_3")}})
    assert evaluate(accel, config)["results"][0]["loss"] == train_runs.metrics(tmp_path, "eval_loss")[0]


def test_the_training_data_are_not_needed_and_what_a_model_prints_is_not_json(accel, tmp_path, run):
    document = json.loads(run.read_text())
    document["training"]["data"]["train"]["path"] = str(tmp_path / "gone.txt")
    run.write_text(json.dumps(document))
    assert evaluate(accel, run)["results"][0]["loss"] == train_runs.metrics(tmp_path, "eval_loss")[-1]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_between_two_sets(accel, accel_path, tmp_path, run, which):
    """It comes when the rank of the first set has finished its work."""
    worker = tmp_path / "worker"
    worker.write_text(f"#!/bin/bash\necho set >> '{tmp_path}/sets'\n'{accel_path.parents[1]}/train/accel-worker' \"$@\" || exit\n"
                      f"trap '' TERM INT\nkill -{which.name[3:]} $PPID\n")
    worker.chmod(0o755)
    data = str(tmp_path / "held-out.txt")
    flags = ("--data", data, "--data", data, "--num-processes", 1, "--set", f"launch.worker={worker}")
    ended = accel("evaluate", run, *flags, code=128 + which)
    assert f"by {which.name}" in ended.stderr and ended.stdout == ""
    assert (tmp_path / "sets").read_text() == "set\n"
