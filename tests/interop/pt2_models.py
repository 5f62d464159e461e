"""Models as programs of torch.export, for the tests of .pt2 files."""

import dataclasses
import json

import torch
import transformers
from torch.export import Dim

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 256, "max_position_embeddings": 256, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.2)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        y = torch.relu(self.linear(self.norm(x)))
        with torch.no_grad():
            scale = y.abs().amax(-1, keepdim=True) + 1.0
        first, second = (y / scale).chunk(2, -1)
        return x + self.dropout(torch.cat((second, first), -1))


class Shared(torch.nn.Module):
    """Tied weights, a module that is called twice, a module that another one calls, buffers of both kinds, constants."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.full((8,), 1.5))
        self.register_buffer("shift", torch.arange(8.0), persistent=False)
        self.frozen = torch.nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, ids):
        x = self.tokens(ids) * self.scale + self.shift + torch.arange(ids.shape[1]).view(1, -1, 1) * torch.tensor([0.5])
        for block in self.blocks:
            x = block(x)
        x = self.blocks[0](x * self.frozen)
        return self.head(x)


class Pictures(torch.nn.Module):
    """Running statistics, which training alone changes, and two outputs."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.norm(self.conv(x)), approximate="tanh")
        y = torch.nn.functional.dropout(y.mean((2, 3)), 0.1, self.training)
        return self.head(y), y


def language_model(family, sizes):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **{**SIZES, **sizes})).train()
    forward = model.forward
    model.forward = lambda input_ids: forward(input_ids=input_ids, use_cache=False, return_dict=False)[:1]
    return model


def export(model, path, *inputs, dynamic=None):
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=False)
    torch.export.save(program, path)


IDS = torch.zeros(2, 16, dtype=torch.long)
FREE = ({0: Dim.AUTO, 1: Dim.AUTO},)


def made(kind, path):
    """Exports a model of a kind, and returns it with inputs of other sizes."""
    torch.manual_seed(0)
    if kind == "pictures":
        model = Pictures().train()
        export(model, path, torch.zeros(2, 3, 8, 8), dynamic=({0: Dim.AUTO},))
        model.norm.num_batches_tracked.zero_()
        return model, [torch.randn(n, 3, 8, 8) for n in (2, 5)]
    if kind == "shared":
        model = Shared().train()
        export(model, path, IDS % 16, dynamic=FREE)
        return model, [torch.randint(0, 16, shape) for shape in ((2, 16), (3, 9), (1, 1))]
    if kind == "tied":
        model = language_model("llama", {"tie_word_embeddings": True})
        export(model, path, IDS, dynamic=FREE)
        return model, []
    model = language_model(kind, {**(GPT2 if kind == "gpt2" else {}), **({"head_dim": 8} if kind == "qwen3" else {})})
    export(model, path, IDS, dynamic=FREE)
    return model, [torch.randint(0, 256, shape) for shape in ((2, 16), (3, 25), (1, 150))]


def first(outputs):
    if dataclasses.is_dataclass(outputs):
        return getattr(outputs, dataclasses.fields(outputs)[0].name)
    if isinstance(outputs, dict):
        return next(iter(outputs.values()))
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def seeded(module, inputs):
    torch.manual_seed(7)
    return first(module(inputs))


def assert_same_model(imported, model, inputs):
    """Compares outputs bit for bit, gradients, and the state afterwards, in training and in evaluation."""
    theirs = dict(model.named_parameters())
    assert {name: p.requires_grad for name, p in imported.named_parameters()} == {name: p.requires_grad for name, p in theirs.items()}
    for training in (True, False):
        model.train(training)
        imported.train(training)
        for x in inputs:
            expected, found = seeded(model, x), seeded(imported, x)
            assert torch.equal(found, expected)
            for module, output in ((model, expected), (imported, found)):
                module.zero_grad()
                output.square().mean().backward()
            for name, parameter in imported.named_parameters():
                if theirs[name].grad is not None:
                    torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)
    for name, tensor in model.state_dict().items():  # Running statistics and their counter.
        assert torch.equal(imported.state_dict()[name], tensor), name


def structure_alone(path, out, notes):
    """Writes the program of `path` without the values of its parameters, as an exporter of a large model does."""
    program = torch.export.load(path)
    for name, tensor in list(program.state_dict.items()):
        if isinstance(tensor, torch.nn.Parameter):
            program.state_dict[name] = torch.nn.Parameter(torch.empty_like(tensor, device="meta"))
    torch.export.save(program, out, extra_files={"accel.json": json.dumps(notes)})
