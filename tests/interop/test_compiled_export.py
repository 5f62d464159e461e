"""What accel-export --compile cuts out of a model, and what it refuses. tests/e2e/test_compiled_units.py runs the code."""

import copy

import pytest
import torch
import train_runs
from accel_export import Refused, cli, compiled, export
from accel_export.subject import Subject
from torch import nn

WIDTH = 8


class Layer(nn.Module):
    def __init__(self, activation="relu"):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x, angles):
        return x + getattr(torch, self.activation)(self.linear(x * angles))


class Model(nn.Module):
    """Layers in a row. The angles depend on no parameter."""

    def __init__(self, layers, calls=1):
        super().__init__()
        self.layers, self.calls = nn.ModuleList(layers), calls
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x):
        angles = torch.cos(x.sum(-1, keepdim=True))
        x = self.embed(x)
        for layer in list(self.layers) * self.calls:
            x = layer(x, angles)
        return self.head(x)


def recorded(model, dtype=torch.float32):
    free = torch.export.Dim.AUTO
    return torch.export.export(model.train(), (torch.randn(3, 5, WIDTH, dtype=dtype),), dynamic_shapes=({0: free, 1: free},), strict=False)


def layers_of(model):
    record = compiled.record_of(recorded(model), torch.float32)
    return [compiled.cut(record, f"layers.{i}") for i in range(len(model.layers))]


def test_a_layer_is_cut_with_its_inputs_and_parameters():
    first, second = layers_of(Model([Layer(), Layer()]))
    assert sorted(first.attributes.values()) == ["linear.bias", "linear.weight"]
    needs = {node.name: example.requires_grad for node, example in zip(first.inputs, first.examples)}
    assert needs == {"linear": True, "cos": False}  # The embedding's linear, and angles without a gradient.
    assert [node.name for node in second.inputs] == ["add", "cos"]
    x, angles = torch.randn(2, 3, WIDTH), torch.randn(2, 3, 1)
    layer = Layer()
    for attribute, name in first.attributes.items():
        setattr(first.module, attribute, layer.get_parameter(name))
    [found] = first.module(*(x if node.name == "linear" else angles for node in first.inputs))
    assert torch.equal(found, layer(x, angles))


def test_layers_share_their_code_only_if_they_compute_the_same():
    same = layers_of(Model([Layer(), Layer()]))
    assert same[0].fingerprint() == same[1].fingerprint()
    other = layers_of(Model([Layer(), Layer("tanh")]))
    assert other[0].fingerprint() != other[1].fingerprint()
    frozen = Model([Layer(), Layer()])
    frozen.layers[1].linear.weight.requires_grad_(False)
    first, second = layers_of(frozen)
    assert first.fingerprint() != second.fingerprint()


class Sized(nn.Module):
    """Takes a size beside its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, size):
        return self.linear(x) * size


class SizedModel(Model):
    def forward(self, x):
        size = x.shape[1]
        x = self.embed(x)
        for factor, layer in enumerate(self.layers, 1):
            x = layer(x, size * factor)
        return self.head(x)


class RotaryEmbedding(nn.Module):
    """accel runs modules with such a name without autocast."""

    def forward(self, x):
        positions = 1000 + torch.arange(x.shape[1]).float()
        return (positions[:, None] @ torch.logspace(0, -1, WIDTH)[None, :]).cos()


class Turned(Layer):
    def __init__(self):
        super().__init__()
        self.rotary = RotaryEmbedding()

    def forward(self, x, angles):
        return super().forward(x * (1 + self.rotary(x)), angles)


class Own(RotaryEmbedding):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x)


@pytest.mark.parametrize("rotary", [RotaryEmbedding, Own])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_computes_under_autocast(dtype, rotary):
    """As in Python, to the bit."""
    torch.manual_seed(0)
    model = Model([Turned()]).to(dtype)
    model.layers[0].rotary = rotary()
    layer = compiled.cut(compiled.record_of(recorded(model, dtype), dtype, torch.bfloat16), "layers.0")
    dtypes = {node.name: example.dtype for node, example in zip(layer.inputs, layer.examples) if isinstance(example, torch.Tensor)}
    assert dtypes == {"linear": torch.bfloat16, "cos": dtype}
    own, wrong = dict(model.layers[0].named_parameters()), copy.deepcopy(model.layers[0])
    model.layers[0].rotary, wrong.rotary = Own(), RotaryEmbedding()
    for attribute, name in layer.attributes.items():
        setattr(layer.module, attribute, own[name])
    inputs = {"linear": torch.randn(2, 3, WIDTH).bfloat16().requires_grad_(), "cos": torch.randn(2, 3, 1).to(dtype)}
    [found] = layer.module(*(inputs.get(node.name, 3) for node in layer.inputs))  # Others are the length.
    with torch.autocast("cpu", torch.bfloat16):
        expected, other = (module(inputs["linear"], inputs["cos"]) for module in (model.layers[0], wrong))
    assert torch.equal(found, expected) and not torch.equal(found, other)
    wanted = [inputs["linear"], *own.values()]
    assert all(map(torch.equal, *(torch.autograd.grad(result.sum(), wanted) for result in (found, expected))))
    assert not torch.is_autocast_enabled("cpu")


class Named(Layer):
    """A graph gives inputs of these names others in a copy."""

    def forward(self, input, input_1):
        return super().forward(input, input_1.cos())


class NamedModel(Model):
    def forward(self, input, input_1):
        for layer in self.layers:
            input = layer(input, input_1)
        return self.head(input)


def test_inputs_keep_their_dtypes():
    free = torch.export.Dim.AUTO
    inputs = torch.randn(3, 5, WIDTH), torch.ones(3, 5, 1, dtype=torch.long)
    exported = torch.export.export(NamedModel([Named()]).train(), inputs, dynamic_shapes=({0: free, 1: free},) * 2, strict=False)
    layer = compiled.cut(compiled.record_of(exported, torch.float32, torch.bfloat16), "layers.0")
    assert {node.name: example.dtype for node, example in zip(layer.inputs, layer.examples)} == {"input": torch.float32, "input_1": torch.int64}


class Broken(Layer):
    """Blends tensors of two dtypes, which it has only under autocast."""

    def forward(self, x, angles):
        return torch.lerp(x, super().forward(x, angles) * angles, 0.5)


def test_a_refused_layer_leaves_autocast_as_it_was():
    model = Model([Broken()])
    record, subject = recorded(model), Subject(model, [], {}, [], layers=["Broken"])
    for ambient in (False, True):
        with torch.autocast("cpu", torch.float16, enabled=ambient, cache_enabled=True):
            with pytest.raises(Refused, match="--compile fails: "):
                compiled.compile_layers(record, subject, autocast=torch.bfloat16)
            assert torch.is_autocast_enabled("cpu") == ambient and torch.is_autocast_cache_enabled()
            assert not ambient or torch.get_autocast_dtype("cpu") == torch.float16
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


class Normed(Layer):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, x, angles):
        return super().forward(self.norm(x.flatten(0, 1)).view_as(x), angles)


def test_buffers_and_batch_norms_are_those_of_the_training(monkeypatch):
    """Version 1 of FSDP casts buffers, and leaves batch norms in float32. Nothing else casts buffers."""
    buffers = {"table": torch.ones(2, dtype=torch.float64), "count": torch.ones(2, dtype=torch.long)}
    for dtype, expected in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.float64)):
        cast = compiled.cast_buffers(buffers, dtype, torch.bfloat16)
        assert (cast["table"].dtype, cast["count"].dtype) == (expected, torch.long)
    model = Model([Normed()])
    subject = Subject(model, [], {}, [], layers=["Normed"])
    monkeypatch.setattr(compiled, "code_of", lambda module, path: b"")
    compiled.compile_layers(recorded(model), subject, autocast=torch.bfloat16)
    subject.dtype = torch.bfloat16
    with pytest.raises(Refused, match="'layers.0.norm' is a batch norm, which FSDP version 1 leaves in float32"):
        compiled.compile_layers(recorded(model.bfloat16(), torch.bfloat16), subject, autocast=torch.bfloat16)


class Quiet(Layer):
    """Has an operator with a graph of its own."""

    def forward(self, x, angles):
        with torch.no_grad():
            angles = angles.cos()
        return super().forward(x, angles)


def test_layers_with_blocks_share_their_code():
    same = layers_of(Model([Quiet(), Quiet()]))
    assert same[0].fingerprint() == same[1].fingerprint()


@pytest.mark.parametrize("options, said", [
    ({"compile_autocast": torch.bfloat16}, "no layer is compiled\nhint: add compile=True"),
    ({"compile_memory": 0.5}, "no layer is compiled\nhint: add compile=True"),
    ({"compile": True, "compile_autocast": torch.float32}, "compile_autocast is torch.float32; expected"),
    ({"compile": True, "compile_autocast": torch.bfloat16, "dtype": torch.float16}, "no training has parameters of float16 under autocast to bfloat16"),
])
def test_contradictions_are_refused(tmp_path, options, said):
    with pytest.raises(Refused, match=said):
        export(Model([Layer()]), torch.randn(3, 5, WIDTH), tmp_path / "model.pt2", **options)
    assert not list(tmp_path.iterdir())


def test_layers_that_take_other_sizes_do_not_share_their_code():
    first, second = layers_of(SizedModel([Sized(), Sized()]))
    assert [len(layer.inputs) for layer in (first, second)] == [2, 2]  # The size is an input of each.
    assert first.fingerprint() != second.fingerprint()


def test_a_layer_keeps_a_share_of_its_activations(monkeypatch):
    """Code is not made here. tests/e2e/test_compiled_units.py trains with such a file."""
    kept = {}
    for memory in (1.0, 0.0):
        def code_of(module, path, memory=memory):
            kept.setdefault(memory, len(module.graph.output_node().args[0]))  # The first one is forward.
            return b""
        monkeypatch.setattr(compiled, "code_of", code_of)
        model = Model([Layer("sigmoid")])
        compiled.compile_layers(recorded(model), Subject(model, [], {}, [], layers=["Layer"]), memory=memory)
    assert kept[0.0] < kept[1.0]


class Passing(Layer):
    """Gives first a value of the size of the other, which depends on nothing that is trained."""

    def forward(self, x, angles):
        faded = angles.expand(x.shape) * 0.5
        return faded, super().forward(x, faded)


class PassingModel(Model):
    def forward(self, x):
        angles = torch.cos(x.sum(-1, keepdim=True))
        x = self.embed(x)
        for layer in self.layers:
            angles, x = layer(x, angles)
        return self.head(x) + angles[..., :2]


def test_a_gradient_belongs_to_the_output_that_has_one(monkeypatch):
    monkeypatch.setattr(compiled, "code_of", lambda module, path: b"")
    [layer] = layers_of(PassingModel([Passing()]))
    assert [node.target for node in layer.outputs] == [torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor]
    description, _ = compiled.compile_layer(layer)
    assert description["outputs"] == 2
    assert [gradient["output"] for gradient in description["output_gradients"]] == [1]


class Counting(Layer):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x, angles):
        return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2), angles)


class Viewing(Layer):
    def forward(self, x, angles):
        return x.view(x.shape)


class Reading(Layer):
    def __init__(self, other):
        super().__init__()
        self.others = [other]  # Not a submodule.

    def forward(self, x, angles):
        return super().forward(x, angles) @ self.others[0].weight


def reading():
    model = Model([Layer()])
    model.layers[0] = Reading(model.embed)
    return model


@pytest.mark.parametrize("make, said", [
    (lambda: Model([Layer()], calls=2), "'layers.0' is called 2 times in a step"),
    (lambda: Model([Counting()]), "changes 'norm."),
    (lambda: Model([Viewing()]), "'layers.0' gives a view of an input"),
    (reading, "reads 'embed.weight', which lies outside of it"),
])
def test_layers_that_compiled_code_would_get_wrong_are_refused(make, said):
    model = make()
    subject = Subject(model, [], {}, [], layers=[type(model.layers[0]).__name__])
    with pytest.raises(Refused, match=said):
        compiled.compile_layers(recorded(model), subject)


def test_a_model_without_layers_is_refused():
    with pytest.raises(Refused, match="compiles layers, and the model has none"):
        compiled.compile_layers(recorded(Model([Layer()])), Subject(Model([Layer()]), [], {}, [], layers=[]))


def test_a_torchscript_file_takes_no_code(tmp_path):
    with pytest.raises(Refused, match="compiled code goes into a .pt2 file"):
        export(train_runs.GPT(**train_runs.SIZES), torch.zeros(2, 8, dtype=torch.long), tmp_path / "model.pt", compile=True, check=False)
    (tmp_path / "hf").mkdir()
    assert cli.parser().parse_args([str(tmp_path / "hf"), "out.pt2", "--compile"]).compile
    assert not list(tmp_path.glob("model.pt*"))


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = Model([Layer()])
    with pytest.raises(Refused, match="needs g\\+\\+"):
        compiled.compile_layers(recorded(model), Subject(model, [], {}, [], layers=["Layer"]))
