"""accel-export --compile runs the code that it has compiled beside the layer. Each fault is one that a compiler, or the description of
the code, could have."""

import copy
import pickle

import pytest
import torch
from accel_export import Refused, check_compiled, compiled, export
from accel_export.inputs import Input, sizes_of
from accel_export.subject import Subject
from torch import nn

pytestmark = pytest.mark.long

WIDTH = 8


class Layer(nn.Module):
    """Two outputs of one size, two parameters of one size, and a gate that is zero as a new adapter is."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x, angles):
        y = self.dropout(torch.tanh(self.up(x * angles)))
        return x + self.down(y) * (1 + self.gate), y


class Model(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed, self.layers, self.head = nn.Linear(WIDTH, WIDTH), nn.ModuleList([Layer(dropout)]), nn.Linear(WIDTH, 2)

    def forward(self, x):
        angles = torch.cos(x.sum(-1, keepdim=True))
        x = self.embed(x)
        for layer in self.layers:
            x, y = layer(x, angles)
            x = x + y.square()
        return self.head(x)


X = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(0))
SETS = [{"batch": 2, "length": 7}, {"batch": 1, "length": 4}]


class Compiled:
    """A model's record and its layer, with a judge. The code comes from a file."""

    def __init__(self, dropout):
        torch.manual_seed(0)
        model, free = Model(dropout).train(), torch.export.Dim.AUTO
        self.record = torch.export.export(model, (X,), dynamic_shapes=({0: free, 1: free},), strict=False)
        self.layer = compiled.cut(compiled.record_of(self.record, torch.float32), "layers.0")
        inputs = [Input("x", X, ("batch", "length", None))]
        self.subject = Subject(model, inputs, sizes_of(inputs), ["output"])
        self.judge = check_compiled.Judge(self.record, self.subject, SETS)

    def write(self, path):
        with compiled.portable():
            path.write_bytes(pickle.dumps(compiled.compile_layer(self.layer)))

    def read(self, path):
        self.description, self.code = pickle.loads(path.read_bytes())
        return self


@pytest.fixture(scope="session")
def codes(made_once):
    """Returns a directory with the compiled layer, without and with dropout."""

    def make(folder):
        compiler = folder / "compiler"
        compiler.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\nexec g++ "$@"\n')
        compiler.chmod(0o700)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CXX", str(compiler))
            for name, dropout in (("plain", 0.0), ("dropout", 0.3)):
                Compiled(dropout).write(folder / name)

    return made_once("compiled_check", make)


@pytest.fixture
def plain(codes):
    return Compiled(0.0).read(codes / "plain")


@pytest.fixture
def with_dropout(codes):
    return Compiled(0.3).read(codes / "dropout")


def test_no_header_is_compiled(codes):
    """torch would leave it in the temporary folder, of hundreds of MB, for each export."""
    calls = (codes / "calls").read_text()
    assert ".cpp" in calls and "c++-header" not in calls


def test_right_code_is_right(plain):
    judge = plain.judge
    judge(plain.layer, plain.description, plain.code)
    assert judge.largest < 1e-5 and judge.has_values and not judge.skipped


def swapped(values, one=0, other=1):
    values = list(values)
    values[one], values[other] = values[other], values[one]
    return values


def place_of(description, own):
    return next(place for place, take in enumerate(description["takes"]) if take.get("own") == own)


def swap_gradients(description):
    """Those of two parameters of one size."""
    places = [description["gradients"].index(place_of(description, name)) for name in ("up.weight", "down.weight")]
    description["gradients"] = swapped(description["gradients"], *places)


def swap_parameters(description):
    one, other = (description["takes"][place_of(description, name)] for name in ("up.weight", "down.weight"))
    one["own"], other["own"] = other["own"], one["own"]


def swap_output_gradients(description):
    one, other = description["output_gradients"]
    one["output"], other["output"] = other["output"], one["output"]


def forget_a_gradient(description):
    """As if the gate were not trained."""
    description["gradients"] = [place if place != place_of(description, "gate") else len(description["takes"])
                                for place in description["gradients"]]


@pytest.mark.parametrize("fault, said", [
    (swap_gradients, "'(up|down).weight'"), (swap_parameters, "'output [01]'|'(up|down).weight'"),
    (swap_output_gradients, "'"), (forget_a_gradient, "'gate'")])
def test_a_wrong_description_is_refused(plain, fault, said):
    description = copy.deepcopy(plain.description)
    fault(description)
    with pytest.raises(Refused, match=f"the compiled code of 'layers.0' is another layer at .*: the largest difference is that of ({said})"):
        plain.judge(plain.layer, description, plain.code)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_code_of_another_layer_is_refused(plain, with_dropout, which):
    """Its forward gives more results, and its backward takes them."""
    with pytest.raises(Refused, match="the compiled code of 'layers.0' (is another layer|fails: expected inputs)"):
        plain.judge(plain.layer, plain.description, {**plain.code, which: with_dropout.code[which]})


def test_a_layer_with_dropout_is_compared_without_it(plain, with_dropout, monkeypatch):
    """It is compiled a second time for that. Without dropout it is the other layer, whose code stands for the second one here."""
    judge, layers = with_dropout.judge, []

    def compile_layer(layer):
        layers.append(layer)
        return description, plain.code

    monkeypatch.setattr(compiled, "compile_layer", compile_layer)
    description = copy.deepcopy(plain.description)
    judge(with_dropout.layer, with_dropout.description, with_dropout.code)
    assert judge.largest < 1e-5 and not judge.skipped
    assert [layer.fingerprint() for layer in layers] == [check_compiled.without_dropout(with_dropout.layer).fingerprint()]
    swap_gradients(description)
    with pytest.raises(Refused, match="the compiled code of 'layers.0' is another layer"):
        judge(with_dropout.layer, with_dropout.description, with_dropout.code)


def test_code_must_repeat_its_random_numbers(with_dropout, monkeypatch):
    monkeypatch.setattr(check_compiled.Code, "results", lambda self, call: ([torch.rand(())], {}))
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    with pytest.raises(Refused, match="the compiled code of 'layers.0' draws other random numbers"):
        with_dropout.judge(with_dropout.layer, with_dropout.description, with_dropout.code)


def test_a_model_without_values_is_compared_with_made_ones(plain):
    model = copy.deepcopy(plain.subject.model).to("meta")
    judge = check_compiled.Judge(plain.record, Subject(model, plain.subject.inputs, plain.subject.sizes, ["output"]), SETS)
    judge(plain.layer, plain.description, plain.code)
    assert not judge.has_values and judge.largest < 1e-5
    description = copy.deepcopy(plain.description)
    swap_gradients(description)
    with pytest.raises(Refused, match="is another layer at the recorded sizes"):
        judge(plain.layer, description, plain.code)


def test_a_file_with_wrong_code_is_not_written(plain, accel_path, tmp_path, monkeypatch):
    def export_it():
        said = []
        export(Model(), X, tmp_path / "model.pt2", dims={"x": ("batch", "length", None)}, layers=["Layer"], compile=True,
               accel=accel_path, say=said.append)
        return "\n".join(said)

    monkeypatch.setattr(compiled, "compile_layer", lambda layer: (plain.description, plain.code))
    swap_output_gradients(plain.description)
    with pytest.raises(Refused, match="the compiled code of 'layers.0' is another layer at batch 4"):
        export_it()
    assert not list(tmp_path.iterdir())
    swap_output_gradients(plain.description)
    assert "checked: the compiled code gives the outputs and gradients of the layers: the largest difference is" in export_it()
