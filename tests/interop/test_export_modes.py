"""accel-export compares a file in evaluation, too, and says which module of it is another one."""

import json
import random
import zipfile

import accel_export
import pytest
import torch
from accel_export import modes

EXAMPLE = torch.randint(16, (2, 12), generator=torch.Generator().manual_seed(0))
FORMATS = ["own.pt2", "own.pt"]


class Layer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.inner = inner

    def forward(self, x):
        return x + self.inner(self.linear(x))


class Own(torch.nn.Module):
    """Its layers are of one class, each with a module of `inner` in it."""

    def __init__(self, *inner):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8)
        self.layers = torch.nn.ModuleList([Layer(module) for module in inner])

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Chooses(torch.nn.Module):
    def forward(self, x):
        if self.training:
            x = x * 4
        return x


class DropsAlways(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, True)


class Norms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.Sequential(
            torch.nn.BatchNorm1d(8), torch.nn.InstanceNorm1d(8, track_running_stats=True), torch.nn.InstanceNorm1d(8),
            torch.nn.BatchNorm1d(8, track_running_stats=False))

    def forward(self, x):
        return self.norms(x.transpose(1, 2)).transpose(1, 2)


class Attends(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0, is_causal=True)


class TriplesGradients(torch.nn.Module):
    def forward(self, x):
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 3)
        return x


class Draws(torch.nn.Module):
    def forward(self, x):
        return x * random.random()


@pytest.fixture
def export(accel_path, tmp_path, capsys):
    """export(OUT, MODULES...) exports a model with these modules in its layers, and returns what it says."""

    def run(out, *inner):
        torch.manual_seed(0)
        accel_export.export(Own(*inner), EXAMPLE, tmp_path / out, accel=accel_path)
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(export, tmp_path):
    """refused(...) does what export does and returns why it is refused. No file is written."""

    def run(*arguments):
        with pytest.raises(accel_export.Refused) as error:
            export(*arguments)
        assert not list(tmp_path.iterdir())
        return str(error.value)

    return run


@pytest.mark.parametrize("out", FORMATS)
@pytest.mark.parametrize("module, line", [(Chooses, "if self.training:"), (DropsAlways, "def forward(self, x):")])
def test_a_mode_that_a_record_freezes_is_refused(refused, out, module, line):
    said = refused(out, torch.nn.Dropout(0.2), module(), module())
    assert "the file is another model at batch 3, length 13, in evaluation" in said
    assert f"the first module whose mode has another effect is 'layers.1.inner' ({module.__name__})" in said
    assert "test_export_modes.py:" in said and line in said
    assert "choose nothing else by self.training, or turn it off" in said
    assert ("a module that torch.jit.script made still reads self.training" in said) == (out == "own.pt")


@pytest.mark.parametrize("out", FORMATS)
def test_operators_that_follow_the_mode_are_right(export, out):
    assert "in training and in evaluation" in export(out, torch.nn.Dropout(0.2), Norms(), Attends(), torch.nn.Dropout1d(0.2))


def test_every_operator_with_a_mode_follows_it_in_a_traced_file(tmp_path):
    class Recurs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    shared = torch.nn.AlphaDropout(0.2)
    model = Own(Recurs(), torch.nn.TransformerEncoderLayer(8, 2, 8, 0.2, batch_first=True), torch.nn.RReLU(), shared, shared)
    torch.jit.trace(model, EXAMPLE, check_trace=False).save(tmp_path / "own.pt")
    file = torch.jit.load(tmp_path / "own.pt")
    modes.follow(file)
    with torch.jit.optimized_execution(False):
        for training in (True, False, True):
            outputs = []
            for side in (model.train(training), file.train(training)):
                torch.manual_seed(1)
                outputs.append(side(EXAMPLE))
            torch.testing.assert_close(*outputs)


def test_what_an_author_scripted_is_meant(export):
    """The scripted module reads its flag, and its dropout that is always on stays so."""
    class Scripted(torch.nn.Module):
        def forward(self, x):
            if self.training:
                x = x * 4
            return torch.dropout(x, 0.5, True)

    assert "in training and in evaluation" in export("own.pt", torch.nn.Dropout(0.2), torch.jit.script(Scripted()))


def test_a_traced_file_is_written_as_it_was_recorded(export, tmp_path):
    """The comparison changes a copy. accel finds the constants that it looks for."""
    export("own.pt", torch.nn.Dropout(0.2), torch.nn.Dropout(0.2))
    with zipfile.ZipFile(tmp_path / "own.pt") as archive:
        code = "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".py"))
        assert json.loads(archive.read("own/extra/accel.json"))["layer_classes"] == ["Layer"]
    assert "torch.dropout(argument_1, 0.20000000000000001, True)" in code and "self.training" not in code


@pytest.mark.parametrize("out", FORMATS)
def test_a_gradient_that_differs_is_named_with_its_module_and_line(refused, out):
    said = refused(out, torch.nn.Dropout(0.2), TriplesGradients(), torch.nn.ReLU())
    assert "in training" in said and "the last module with another gradient is 'layers.1.linear' (Linear)" in said
    assert "return x + self.inner(self.linear(x))" in said


@pytest.mark.parametrize("out", FORMATS)
def test_an_output_that_differs_is_named_with_its_module_and_line(refused, out):
    said = refused(out, torch.nn.Dropout(0.2), Draws(), torch.nn.ReLU())
    assert "in training" in said and "the first module with another output is 'layers.1.inner' (Draws)" in said
    assert "test_export_modes.py:" in said
