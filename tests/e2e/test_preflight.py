"""What cannot run is refused before any rank starts: exit 2, one message with file and line, by `accel check` as by launch."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from torch.export import Dim

import train_runs

CLASSES = 10
SHAPE = (1, 8, 8)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Dropout(0.1))
        self.head = torch.nn.Linear(4 * 36, CLASSES)

    def forward(self, pictures):
        return self.head(self.blocks(pictures))


def export(model, example, path, dims):
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=(dims,), strict=False), path)


class Tagged(torch.nn.Module):
    """A table whose name has "pos" in it and that is not of positions."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8)
        self.pos_tag = torch.nn.Embedding(4, 8)
        self.head = torch.nn.Linear(8, 256)

    def forward(self, ids):
        return self.head(self.tokens(ids) + self.pos_tag(ids % 4))


class Scales(torch.nn.Module):
    """Takes pictures of bytes as well as of floats."""

    def __init__(self):
        super().__init__()
        self.net = Classifier()

    def forward(self, pictures):
        return self.net(pictures / 255.0)


class Clamps(torch.nn.Module):
    """A table of positions that is looked up with fewer of them, which no name tells."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8)
        self.positions = torch.nn.Embedding(8, 8)
        self.head = torch.nn.Linear(8, 256)

    def forward(self, ids):
        places = torch.arange(ids.shape[1]).clamp(max=7)
        return self.head(self.tokens(ids) + self.positions(places))


@pytest.fixture(scope="session")
def models(made_once):
    def make(directory):
        train_runs.export(directory / "gpt.pt")
        model = train_runs.GPT(**train_runs.SIZES)
        torch.jit.script(model).save(str(directory / "no_layers.pt"))
        with torch.device("meta"):
            empty = train_runs.GPT(**train_runs.SIZES)
        torch.jit.script(empty).save(str(directory / "empty.pt"))
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        save_file({**state, "norm.weight": torch.zeros(49)}, directory / "wide.safetensors")
        save_file(state, directory / "whole.safetensors")
        state.pop("norm.weight")
        save_file(state, directory / "headless.safetensors")
        export(Classifier().train(), torch.zeros(4, *SHAPE), directory / "pictures.pt2", {0: Dim.AUTO})
        export(Classifier().train(), torch.zeros(4, *SHAPE), directory / "fixed.pt2", None)
        export(Classifier().eval(), torch.zeros(4, *SHAPE), directory / "evaluation.pt2", {0: Dim.AUTO})
        export(Scales().train(), torch.zeros(4, *SHAPE), directory / "scales.pt2", {0: Dim.AUTO})
        export(Scales().train(), torch.zeros(4, *SHAPE, dtype=torch.long), directory / "promotes.pt2", {0: Dim.AUTO})
        torch.jit.script(Tagged()).save(str(directory / "tagged.pt"))
        train_runs.export(directory / "many_tokens.pt", vocabulary=600)
        torch.jit.script(Clamps()).save(str(directory / "clamps.pt"))
        ids = torch.zeros(4, 16, dtype=torch.long)
        export(model.train(), ids, directory / "short.pt2", {0: Dim.AUTO, 1: Dim("length", max=24)})
        pictures, labels = torch.rand(64, *SHAPE), torch.arange(64) % CLASSES
        for name, fields in {"good": {}, "bytes": {"pictures": (pictures * 255).to(torch.uint8)},
                             "one_based": {"labels": labels + 1}, "flat": {"pictures": pictures.flatten(1)},
                             "large": {"pictures": torch.rand(64, 1, 12, 12)},
                             "late": {"labels": torch.where(torch.arange(64) < 60, labels, CLASSES)},
                             "ids": {"input_ids": torch.zeros(64, 16, dtype=torch.uint8), "labels": torch.ones(64, 16, dtype=torch.long)}
                             }.items():
            save_file({"pictures": pictures, "labels": labels, **fields}, directory / f"{name}.safetensors")
        ids = torch.randint(256, (64, 16))
        save_file({"input_ids": ids, "labels": ids.clone()}, directory / "copied.safetensors")
        save_file({"images": pictures, "labels": labels}, directory / "other_name.safetensors")
        save_file({"pictures": pictures}, directory / "unlabelled.safetensors")

    return made_once("preflight_models", make)


def pictures(models, data="good", model="pictures.pt2", **keys):
    return {"model.path": str(models / model), "model.inputs": ["pictures"],
            "data.train": {"format": "tensors", "path": str(models / f"{data}.safetensors")},
            "distributed_type": "MULTI_CPU", **keys}


def text(models, model="gpt.pt", **keys):
    return {"model.path": str(models / model), **keys}


# name: (the configuration, the key that is blamed, what the message says)
CASES = {
    "no weights": (lambda m: text(m, "empty.pt"), "training.model.path", r"has no values for 'tokens.weight'"),
    "weights of another shape": (
        lambda m: text(m, **{"model.weights": str(m / "wide.safetensors")}), "training.model.weights",
        r"'norm.weight' is \[49\], the model's is \[48\]"),
    "weights that lack a tensor": (
        lambda m: text(m, **{"model.weights": str(m / "headless.safetensors")}), "training.model.weights",
        r"has no weights for 1 of \d+ parameters: 'norm.weight'"),
    "not a model": (lambda m: text(m, "good.safetensors"), "training.model.path", r"holds weights[\s\S]*accel-export MODEL_DIRECTORY"),
    "layer class": (
        lambda m: text(m, **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Blok"}), "Blok", "no module of class 'Blok'"),
    "a group of no parameter": (
        lambda m: text(m, **{"optimizer.groups": [{"match": "nothere", "lr": 1}]}), "training.optimizer.groups",
        "has the pattern 'nothere', which is found in the name of no parameter"),
    "too few inputs": (lambda m: text(m, **{"model.inputs": []}), "training.model.inputs", r"forward takes \[input_ids\]"),
    "too many inputs": (
        lambda m: text(m, **{"model.inputs": ["input_ids", "labels"]}), "training.model.inputs", r"forward takes \[input_ids\]"),
    "a field that text does not have": (
        lambda m: text(m, **{"model.inputs": ["pixels"]}), "training.data.train.path", "the data has no field 'pixels'"),
    "a field that the file does not have": (
        lambda m: pictures(m, "other_name"), "training.data.train.path", "the data has no field 'pictures'"),
    "no labels": (lambda m: pictures(m, "unlabelled"), "training.data.train.path", "the data has no field 'labels'"),
    "uint8 pictures": (
        lambda m: pictures(m, "bytes"), "training.data.train.path",
        r"'pictures' is of uint8, and the model was exported for an input 'pictures' of float32[\s\S]*set training.model.uint8_divisor"),
    "floats for an input of integers": (
        lambda m: pictures(m, model="promotes.pt2"), "training.data.train.path",
        r"'pictures' is of float32, and the model was exported for an input 'pictures' of int64[\s\S]*launch.preflight: false starts the run"),
    "uint8 pictures in evaluation": (
        lambda m: pictures(m, **{"data.eval": {"format": "tensors", "path": str(m / "bytes.safetensors")}, "eval_every": 1}),
        "training.data.eval.path", "'pictures' is of uint8"),
    "flat pictures": (lambda m: pictures(m, "flat"), "training.data.train.path", "exported for 4"),
    "large pictures": (
        lambda m: pictures(m, "large"), "training.data.train.path", "has 12 in dimension 2, and the model was exported for 8 alone"),
    "labels from 1": (
        lambda m: pictures(m, "one_based"), "training.data.train.path", "sample 9: label 10 in 'labels', but the model gives 10 classes"),
    "a fixed batch": (
        lambda m: pictures(m, model="fixed.pt2", **{"data.batch_size": 8}), "training.data.batch_size",
        "a batch has 8 samples, and the model was exported for 4 alone"),
    "a fixed batch in evaluation": (
        lambda m: pictures(m, model="fixed.pt2", processes=3, **{
            "data.eval": {"format": "tensors", "path": str(m / "good.safetensors")}, "eval_every": 1}),
        "training.data.eval.path", "64 samples are no multiple of 12"),
    "more than the data": (
        lambda m: pictures(m, **{"data.batch_size": 40}), "training.data.batch_size",
        "64 samples, but a step of 2 processes with batch_size 40 needs 80"),
    "exported in evaluation": (
        lambda m: pictures(m, model="evaluation.pt2"), "training.model.path", "exported in evaluation mode"),
    "bytes for a model with a tokenizer": (
        lambda m: text(m, "many_tokens.pt"), "training.data.train.format",
        "format: text has 256 different tokens, but the model knows 600: those of a tokenizer"),
    "longer than the positions": (
        lambda m: text(m, **{"data.train": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 48}}),
        "training.data.train.sequence_length", "a sequence has 48 tokens, but the model's table of positions has 32 rows"),
    "labels that are the inputs": (
        lambda m: text(m, **{"data.train": {"format": "tensors", "path": str(m / "copied.safetensors")}}), "training.data.train.path",
        r"'labels' are the tokens of 'input_ids' themselves[\s\S]*training.data.check_labels: false"),
    "compiled code that is not there": (
        lambda m: text(m, "short.pt2", dynamo_config={"dynamo_backend": "INDUCTOR", "dynamo_use_fullgraph": True}), "dynamo_backend",
        r"asks for compiled code, and the model file has none[\s\S]*accel-export --compile"),
    "a directory as the model": (lambda m: text(m, "."), "training.model.path", r"is not a file[\s\S]*accel-export MODEL_DIRECTORY"),
    "longer than the export": (
        lambda m: text(m, "short.pt2"), "training.data.train.sequence_length", "has 32 in dimension 1, and the model was exported for at most 24"),
}


@pytest.mark.parametrize("command", ["launch", "check"])
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_run_is_refused_before_any_rank_starts(accel, tmp_path, models, case, command):
    keys, blamed, message = CASES[case]
    worker = tmp_path / "worker"
    worker.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 9\n")
    worker.chmod(0o755)
    options = keys(models)
    config = train_runs.config(tmp_path, options.pop("processes", 2), **{"launch.worker": str(worker), **options})
    said = accel(command, config, code=2).stderr
    assert re.search(message, said), said
    assert said.count("error:") == 1 and not (tmp_path / "started").exists() and not (tmp_path / "out").exists()
    where = re.search(r"config\.yaml:(\d+):\d+: ", said)
    assert where, said
    last = blamed.rpartition(".")[2]
    assert last in config.read_text().splitlines()[int(where[1]) - 1], said


NO_WRAP = {"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": None}
RUNS = {
    "pictures": pictures,
    "text": text,
    "a table called pos_tag": lambda m: text(m, "tagged.pt", **NO_WRAP),
    "bytes that the model scales": lambda m: pictures(m, "bytes", "scales.pt2"),
    "tokens of uint8 beside a divisor": lambda m: pictures(
        m, "ids", "short.pt2", **{"model.inputs": ["input_ids"], "model.uint8_divisor": 255}),
    "floats for an input of integers that promotes": lambda m: pictures(
        m, model="promotes.pt2", **{"launch.preflight": False}),
    "a label that does not count": lambda m: pictures(m, "one_based", **{"model.ignore_index": 10, "data.batch_size": 8}),
    "labels that the run does not reach": lambda m: pictures(m, "late"),
    "held-out data that nothing evaluates": lambda m: pictures(m, model="fixed.pt2", processes=3, **{
        "data.eval": {"format": "tensors", "path": str(m / "one_based.safetensors")}}),
    "what only the ranks can tell": lambda m: text(m, "clamps.pt", **NO_WRAP, **{"launch.preflight": False}),
}


@pytest.mark.long(but="pictures")
@pytest.mark.parametrize("case", RUNS)
def test_what_can_run_is_not_refused(accel, tmp_path, models, case):
    options = RUNS[case](models)
    config = train_runs.config(tmp_path, options.pop("processes", 2), **options, max_steps=1)
    accel("check", config)
    accel("launch", config)
    assert len(train_runs.metrics(tmp_path)) == 1


def test_check_says_what_is_trained_how_and_on_what(accel, tmp_path, models):
    for name, repeats in (("a", 100), ("b", 20)):
        (tmp_path / name).write_bytes(bytes(range(32, 127)) * repeats)
    mixture = {str(tmp_path / "a"): 1, str(tmp_path / "b"): 1}
    config = train_runs.config(tmp_path, 2, **text(models, **{
        "data.train": {"format": "text", "sequence_length": 32, "mixture": mixture}, "optimizer.type": "muon", "optimizer.betas": None,
        "optimizer.eps": None, "optimizer.groups": [{"match": "norm", "frozen": True}]}))
    said = accel("check", config).stdout
    assert re.search(rf"{tmp_path}/b +59 +296 +5.02", said) and "comes 5.0 times in an epoch" in said, said
    assert re.search(r"norm +\d+ +\d+ +none", said) and re.search(r"\(no pattern\) +\d+ +\d+ +muon +0.003 +0.1", said), said
    assert "Muon trains tokens.weight" in said
    plan = json.loads(accel("plan", config, "--json").stdout)
    assert {group["optimizer"] for group in plan["parameter_groups"]} == {"muon", "adamw", "none"}
    assert sum(group["elements"] for group in plan["parameter_groups"]) == plan["elements"]


def test_a_table_of_positions_that_is_too_short_names_the_way_out(accel, tmp_path, models):
    said = accel("check", train_runs.config(tmp_path, **text(models, "clamps.pt", **NO_WRAP)), code=2).stderr
    assert "launch.preflight: false starts the run" in said


def test_a_run_without_checkpoints_goes_on_without_the_weights_that_it_began_with(accel, tmp_path, models):
    accel("launch", train_runs.config(tmp_path, **text(models), checkpoint={"every": 1}, max_steps=1))
    accel("launch", train_runs.config(tmp_path, **text(models, "empty.pt"), checkpoint={"every": 0, "resume": "auto"}, max_steps=2))
    assert len(train_runs.metrics(tmp_path)) == 2


def test_an_output_dir_belongs_to_one_model_and_its_data(accel, tmp_path, models):
    """Whether the run there is finished or not."""
    keys = {**text(models), "checkpoint": {"every": 1}}
    accel("launch", train_runs.config(tmp_path, **keys, max_steps=1))
    other = train_runs.config(tmp_path, **{**keys, "model.path": str(models / "many_tokens.pt"), "data.train": {
        "format": "synthetic", "vocabulary": 600, "samples": 64, "sequence_length": 32}}, max_steps=1)
    assert "training.output_dir': the run that is there is of another model: " in accel("launch", other, code=2).stderr
    assert "training.output_dir': the run that is there is of another model: " in accel("check", other, code=2).stderr
    assert "another model" in accel("launch", other, "--set", "training.max_steps=2", code=2).stderr
    shorter = {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 16}
    said = accel("check", train_runs.config(tmp_path, **{**keys, "data.train": shorter}, max_steps=2), code=2).stderr
    assert re.search(r"training\.data\.train has \d+ samples of 16 tokens, but the checkpoint is of a run on \d+ samples of 32", said)


def test_other_weights_inside_a_checkpoint_are_not_taken_for_it(accel, tmp_path, models):
    """Merged ones may lie there, also under other names."""
    keys = {**text(models), "checkpoint": {"every": 1}}
    accel("launch", train_runs.config(tmp_path, **keys, max_steps=1))
    checkpoint = tmp_path / "out/checkpoints/checkpoint_1"
    accel("merge-weights", checkpoint, checkpoint / "merged")
    accel("merge-weights", checkpoint / "pytorch_model_fsdp_0", checkpoint, "--rename", "norm=other")
    assert "nothing to do" in accel("launch", train_runs.config(tmp_path, **keys, max_steps=1)).stderr
    accel("launch", train_runs.config(tmp_path, **keys, max_steps=2))
    assert len(train_runs.metrics(tmp_path)) == 2


def test_a_finished_run_is_said_with_what_is_other_now(accel, tmp_path, models):
    keys = {**text(models), "checkpoint": {"every": 1}, "max_steps": 1}
    accel("launch", train_runs.config(tmp_path, **keys))
    assert "had other settings" not in accel("launch", train_runs.config(tmp_path, **keys)).stderr
    other = train_runs.config(tmp_path, **keys, seed=7)
    assert "the finished run had other settings: training.seed was 42 and is 7" in accel("launch", other).stderr
    assert "is finished, at step 1: a launch has nothing to do" in accel("check", other).stdout


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_an_output_dir_that_cannot_be_is_refused(accel, tmp_path, models, place):
    (tmp_path / "file").write_text("")
    config = train_runs.config(tmp_path, **text(models), output_dir=str(tmp_path / place))
    for command in ("check", "launch"):
        said = accel(command, config, code=2).stderr
        assert f"cannot be written: '{tmp_path / 'file'}': it is not a directory" in said


def test_a_line_that_looks_like_an_error_hides_nothing(accel, tmp_path):
    """Native libraries and models print what they like."""
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\necho 'error: of the estimate is large' >&2\necho 'and then more' >&2\n")
    worker.chmod(0o755)
    train_runs.export(tmp_path / "gpt.pt")
    said = accel("launch", train_runs.config(tmp_path, 1, **{"launch.worker": str(worker)})).stderr
    assert said.endswith("error: of the estimate is large\nand then more\n")


def test_a_run_that_goes_on_does_not_need_the_weights_that_it_began_with(accel, tmp_path, models):
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes((models / "whole.safetensors").read_bytes())
    keys = {**text(models, **{"model.weights": str(weights)}), "checkpoint": {"every": 1}}
    accel("launch", train_runs.config(tmp_path, **keys, max_steps=1))
    save_file({"other": torch.zeros(1)}, weights)
    accel("launch", train_runs.config(tmp_path, **keys, max_steps=2))
    assert len(train_runs.metrics(tmp_path)) == 2


def test_a_finished_run_needs_no_model_any_more(accel, tmp_path, models):
    model = tmp_path / "gpt.pt"
    train_runs.export(model)
    config = train_runs.config(tmp_path, checkpoint={"every": 1}, max_steps=1)
    accel("launch", config)
    model.write_bytes(b"")
    assert "nothing to do" in accel("launch", config).stderr
