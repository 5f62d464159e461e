"""The structure that accel reads from a model file without libtorch equals what libtorch and Python read."""

import json
import subprocess

import pytest
import torch
import transformers
import train_runs
from torch import nn
from train_runs import GPT, SIZES

IDS = torch.zeros(2, 8, dtype=torch.long)


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.named["a"](x) * self.gain * self.frozen + self.steps


class Awkward(nn.Module):
    """Has modules under two names, parameters that are read from outside their modules, ties, and a None parameter."""

    def __init__(self):
        super().__init__()
        self.register_parameter("none", None)
        self.units = nn.ModuleList([Unit(), Unit(), Unit()])
        self.again = self.units[1]
        self.tied = self.units[2].layers[0].weight
        self.last = nn.Linear(4, 4)
        self.last.weight = self.units[0].layers[1].weight

    def forward(self, x: torch.Tensor, twice: bool = True) -> torch.Tensor:
        y = self.units[0](x) * self.units[1].gain
        if twice:
            y = self.again(self.units[1](y)) + self.units[0].layers[0].weight.sum()
        bias = self.units[2].named["a"].bias
        for _ in range(2):
            y = y + bias * self.units[2].frozen
        return self.last(self.units[2].layers[1](y)) @ self.tied


def small_llama():
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                      num_key_value_heads=1, vocab_size=64, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def small_gpt2():
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=64, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def small_bert():
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                     vocab_size=64, max_position_embeddings=16)
    return transformers.BertForMaskedLM(config)


def small_t5():
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=64)
    return transformers.T5ForConditionalGeneration(config)


class Logits(nn.Module):
    """A transformers model with the arguments that tracing needs."""

    def __init__(self, model, **arguments):
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, ids):
        more = {"decoder_input_ids": ids} if "decoder" in self.arguments else {}
        return self.model(input_ids=ids, return_dict=False, **more)[0]


def traced(model, *inputs):
    device = next(model.parameters()).device
    return torch.jit.trace(model.eval(), [x.to(device) for x in inputs], check_trace=False)


ZOO = {
    "gpt_scripted": lambda: torch.jit.script(GPT(**SIZES)),
    "gpt_traced": lambda: traced(GPT(**SIZES), IDS),
    "awkward_scripted": lambda: torch.jit.script(Awkward()),
    "awkward_traced": lambda: traced(Awkward(), torch.ones(2, 4)),
    "encoder_scripted": lambda: torch.jit.script(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2)),
    "encoder_traced": lambda: traced(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2), torch.ones(3, 2, 16)),
    "llama": lambda: traced(Logits(small_llama()), IDS),
    "gpt2": lambda: traced(Logits(small_gpt2()), IDS),
    "bert": lambda: traced(Logits(small_bert()), IDS),
    "t5": lambda: traced(Logits(small_t5(), decoder=True), IDS),
}


@pytest.fixture
def structure(accel_path):
    """structure(PATH) returns what structure-tool prints. The tool fails if libtorch reads another structure."""
    tool = accel_path.parents[2] / "tests/unit/train/structure-tool"
    assert tool.exists(), f"{tool} is not built; run tools/dev build"

    def run(path, *classes):
        result = subprocess.run([tool, path, *classes], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.mark.long(but="gpt_scripted")
@pytest.mark.parametrize("name", ZOO)
def test_equals_libtorch_and_python(name, structure, tmp_path):
    ZOO[name]().save(str(tmp_path / "model.pt"))
    found = structure(tmp_path / "model.pt")
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    expected = [(n, list(p.shape), p.requires_grad) for n, p in loaded.named_parameters()]
    assert [(p["fqns"][0], p["shape"], p["requires_grad"]) for p in found["parameters"]] == expected
    names = {n for n, _ in loaded.named_parameters(remove_duplicate=False)}
    assert {fqn for p in found["parameters"] for fqn in p["fqns"]} == names
    assert [m[0] for m in found["modules"]] == [n for n, _ in loaded.named_modules(remove_duplicate=False)]
    assert [m[1] for m in found["modules"]] == [m.original_name for _, m in
                                                loaded.named_modules(remove_duplicate=False)]


def test_finds_what_is_read_past_a_units_boundary(structure, tmp_path):
    torch.jit.script(Awkward()).save(str(tmp_path / "model.pt"))
    cross_unit = {p["fqns"][0] for p in structure(tmp_path / "model.pt", "Unit")["parameters"] if p["cross_unit"]}
    # All parameters below a module that is reached through a unit count, even if only one of them is read.
    read = {"units.1.gain", "units.2.frozen", "units.2.named.a.bias", "units.0.layers.0.weight"}
    beside = {"units.0.layers.0.bias", "units.0.layers.1.weight", "units.2.layers.0.bias", "units.2.layers.1.weight",
              "units.2.named.a.weight", "tied"}
    assert cross_unit == read | beside


@pytest.mark.parametrize("name", ["gpt_scripted", "gpt_traced", "encoder_traced"])
def test_a_file_without_weights_has_the_same_structure(name, structure, tmp_path):
    ZOO[name]().save(str(tmp_path / "whole.pt"))
    with torch.device("meta"):
        ZOO[name]().save(str(tmp_path / "empty.pt"))
    assert structure(tmp_path / "empty.pt") == structure(tmp_path / "whole.pt")


class WithQuantizedBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 8)
        self.register_buffer("head", torch.quantize_per_tensor(torch.randn(8, 256), 0.1, 0, torch.qint8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) @ self.head.dequantize()


def packed():
    model = nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("make, attribute", [(packed, "1._packed_params._packed_params"), (WithQuantizedBuffer, "head")],
                         ids=["packed", "buffer"])
def test_a_quantized_model_is_refused(accel, tmp_path, make, attribute):
    """Both plan, which reads the file without libtorch, and the ranks refuse the model."""
    torch.jit.script(make()).save(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, **{"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"})
    assert f"'{attribute}' is quantized and cannot be trained" in accel("plan", config, code=2).stderr
    said = accel("launch", config, code=2).stderr
    assert f"'{attribute}' is quantized and cannot be trained" in said
    assert "hint: export the model as it was before quantization" in said


@torch.jit.script
class Angles:
    def __init__(self, values: torch.Tensor):
        self.values = values


class WithObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)
        self.angles = Angles(torch.ones(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * self.angles.values.sum()


def test_tensors_in_an_object_that_is_no_module_are_refused(accel, tmp_path):
    """accel would not read the values of such tensors."""
    torch.jit.script(WithObject()).save(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, **{"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"})
    assert "attribute 'angles' of module '(root)' has tensors in an object" in accel("launch", config, code=6).stderr
