"""Programs of torch.export train as eager models, with their own weights or those of another file."""

import json
import shutil

import pt2_models
import pytest
import torch
import train_runs
from pt2_models import FREE, IDS, first, made, structure_alone
from safetensors.torch import load_file, save_file


def config(directory, name, steps, length, **options):
    """The configuration of a run with the model file `name`, in a new output directory."""
    shutil.rmtree(directory / "out", ignore_errors=True)
    return train_runs.config(directory, **{
        "model.path": str(directory / name), "data.train.sequence_length": length, "max_steps": steps,
        "optimizer.weight_decay": 0.01, "optimizer.no_decay": [], "lr_scheduler": {"type": "constant"},
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", **options})


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"fsdp_config.fsdp_activation_checkpointing": True},
                                     {"model.broadcast_from_rank0": True}])
def test_it_trains_as_the_eager_model(accel, tmp_path, options):
    model, _ = made("llama", tmp_path / "model.pt2")
    steps, length = 6, 24
    accel("launch", config(tmp_path, "model.pt2", steps, length, **options))
    found = train_runs.metrics(tmp_path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    text = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    losses = []
    for step in range(steps):
        windows = torch.stack([text[i * length:(i + 1) * length + 1] for i in range(step * 8, step * 8 + 8)])
        loss = torch.nn.functional.cross_entropy(first(model(windows[:, :-1])).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert found == pytest.approx(losses, rel=1e-5)
    accel("import", "model.pt2", "model.pt")
    accel("launch", config(tmp_path, "model.pt", steps, length, **options))
    assert train_runs.metrics(tmp_path) == found


@pytest.mark.long
def test_a_structure_trains_with_weights_from_elsewhere(accel, tmp_path):
    model, _ = made("tied", tmp_path / "model.pt2")
    model.save_pretrained(tmp_path / "weights")
    structure_alone(tmp_path / "model.pt2", tmp_path / "structure.pt2",
                    {"ties": [["lm_head.weight", "model.embed_tokens.weight"]]})
    steps, length = 3, 24
    accel("launch", config(tmp_path, "model.pt2", steps, length))
    expected = train_runs.metrics(tmp_path)
    said = accel("launch", config(tmp_path, "structure.pt2", steps, length), code=None).stderr
    assert "has no values for 'model.embed_tokens.weight'" in said and "training.model.weights" in said
    run = config(tmp_path, "structure.pt2", steps, length, **{"model.weights": str(tmp_path / "weights")})
    plan = json.loads(accel("plan", "--json", run).stdout)
    assert plan["units"][0]["parameters"]
    accel("launch", run)
    assert train_runs.metrics(tmp_path) == expected
    accel("import", "structure.pt2", "structure.pt")
    assert (tmp_path / "structure.pt").stat().st_size < (tmp_path / "model.pt2").stat().st_size
    accel("launch", config(tmp_path, "structure.pt", steps, length, **{"model.weights": str(tmp_path / "weights")}))
    assert train_runs.metrics(tmp_path) == expected


@pytest.mark.long
def test_ties_of_a_structure_must_be_told(accel, tmp_path):
    made("tied", tmp_path / "whole.pt2")
    structure_alone(tmp_path / "whole.pt2", tmp_path / "model.pt2", {})
    assert "does not say which parameters are tied" in accel("import", "model.pt2", "model.pt", code=1).stderr


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8)
        self.head = torch.nn.Linear(8, 256)

    def forward(self, ids):
        hidden = self.tokens(ids)
        return {"hidden": hidden, "logits": self.head(hidden)}


def test_training_finds_an_output_by_its_name(accel, tmp_path):
    pt2_models.export(Tagger().train(), tmp_path / "model.pt2", IDS, dynamic=FREE)
    losses = []
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"}
    for output in ("1", "logits"):
        accel("launch", config(tmp_path, "model.pt2", 3, 24, **options, **{"model.output": output}))
        losses.append(train_runs.metrics(tmp_path))
    assert losses[0] == losses[1]
    said = accel("launch", config(tmp_path, "model.pt2", 3, 24, **options, **{"model.output": "logit"}), code=None).stderr
    assert "training.model.output is logit, but forward returns a dict of 'hidden', 'logits'" in said


class Layer(torch.nn.Module):
    """Adds a small difference of large numbers, which a constant of 16 bits would lose."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x).float()
        return x + (y * torch.tensor([1003.0]) - y * 1000).to(x.dtype)


class Own(torch.nn.Module):
    def __init__(self, *layers, frozen=False):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8)
        self.layers = torch.nn.ModuleList(layers)
        self.head = torch.nn.Linear(8, 256)
        if frozen:
            self.tokens.weight.requires_grad_(False)
            self.register_buffer("table", self.tokens.weight.data)
        self.reads_aside = any(isinstance(layer, Aside) for layer in layers)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        if hasattr(self, "table"):
            x = x + self.table[0]
        if self.reads_aside:
            x = x * self.layers[0].aside.to(x.dtype)
        return self.head(x)


class Aside(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        self.aside = y.float().mean()
        return x + y


def text(rows, length):
    tokens = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    return torch.stack([tokens[i * length:(i + 1) * length + 1] for i in range(rows)])


def loss_of(model, windows):
    return torch.nn.functional.cross_entropy(model(windows[:, :-1]).float().flatten(0, 1), windows[:, 1:].flatten())


def test_constants_keep_their_dtype(accel, tmp_path):
    torch.manual_seed(0)
    model = Own(Layer(), Layer()).bfloat16().train()
    pt2_models.export(model, tmp_path / "model.pt2", IDS, dynamic=FREE)
    accel("launch", config(tmp_path, "model.pt2", 1, 24, **{
        "mixed_precision": "bf16", "fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer"}))
    assert train_runs.metrics(tmp_path) == pytest.approx([loss_of(model, text(8, 24)).item()], rel=2e-3)


def test_what_a_unit_leaves_aside_is_announced(accel, tmp_path):
    pt2_models.export(Own(Aside()).bfloat16().train(), tmp_path / "model.pt2", IDS, dynamic=FREE)
    said = accel("launch", config(tmp_path, "model.pt2", 1, 24, **{
        "mixed_precision": "bf16", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Aside"})).stderr
    assert "layers.0: give several values, all of which are cast to bfloat16" in said


def test_a_frozen_parameter_may_be_a_buffer_too(accel, tmp_path):
    torch.manual_seed(0)
    model = Own(torch.nn.Linear(8, 8), frozen=True).train()
    pt2_models.export(model, tmp_path / "model.pt2", IDS, dynamic=FREE)
    accel("launch", config(tmp_path, "model.pt2", 1, 24, **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"}))
    assert train_runs.metrics(tmp_path) == pytest.approx([loss_of(model, text(8, 24)).item()], rel=1e-6)


class Labelled(torch.nn.Module):
    """Changes its labels in place before it reads its inputs."""

    def __init__(self):
        super().__init__()
        self.model = Own(torch.nn.Linear(8, 8))

    def forward(self, input_ids, labels):
        labels.masked_fill_(labels == ord("e"), ord(" "))
        logits = self.model(input_ids)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def test_labels_are_not_the_inputs_and_come_in_order(accel, tmp_path):
    torch.manual_seed(0)
    model = Labelled().train()
    program = torch.export.export(model, (IDS, IDS.clone()), dynamic_shapes=FREE * 2, strict=False)
    torch.export.save(program, tmp_path / "model.pt2", extra_files={"accel.json": json.dumps({"shifts_labels": True})})
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear", "model.loss": "model"}
    accel("launch", config(tmp_path, "model.pt2", 1, 24, **options, **{"model.inputs": ["input_ids", "labels"]}))
    windows = text(8, 24)[:, :-1]
    assert train_runs.metrics(tmp_path) == pytest.approx([model(windows.clone(), windows.clone()).item()], rel=1e-6)
    said = accel("launch", config(tmp_path, "model.pt2", 1, 24, **options, **{"model.inputs": ["labels", "input_ids"]}), code=None)
    assert "training.model.inputs are [labels, input_ids], but forward takes [input_ids, labels]" in said.stderr


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
def test_float16_is_that_of_the_torchscript_file(accel, tmp_path, version):
    """test_float16.py and test_autocast.py compare the run of the TorchScript file with Python."""
    train_runs.export_pt2(tmp_path / "model.pt2", train_runs.export(tmp_path / "model.pt"))
    keys, found = ("loss", "grad_norm", "scale"), []
    for name in ("model.pt", "model.pt2"):
        accel("launch", config(tmp_path, name, 8, 32, **{
            "fsdp_config.fsdp_version": version, "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Block"}), "--mixed-precision", "fp16")
        found.append({key: train_runs.metrics(tmp_path, key) for key in keys})
    assert found[0] == found[1]
    assert all(len(values) == 8 for values in found[1].values())


def test_weights_in_float32_of_a_program_of_16_bits_are_trained_without_rounding(accel, tmp_path):
    model = train_runs.export(tmp_path / "gpt.pt")
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
    save_file(weights, tmp_path / "weights.safetensors")
    train_runs.export_pt2(tmp_path / "model.pt2", model.bfloat16())
    rounded = [name for name, tensor in weights.items() if not torch.equal(tensor.bfloat16().float(), tensor)]
    assert len(rounded) > 10
    accel("launch", config(tmp_path, "model.pt2", 1, 32, **{
        "model.weights": str(tmp_path / "weights.safetensors"), "optimizer.lr": 0.0, "checkpoint.every": 1,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Block"}), "--mixed-precision", "bf16")
    accel("merge-weights", "out/checkpoints", "merged")
    saved = load_file(tmp_path / "merged/model.safetensors")
    assert saved.keys() >= weights.keys() - {"tokens.weight"}
    for name, tensor in saved.items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, weights.get(name, weights["tokens.weight"])), name
