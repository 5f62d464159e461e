"""`accel merge-weights RUN OUT`: which checkpoint of a run is taken, and that transformers loads what is written."""

import json
import shutil
import subprocess

import pytest
import torch
import train_runs
import transformers
from accel_export import cli
from safetensors.torch import load_file

SIZES = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 64}
TOKENIZER = ["special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def trained(accel_path, tmp_path_factory):
    """A run with checkpoints of steps 2, 4 and 6, and its directory of transformers with a tokenizer's files."""
    directory = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(directory / "hf")
    for name in TOKENIZER:
        (directory / "hf" / name).write_text(json.dumps({"file": name}))
    cli.main([str(directory / "hf"), str(directory / "gpt.pt")])
    short = directory / "eval.txt"
    short.write_bytes(train_runs.TEXT.read_bytes()[:32 * 20 + 1])
    config = train_runs.config(directory, 2, max_steps=6, eval_every=2, **{
        "model.weights": str(directory / "hf"), "checkpoint": {"every": 2, "resume": "none"},
        "data.eval": {"format": "text", "path": str(short), "sequence_length": 32},
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"})
    subprocess.run([accel_path, "launch", config], check=True, cwd=directory)
    return directory


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run that a test may change."""
    shutil.copytree(trained / "out", tmp_path / "out")
    return tmp_path / "out"


def evaluations(run, losses):
    """Gives steps other held-out losses, in metrics.jsonl alone, as an earlier accel did."""
    for checkpoint in (run / "checkpoints").iterdir():
        train_runs.forget_evaluation(checkpoint)
    kept = [line for line in (run / "metrics.jsonl").read_text().splitlines() if "eval_loss" not in line]
    kept += [json.dumps({"step": step, "eval_loss": loss}) for step, loss in losses.items()]
    (run / "metrics.jsonl").write_text("\n".join(kept) + "\n")


def state_of(accel, run, step, out):
    accel("merge-weights", run / f"checkpoints/checkpoint_{step}", out)
    return load_file(out / "model.safetensors")


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_transformers_loads_the_newest_checkpoint_of_a_run(accel, trained, run, tmp_path):
    result = accel("merge-weights", run, tmp_path / "merged")
    copied = sorted(["config.json", "generation_config.json", *TOKENIZER])
    assert f"copied {', '.join(copied)} from '{trained}/hf'\n" in result.stdout
    for name in copied:
        assert (tmp_path / "merged" / name).read_bytes() == (trained / "hf" / name).read_bytes()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert model.generation_config.max_new_tokens == 7
    tokens = torch.frombuffer(bytearray((trained / "eval.txt").read_bytes()), dtype=torch.uint8).long()
    windows = torch.stack([tokens[i:i + 33] for i in range(0, 32 * 20, 32)])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(windows[:, :-1]).logits.flatten(0, 1), windows[:, 1:].flatten())
    losses = train_runs.metrics(trained, "eval_loss")
    assert abs(loss.item() - losses[-1]) < 1e-5 < abs(losses[-1] - losses[-2])


def test_a_step_and_the_best_are_taken(accel, run, tmp_path):
    states = {step: state_of(accel, run, step, tmp_path / f"of{step}") for step in (2, 4, 6)}
    assert not same(states[2], states[4]) and not same(states[4], states[6])
    accel("merge-weights", run, tmp_path / "a", "--step", 2)
    assert same(load_file(tmp_path / "a/model.safetensors"), states[2])
    evaluations(run, {2: 3.0, 3: 1.0, 4: 2.0, 6: 2.5})
    accel("merge-weights", run, tmp_path / "b", "--best")
    assert same(load_file(tmp_path / "b/model.safetensors"), states[4])
    listed = json.loads(accel("checkpoints", run, "--json").stdout)["checkpoints"]
    assert {one["step"]: one["eval_loss"] for one in listed if one["best"]} == {4: 2.0}
    # One that is not complete is no choice.
    (run / "checkpoints/checkpoint_4/trainer_state.json").unlink()
    (run / "checkpoints/checkpoint_6/trainer_state.json").unlink()
    said = accel("merge-weights", run, tmp_path / "c").stderr
    assert "checkpoint_6' is passed over, because it is not complete" in said
    accel("merge-weights", run, tmp_path / "d", "--best")
    for name in ("c", "d"):
        assert same(load_file(tmp_path / name / "model.safetensors"), states[2])
    assert "checkpoint_4' is not complete" in accel("merge-weights", run, tmp_path / "e", "--step", 4, code=4).stderr


def test_what_there_is_stands_in_the_error(accel, run, tmp_path):
    said = accel("merge-weights", run, tmp_path / "a", "--step", 3, code=4).stderr
    assert "holds no checkpoint of step 3, but of steps 2, 4, 6" in said
    evaluations(run, {3: 1.0})
    said = accel("merge-weights", run, tmp_path / "a", "--best", code=4).stderr
    assert "has complete checkpoints of steps 2, 4, 6, and" in said and "has held-out losses of step 3" in said
    assert "not the output_dir of a training" in accel("merge-weights", run / "checkpoints/checkpoint_2", tmp_path / "a",
                                                       "--best", code=2).stderr
    for step in (2, 4, 6):
        (run / f"checkpoints/checkpoint_{step}/accel_manifest.json").write_text("{}")
    assert "holds no complete checkpoint" in accel("merge-weights", run, tmp_path / "a", code=4).stderr
    assert not (tmp_path / "a").exists()


def test_what_is_copied_can_be_chosen(accel, run, trained, tmp_path):
    accel("merge-weights", run, tmp_path / "a", "--no-assets")
    accel("merge-weights", run, tmp_path / "b.safetensors")
    (tmp_path / "own").mkdir()
    rounding = "to which from_pretrained rounds them; --dtype bf16"
    for number, key in enumerate(["dtype", "torch_dtype"]):
        (tmp_path / "own/config.json").write_text(json.dumps({key: "bfloat16"}))
        for words, said in (([], True), (["--dtype", "bf16"], False)):
            found = accel("merge-weights", run, tmp_path / f"{number}{said}", "--copy-assets", tmp_path / "own", *words).stderr
            assert (rounding in found) == said, found
    (tmp_path / "own/config.json").write_text("{}")
    assert rounding not in accel("merge-weights", run, tmp_path / "c", "--copy-assets", tmp_path / "own").stderr
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model.safetensors"]
    assert (tmp_path / "b.safetensors").is_file()
    assert (tmp_path / "c/config.json").read_text() == "{}" and len(list((tmp_path / "c").iterdir())) == 2
    plan = json.loads(accel("merge-weights", run, tmp_path / "d", "--dry-run", "--json").stdout)
    assert plan["assets"] == sorted(["config.json", "generation_config.json", *TOKENIZER]) and not (tmp_path / "d").exists()
    accel("merge-weights", run, tmp_path / "d", "--no-assets", "--copy-assets", tmp_path / "own", code=2)
    accel("merge-weights", run, tmp_path / "d", "--step", 2, "--best", code=2)


def test_nothing_is_overwritten(accel, run, tmp_path):
    (tmp_path / "out2").mkdir()
    (tmp_path / "out2/tokenizer.json").write_text("mine")
    assert "tokenizer.json' is already there" in accel("merge-weights", run, tmp_path / "out2", code=1).stderr
    assert [(path.name, path.read_text()) for path in (tmp_path / "out2").iterdir()] == [("tokenizer.json", "mine")]


def test_weights_that_are_gone_are_said(accel, run, tmp_path):
    config = json.loads((run / "config.resolved.json").read_text())
    config["training"]["model"]["weights"] = "moved/hf"
    (run / "config.resolved.json").write_text(json.dumps(config))
    said = accel("merge-weights", run, tmp_path / "a").stderr
    assert "moved/hf', which the run has as training.model.weights, is not there" in said
    (run / "config.resolved.json").write_text("{")
    assert "config.resolved.json" in accel("merge-weights", run, tmp_path / "b", code=5).stderr
    accel("merge-weights", run, tmp_path / "b", "--no-assets")
