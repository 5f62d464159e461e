"""`accel config MODEL` writes a configuration that `accel plan` and `accel launch` take as it is, for every kind of model
file."""

import json

import pytest
import safetensors.torch
import torch
import train_runs
import yaml

LENGTH = train_runs.SIZES["length"]
IDS = torch.zeros(2, LENGTH, dtype=torch.long)


class OwnLoss(torch.nn.Module):
    """A model that returns its loss, with an argument that may be left out."""

    def __init__(self):
        super().__init__()
        self.gpt = train_runs.GPT(**train_runs.SIZES)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.gpt(tokens).flatten(0, 1), labels.flatten()) * scale


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(input_ids * attention_mask))


def noted(path):
    train_runs.export(path)


def scripted(path):
    train_runs.export(path, layer_classes=())


def traced(path):
    torch.manual_seed(0)
    torch.jit.trace(train_runs.GPT(**train_runs.SIZES), (IDS,)).save(str(path))


def structure_alone(path):
    with torch.device("meta"):
        model = train_runs.GPT(**train_runs.SIZES)
    torch.jit.script(model).save(str(path))


def exported(path):
    torch.manual_seed(0)
    train_runs.export_pt2(path, train_runs.GPT(**train_runs.SIZES))


def exported_structure(path):
    """The program without the values of its parameters."""
    exported(path)
    program = torch.export.load(path)
    for name, tensor in list(program.state_dict.items()):
        if isinstance(tensor, torch.nn.Parameter):
            program.state_dict[name] = torch.nn.Parameter(torch.empty_like(tensor, device="meta"))
    # Without values only the notes can say what is tied.
    torch.export.save(program, path, extra_files={"accel.json": json.dumps({"ties": [["tokens.weight", "head.weight"]]})})


def own_loss(path):
    torch.manual_seed(0)
    torch.jit.script(OwnLoss()).save(str(path))


# Its two equal tables have more than 100 million elements, which take no space in a file without values.
LARGE = {**train_runs.SIZES, "vocabulary": 3_000_000}


def large():
    with torch.device("meta"):
        return train_runs.GPT(**LARGE)


def large_scripted(path):
    torch.jit.script(large()).save(str(path))


def large_noted(path):
    torch.jit.script(large()).save(str(path), _extra_files={"accel.json": json.dumps({"layer_classes": ["Block"]})})


def large_without_layers(path):
    torch.jit.script(large()).save(str(path), _extra_files={"accel.json": json.dumps({"layer_classes": []})})


KINDS = [noted, scripted, traced, structure_alone, exported, exported_structure, own_loss]
PROGRAMS = (exported, exported_structure)
WITHOUT_VALUES = (structure_alone, exported_structure)
INIT = ["--set", "training.model.init.std=0.02"]


def made(accel, tmp_path, kind, *flags):
    """Returns the paths of a model and of a configuration that is made for it and for data that exist."""
    model = tmp_path / ("model.pt2" if kind in PROGRAMS else "model.pt")
    kind(model)
    config = tmp_path / "c.yaml"
    accel("config", model, "--data", train_runs.TEXT, "--cpu", "--num-processes", 2, "-o", config, *flags)
    return model, config


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_plan_takes_the_configuration(accel, tmp_path, kind):
    _, config = made(accel, tmp_path, kind)
    written = yaml.safe_load(config.read_text())
    assert written["distributed_type"] == "MULTI_CPU" and "fsdp_config" not in written
    assert "# A model of at most 100,000,000 parameters is not sharded" in config.read_text()
    assert written["training"]["data"]["train"] == {"format": "text", "path": str(train_runs.TEXT), "sequence_length": LENGTH}
    assert ("# weights: DIRECTORY" in config.read_text()) == (kind in WITHOUT_VALUES)
    model = written["training"]["model"]
    expected = ("model", ["input_ids", "labels"]) if kind is own_loss else ("cross_entropy", ["input_ids"])
    assert (model["loss"], model["inputs"]) == expected
    assert ("# Arguments with a default are left out: scale." in config.read_text()) == (kind is own_loss)

    plan = json.loads(accel("--json", "plan", config).stdout)
    assert plan["plans"][0]["world_size"] == 2


@pytest.mark.parametrize("kind", [large_scripted, large_noted, large_without_layers], ids=lambda kind: kind.__name__)
def test_a_large_model_is_sharded(accel, tmp_path, kind):
    kind(tmp_path / "model.pt")
    run = accel("config", "model.pt", "--data", "tokens.npy", "--cpu", "--num-processes", 2, "-o", "c.yaml")
    assert "warning" not in run.stderr
    text = (tmp_path / "c.yaml").read_text()
    written = yaml.safe_load(text)
    assert written["distributed_type"] == "FSDP"
    has_layers = kind is not large_without_layers
    assert written["fsdp_config"].get("fsdp_transformer_layer_cls_to_wrap") == ("Block" if has_layers else None)
    assert written["fsdp_config"]["fsdp_auto_wrap_policy"] == ("TRANSFORMER_BASED_WRAP" if has_layers else "NO_WRAP")
    assert ("This is a guess from what repeats" in text) == (kind is large_scripted)
    assert ("The notes of the model say that it has no layers to become units" in text) == (not has_layers)
    plan = json.loads(accel("--json", "plan", "c.yaml").stdout)
    units = [unit["class"] for unit in plan["plans"][0]["units"]]
    assert units.count("Block") == (train_runs.SIZES["layers"] if has_layers else 0)


def test_without_a_gpu_in_sight_a_run_takes_what_there_is(accel, tmp_path):
    noted(tmp_path / "model.pt")
    text = accel("config", "model.pt").stdout
    assert "distributed_type" not in yaml.safe_load(text) and "# distributed_type: MULTI_GPU" in text


class Pictures(torch.nn.Module):
    """What it takes has a name that could be that of tokens."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x.flatten(1))


def test_a_program_that_takes_floats_gets_no_tokens(accel, tmp_path):
    torch.export.save(torch.export.export(Pictures(), (torch.zeros(4, 8, 8),)), tmp_path / "model.pt2")
    text = accel("config", "model.pt2").stdout
    written = yaml.safe_load(text)["training"]
    assert written["model"]["inputs"] == ["x"] and written["data"]["train"]["format"] == "tensors"
    assert "This is a guess: 'x' gets the tokens" not in text
    said = accel("config", "model.pt2", "--data", "data.txt").stderr
    assert "forward takes 'x', and data of format 'text' have no such field" in said


def test_a_graph_in_float32_gets_no_advice_of_16_bits(accel, tmp_path):
    model = torch.jit.script(train_runs.GPT(**train_runs.SIZES))
    model.save(str(tmp_path / "model.pt"), _extra_files={"accel.json": json.dumps({"dtype": "float32"})})
    text = accel("config", "model.pt", "--cpu").stdout
    assert yaml.safe_load(text)["mixed_precision"] == "no" and "its graph computes in float32" in text and "bf16" not in text


@pytest.mark.long(but="noted")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_configuration_trains(accel, tmp_path, kind):
    _, config = made(accel, tmp_path, kind)
    init = INIT if kind in WITHOUT_VALUES else []
    port = ["--main-process-port", "0"]
    accel("launch", config, "--set", "training.max_steps=2", "--set", "training.log_every=1", *init, *port)
    metrics = [json.loads(line) for line in (tmp_path / "runs/c/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "loss" in line] == [1, 2]
    assert (tmp_path / "runs/c/checkpoints/checkpoint_2").is_dir()


def test_the_memory_in_the_comment_is_the_plans(accel, tmp_path):
    _, config = made(accel, tmp_path, scripted)
    document = json.loads(accel("--json", "config", tmp_path / "model.pt", "--cpu", "--num-processes", 2).stdout)
    plan = json.loads(accel("--json", "plan", config).stdout)["plans"][0]
    assert document["rank_bytes"] == plan["memory"]["total_bytes"]
    assert "# Each of 2 ranks needs " in config.read_text()
    elements = sum(unit["elements"] for unit in plan["units"])
    assert document["elements"] == elements and document["parameter_bytes"] == 4 * elements
    assert f"{elements:,} parameters" in config.read_text()


def test_a_placeholder_stands_for_the_data_until_the_user_names_them(accel, tmp_path):
    scripted(tmp_path / "model.pt")
    accel("config", "model.pt", "-o", "c.yaml", "--cpu")
    accel("plan", "c.yaml")
    error = accel("launch", "c.yaml", code=2).stderr
    assert "'training.data.train.path': nothing matches 'data.txt'" in error


def test_a_model_with_a_large_vocabulary_gets_tokens(accel, tmp_path):
    train_runs.export(tmp_path / "model.pt", vocabulary=1000)
    text = accel("config", "model.pt", "--cpu").stdout
    assert yaml.safe_load(text)["training"]["data"]["train"]["format"] == "tokens"
    assert "The model knows 1,000 tokens" in text
    named = yaml.safe_load(accel("config", "model.pt", "--data", "a'b: #.npy").stdout)
    assert named["training"]["data"]["train"]["path"] == "a'b: #.npy"


def test_an_argument_that_the_data_lack_is_named(accel, tmp_path):
    torch.jit.script(Masked()).save(str(tmp_path / "model.pt"))
    run = accel("config", "model.pt", "--data", "data.txt")
    assert "warning: forward takes 'attention_mask', and data of format 'text' have no such field" in run.stderr
    written = yaml.safe_load(run.stdout)
    assert written["training"]["model"]["inputs"] == ["input_ids", "attention_mask"]
    document = json.loads(accel("--json", "config", "model.pt", "--data", "data.txt").stdout)
    assert document["layer_classes"] == ["Linear"] and not document["layer_classes_are_noted"]


@pytest.mark.parametrize("flags, path", [((), "train.safetensors"), (("--data", "a/*.safetensors"), "a/*.safetensors")])
def test_a_model_with_more_inputs_gets_tensors(accel, tmp_path, flags, path):
    torch.jit.script(Masked()).save(str(tmp_path / "model.pt"))
    run = accel("config", "model.pt", *flags)
    written = yaml.safe_load(run.stdout)["training"]
    assert written["data"]["train"] == {"format": "tensors", "path": path} and "no such field" not in run.stderr
    assert written["model"]["inputs"] == ["input_ids", "attention_mask"]


def test_a_model_of_pictures_gets_tensors(accel, tmp_path):
    notes = {"inputs": ["pixel_values"], "outputs": ["logits"]}
    torch.jit.script(torch.nn.Linear(4, 4)).save(str(tmp_path / "model.pt"), _extra_files={"accel.json": json.dumps(notes)})
    written = yaml.safe_load(accel("config", "model.pt").stdout)["training"]
    assert written["model"]["inputs"] == ["pixel_values"] and written["data"]["train"]["format"] == "tensors"


@pytest.mark.parametrize("notes, expected", [
    ({"outputs": ["hidden", "loss"], "inputs": ["input_ids", "labels"], "shifts_labels": True}, ("model", 1)),
    ({"outputs": ["hidden", "logits"], "inputs": ["input_ids"]}, ("cross_entropy", 1)),
    ({"outputs": ["logits"], "inputs": ["input_ids", "labels"]}, ("cross_entropy", 0)),
])
def test_the_notes_say_what_forward_returns(accel, tmp_path, notes, expected):
    model = torch.jit.script(train_runs.GPT(**train_runs.SIZES))
    model.save(str(tmp_path / "model.pt"), _extra_files={"accel.json": json.dumps(notes)})
    text = accel("config", "model.pt").stdout
    written = yaml.safe_load(text)["training"]["model"]
    assert (written["loss"], written["output"]) == expected
    assert written["inputs"] == notes["inputs"]
    assert ("The model shifts its labels itself" in text) == ("shifts_labels" in notes)


def test_a_model_that_computes_in_16_bits_gets_mixed_precision(accel, tmp_path):
    model = torch.jit.script(train_runs.GPT(**train_runs.SIZES))
    model.save(str(tmp_path / "model.pt"), _extra_files={"accel.json": json.dumps({"dtype": "bfloat16"})})
    accel("config", "model.pt", "--cpu", "-o", "c.yaml")
    written = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert (written["mixed_precision"], written["distributed_type"]) == ("bf16", "FSDP")
    accel("plan", "c.yaml")


def test_a_file_is_replaced_only_if_it_is_asked_for(accel, tmp_path):
    noted(tmp_path / "model.pt")
    (tmp_path / "c.yaml").write_text("mine")
    error = accel("config", "model.pt", "-o", "c.yaml", code=1).stderr
    assert "'c.yaml' is already there" in error and "--force" in error
    assert (tmp_path / "c.yaml").read_text() == "mine"
    accel("config", "model.pt", "-o", "c.yaml", "--force")
    written = yaml.safe_load((tmp_path / "c.yaml").read_text())
    printed = yaml.safe_load(accel("config", "model.pt").stdout)
    assert (written["training"].pop("output_dir"), printed["training"].pop("output_dir")) == ("runs/c", "runs/model")
    assert written == printed


WORDS = 32000


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(WORDS, 8)
        self.head = torch.nn.Linear(8, WORDS)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(input_ids))


def test_text_is_not_for_a_model_with_a_tokenizer(accel, tmp_path):
    """It would learn the bytes of the text, with a loss that falls."""
    torch.jit.script(Words()).save(tmp_path / "gpt.pt")
    error = accel("config", tmp_path / "gpt.pt", "--data", train_runs.TEXT, "-o", tmp_path / "c.yaml", code=2).stderr
    assert "format: text has 256 different tokens, but the model knows 32000" in error
    assert not (tmp_path / "c.yaml").exists()
    error = accel("launch", train_runs.config(tmp_path, 1, max_steps=1, **{"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"}),
                  code=2).stderr
    assert "the model knows 32000" in error and "format: tokens" in error


def test_records_are_not_text(accel, tmp_path):
    scripted(tmp_path / "model.pt")
    (tmp_path / "chat.csv").write_text("user,text\n" * 100)
    error = accel("config", tmp_path / "model.pt", "--data", tmp_path / "chat.csv", "-o", tmp_path / "c.yaml", code=2).stderr
    assert "a .csv file has records" in error
    # Lines of JSON may be lists of tokens, which the file says.
    (tmp_path / "chat.jsonl").write_text('{"messages": []}\n' * 100)
    accel("config", tmp_path / "model.pt", "--data", tmp_path / "chat.jsonl", "-o", tmp_path / "c.yaml")
    error = accel("check", tmp_path / "c.yaml", code=2).stderr
    assert "chat.jsonl': line 1: it is an object without 'input_ids'" in error


def save_table(path, **tensors):
    safetensors.torch.save_file(tensors, path)


PICTURES = torch.zeros(64, 8, 8)
CLASSES = torch.zeros(64, dtype=torch.int64)


@pytest.mark.parametrize("fields, inputs, targets, is_guess", [
    ({"x": PICTURES, "labels": CLASSES}, ["x"], "labels", False),
    ({"image": PICTURES, "digit": CLASSES}, ["image"], "digit", True),
    ({"image": PICTURES, "y": CLASSES, "weight": torch.zeros(64, dtype=torch.int64)}, ["x"], "y", False),
    ({"x": PICTURES, "other": PICTURES.clone(), "target": CLASSES}, ["x"], "target", False),
    ({"x": PICTURES, "digit": CLASSES, "attention_mask": torch.zeros(64, 4, dtype=torch.int64)}, ["x"], "digit", False),
])
def test_inputs_and_targets_are_fields_of_the_data(accel, tmp_path, fields, inputs, targets, is_guess):
    torch.export.save(torch.export.export(Pictures(), (torch.zeros(4, 8, 8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)),
                      tmp_path / "model.pt2")
    save_table(tmp_path / "train.safetensors", **fields)
    run = accel("config", "model.pt2", "--data", "train.safetensors", "--cpu", "--num-processes", 2, "-o", "c.yaml")
    text = (tmp_path / "c.yaml").read_text()
    model = yaml.safe_load(text)["training"]["model"]
    assert (model["inputs"], model["targets"]) == (inputs, targets)
    assert ("This is a guess: 'x' gets the field" in text) == is_guess
    assert ("This is a guess: the field 'digit' holds the labels." in text) == (targets == "digit")
    assert "It needs your data" not in text
    if set(inputs) <= set(fields):
        assert run.stderr == ""
        accel("launch", "c.yaml", "--set", "training.max_steps=1", "--main-process-port", 0)
    else:
        assert "forward takes 'x', and the data have no such field: they have image, weight, y" in run.stderr
        assert "# The data have no field 'x': they have image, weight, y." in text


@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids", "input_ids"])
def test_what_is_said_of_tokens_is_never_a_target(accel, tmp_path, name):
    train_runs.export(tmp_path / "model.pt")
    rows = torch.ones(64, 8, dtype=torch.int64)
    save_table(tmp_path / "train.safetensors", **{"input_ids": rows, name: rows.clone()})
    run = accel("config", "model.pt", "--data", "train.safetensors", "--cpu", "-o", "c.yaml")
    assert "the loss compares with 'labels', and the data have no such field" in run.stderr
    targets = f"training.model.targets={name}"
    assert f"targets is '{name}', which " in accel("check", "c.yaml", "--set", targets, code=2).stderr
    accel("check", "c.yaml", "--set", targets, "--set", "training.data.check_labels=false")


def test_data_that_cannot_be_read_are_said(accel, tmp_path):
    scripted(tmp_path / "model.pt")
    (tmp_path / "train.safetensors").write_bytes(b"no table")
    run = accel("config", "model.pt", "--data", "train.safetensors")
    assert "the fields of the data are not known: data file 'train.safetensors'" in run.stderr
    assert "It needs your data" not in run.stdout
    assert "It needs your data" in accel("config", "model.pt").stdout


def test_weights_are_named(accel, tmp_path):
    structure_alone(tmp_path / "model.pt")
    text = accel("config", "model.pt", "--weights", "the weights", "--data", train_runs.TEXT, "--cpu").stdout
    assert yaml.safe_load(text)["training"]["model"]["weights"] == "the weights" and "# weights:" not in text
    document = json.loads(accel("--json", "config", "model.pt", "--weights", "w").stdout)
    assert document["weights"] == "w" and document["targets"] == "labels"
    assert json.loads(accel("--json", "config", "model.pt").stdout)["weights"] is None
