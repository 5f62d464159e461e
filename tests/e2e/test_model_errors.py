"""Errors of a model: at run time they name the module, the operator, its inputs and the author's line. What would be wrong
without a word is refused when the model is opened."""

import json
import zipfile

import pytest
import torch
from torch.export import Dim

import train_runs

LENGTH = 32
HERE = __file__


def line_of(text):
    """Returns "FILE:LINE" of the only line of this file that ends with `text`, as messages have it."""
    lines = [n for n, line in enumerate(open(HERE), 1) if line.rstrip().endswith(text)]
    assert len(lines) == 1, text
    return f"{HERE}:{lines[0]}"


class Block(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.wide = torch.nn.Linear(8, 16)
        self.narrow = torch.nn.Linear(width, 8)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x)))  # the product


class Net(torch.nn.Module):
    def __init__(self, positions=LENGTH, width=16, max_norm=None):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8, max_norm=max_norm)
        self.places = torch.nn.Embedding(positions, 8)
        self.blocks = torch.nn.ModuleList([Block(), Block(width)])
        self.head = torch.nn.Linear(8, 256)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))  # the lookup
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Gathers(torch.nn.Module):
    """A table of its own with 32 rows, of which a sequence takes one a position."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(LENGTH, 8))

    def forward(self, x):
        places = torch.arange(x.shape[1]).unsqueeze(-1).expand(-1, 8)
        return x + torch.gather(self.table, 0, places)  # the gather


class GathersTwice(Net):
    def __init__(self):
        super().__init__(positions=64)
        self.blocks = torch.nn.ModuleList([Gathers(), Gathers()])


class ScalesItsBias(Net):
    def forward(self, ids):
        self.head.bias.detach().mul_(0.5)
        return super().forward(ids)


class DropsAlways(torch.nn.Module):
    """A scripted model whose author drops in evaluation, too. Its classes have no code that reads a mode."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8)
        self.head = torch.nn.Linear(8, 256)

    def forward(self, ids):
        return self.head(torch.dropout(self.tokens(ids), 0.9, True))


class Raises(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, ids):
        if ids.shape[1] > 16:
            raise ValueError("too long for me")  # the raise
        return self.net(ids)


class ShiftedLoss(torch.nn.Module):
    """Computes its loss as models of transformers do: it shifts the labels itself."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, ids, labels):
        logits = self.net(ids)[:, :-1]
        return torch.nn.functional.cross_entropy(logits.reshape(-1, 256), labels[:, 1:].reshape(-1))


def save(model, path, accel, how="scripted", notes=None):
    extra = {"accel.json": json.dumps(notes)} if notes else {}
    example = torch.zeros(2, 16, dtype=torch.long)
    if how == "scripted":
        torch.jit.script(model).save(str(path), _extra_files=extra)
    elif how == "traced":
        torch.jit.trace(model, example, check_trace=False).save(str(path), _extra_files=extra)
    else:
        program = torch.export.export(model.train(), (example,), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
        torch.export.save(program, path.with_suffix(".pt2"))
        accel("import", path.with_suffix(".pt2"), path)
    return model


def said_by(accel, directory, code=6, length=LENGTH, ranks=2, **options):
    data = {"format": "text", "path": str(train_runs.TEXT), "sequence_length": length}
    config = train_runs.config(directory, ranks, **{"max_steps": 1, "data.train": data, **options})
    said = accel("launch", config, code=code).stderr
    assert "Traceback" not in said and "TorchScript interpreter" not in said
    return said


@pytest.mark.long(but="scripted-")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("how", ["scripted", "traced", "imported"])
def test_positions_that_the_model_does_not_have_are_named(accel, tmp_path, how, checkpointing):
    save(Net(), tmp_path / "gpt.pt", accel, how)
    said = said_by(accel, tmp_path, length=64, **{"fsdp_config.fsdp_activation_checkpointing": checkpointing})
    assert "module 'places' (Embedding) looks up row 63 of a table of 32 rows" in said
    assert f"line: {line_of('# the lookup')}" in said
    assert "those of the data have 64 tokens, and the model has 32 positions" in said


@pytest.mark.parametrize("distributed", ["FSDP", "MULTI_CPU"])
def test_an_operator_that_fails_is_named_with_its_inputs_and_line(accel, tmp_path, distributed):
    save(Net(width=4), tmp_path / "gpt.pt", accel)
    said = said_by(accel, tmp_path, distributed_type=distributed)
    assert ("module 'blocks.1.narrow' (Linear), aten::linear: mat1 and mat2 shapes cannot be multiplied (128x16 and 4x8)"
            in said)
    assert "inputs: input float32 [4, 32, 16], weight float32 [8, 4]" in said
    assert f"line: {line_of('# the product')}" in said


@pytest.mark.long(but="scripted-")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("how", ["scripted", "traced", "imported"])
def test_an_operator_of_the_author_is_named_with_its_line(accel, tmp_path, how, checkpointing):
    save(GathersTwice(), tmp_path / "gpt.pt", accel, how)
    said = said_by(accel, tmp_path, length=64, **{
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Gathers", "fsdp_config.fsdp_activation_checkpointing": checkpointing})
    assert "module 'blocks.0' (Gathers), aten::gather: index 32 is out of bounds for dimension 0 with size 32" in said
    assert "inputs: self float32 [32, 8], index int64 [64, 8]" in said
    assert f"line: {line_of('# the gather')}" in said


def test_what_the_model_raises_is_said_with_its_line(accel, tmp_path):
    save(Raises(), tmp_path / "gpt.pt", accel)
    said = said_by(accel, tmp_path)
    assert "module '(root)' (Raises) raises ValueError: too long for me" in said and line_of("# the raise") in said


def test_a_size_that_an_import_does_not_have_is_said_alone(accel, tmp_path):
    program = torch.export.export(Net().train(), (torch.zeros(2, 16, dtype=torch.long),),
                                  dynamic_shapes=({0: Dim.AUTO, 1: Dim("length", max=24)},))
    torch.export.save(program, tmp_path / "gpt.pt2")
    accel("import", tmp_path / "gpt.pt2", tmp_path / "gpt.pt")
    said = said_by(accel, tmp_path)
    assert "error: input 'ids' has 32 in dimension 1, and the model was exported for at most 24\n" in said


@pytest.mark.parametrize("how", ["scripted", "traced"])
def test_an_embedding_with_max_norm_is_refused(accel, tmp_path, how):
    save(Net(max_norm=1.0), tmp_path / "gpt.pt", accel, how)
    said = said_by(accel, tmp_path, distributed_type="MULTI_CPU")
    assert "module 'tokens'" in said and "max_norm" in said and "hint: export the model with max_norm=None" in said


def test_a_traced_change_of_a_parameter_is_refused_if_the_graph_shows_it(accel, tmp_path):
    save(ScalesItsBias(), tmp_path / "gpt.pt", accel, "traced")
    assert "parameter 'head.bias' is changed in place while the model runs" in said_by(accel, tmp_path)


def test_a_scripted_models_own_dropout_stays(accel, tmp_path):
    """Held-out losses differ from one seed to another if and only if evaluation drops, as eager evaluation does."""
    save(DropsAlways(), tmp_path / "gpt.pt", accel)
    data = {"format": "text", "path": str(train_runs.TEXT), "sequence_length": LENGTH}
    losses = []
    for seed in (1, 2):
        said_by(accel, tmp_path, code=0, ranks=1, seed=seed, eval_every=1, **{
            "fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "data.eval": data, "optimizer.lr": 1e-12})
        losses.append(train_runs.metrics(tmp_path, "eval_loss")[0])
        (tmp_path / "out/metrics.jsonl").unlink()
    assert abs(losses[0] - losses[1]) > 1e-6


@pytest.mark.long(but="")
@pytest.mark.parametrize("notes", [{}, {"shifts_labels": True}], ids=["", "noted"])
def test_labels_are_not_shifted_twice(accel, tmp_path, notes):
    torch.manual_seed(0)
    model = save(ShiftedLoss(), tmp_path / "gpt.pt", accel, notes=notes)
    tokens = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    rows = torch.stack([tokens[k * LENGTH:k * LENGTH + LENGTH + 1] for k in range(4)])
    ids, next_tokens = rows[:, :-1], rows[:, 1:]
    data = {"format": "text", "path": str(train_runs.TEXT), "sequence_length": LENGTH}
    said_by(accel, tmp_path, code=0, ranks=1, eval_every=1, **{
        "model.inputs": ["input_ids", "labels"], "model.loss": "model", "data.eval": data, "optimizer.lr": 1e-12})
    expected = model(ids, ids if notes else next_tokens).item()
    assert train_runs.metrics(tmp_path)[0] == pytest.approx(expected, abs=1e-5)
    windows = torch.stack([tokens[k * LENGTH:k * LENGTH + LENGTH + 1] for k in range((len(tokens) - 1) // LENGTH)])
    with torch.no_grad():
        expected = model(windows[:, :-1], windows[:, :-1] if notes else windows[:, 1:]).item()
    assert train_runs.metrics(tmp_path, "eval_loss")[0] == pytest.approx(expected, abs=1e-5)


def test_layer_classes_of_the_notes_that_are_not_there(accel, tmp_path):
    save(Net(), tmp_path / "gpt.pt", accel, notes={"layer_classes": ["VisionLayer", "Block"]})
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": None}
    said = said_by(accel, tmp_path, code=0, **options)
    expected = "warning: the notes of the model file (accel.json, 'layer_classes') name VisionLayer, of which the model has no module"
    assert said.count(expected) == 1
    assert expected in accel("plan", tmp_path / "config.yaml").stderr
    save(Net(), tmp_path / "gpt.pt", accel, notes={"layer_classes": ["VisionLayer", "AudioLayer"]})
    expected = "the notes of the model file (accel.json, 'layer_classes') name VisionLayer, AudioLayer, and the model has no module"
    assert expected in said_by(accel, tmp_path, code=2, output_dir=str(tmp_path / "other"), **options)
    assert expected in accel("plan", tmp_path / "config.yaml", code=2).stderr


def test_a_run_in_another_dtype_than_the_graphs_is_refused(accel, tmp_path):
    save(Net(), tmp_path / "gpt.pt", accel, notes={"dtype": "bfloat16"})
    said = said_by(accel, tmp_path, code=2)
    expected = ("the model computes in bfloat16, as the notes of its file say (accel.json, 'dtype'), and the run computes "
                "with parameters in float32")
    assert expected in said and "hint: set mixed_precision: bf16" in said
    assert expected in accel("plan", tmp_path / "config.yaml", code=2).stderr
    config = json.loads((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(json.dumps({**config, "mixed_precision": "bf16"}))
    accel("plan", tmp_path / "config.yaml")
    accel("launch", tmp_path / "config.yaml")


def test_a_program_with_an_operator_of_another_torch_is_named(accel, tmp_path):
    """Only libtorch can tell which operators it has, so that `accel import` and `accel plan` take the file."""
    torch.manual_seed(0)
    program = torch.export.export(Net(), (torch.zeros(2, LENGTH, dtype=torch.long),), dynamic_shapes=({0: Dim.AUTO},))
    torch.export.save(program, tmp_path / "good.pt2")
    known, unknown = b"torch.ops.aten.relu.default", b"torch.ops.aten.relu_of_later.default"
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "gpt.pt2", "w") as changed:
        for item in good.infolist():
            data = good.read(item)
            first, *_ = data.partition(known) if item.filename.endswith("models/model.json") else (data,)
            changed.writestr(item, data if first == data else first + unknown + data[len(first) + len(known):])
    accel("import", "gpt.pt2", "gpt.pt")
    for name in ("gpt.pt2", "gpt.pt"):
        config = train_runs.config(tmp_path, 1, max_steps=1, **{
            "model.path": str(tmp_path / name), "output_dir": str(tmp_path / f"out of {name}"),
            "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"}})
        accel("plan", config)
        said = accel("launch", config, code=6).stderr
        assert f"error: '{tmp_path / name}': libtorch {torch.__version__.split('+')[0]} cannot compile the model's TorchScript: " in said
        assert "Unknown builtin op: aten::relu_of_later." in said and "torch.relu_of_later(" in said
        assert line_of("# the product") in said and "exported with a newer torch" in said
