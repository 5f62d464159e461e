"""accel_export.export compares a file with the author's model as it was given: its modes, hooks, parameters and autocast."""

import copy
import subprocess

import accel_export
import pytest
import torch
import train_runs
import transformers
from accel_export import check, cli, huggingface, inputs, own, tracing
from accel_export.conversions import Recorded, Unsupported, described, parts_of

EXAMPLE = torch.randint(16, (2, 12), generator=torch.Generator().manual_seed(0))
FORMATS = ["own.pt2", "own.pt"]


class Own(torch.nn.Module):
    """Its norm stands outside of dropout, as in a pretrained model that is trained further."""

    def __init__(self, dropout=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(16, 8)
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, ids):
        x = self.tokens(ids)
        x = x + self.dropout(self.linear(x))
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


@pytest.fixture
def export(accel_path, tmp_path, capsys):
    """export(MODEL, OUT) returns what the exporter says, and the file as accel opens it."""

    def run(model, out, **options):
        accel_export.export(model, EXAMPLE, tmp_path / out, layers=[], accel=accel_path, **options)
        said, place = capsys.readouterr().out, tmp_path / out
        if place.suffix == ".pt2":
            place = tmp_path / "imported.pt"
            subprocess.run([accel_path, "import", tmp_path / out, place], check=True)
        return said, check.open_file(place, is_traced=out == "own.pt")

    return run


# Modes.

@pytest.mark.parametrize("out", FORMATS)
def test_a_module_in_evaluation_stays_so_in_training(export, out):
    model = Own().train()
    model.norm.eval()
    model.dropout.eval()
    said, file = export(model, out)
    assert "in evaluation mode in training, too, as in the model: norm, dropout" in said
    assert [module.training for module in (model, model.linear, model.norm, model.dropout)] == [True, True, False, False]
    torch.testing.assert_close(file.train()(EXAMPLE)[0] if out == "own.pt" else file.train()(EXAMPLE), model(EXAMPLE))


@pytest.mark.parametrize("out", FORMATS)
def test_a_model_in_evaluation_is_exported_as_it_trains(export, out):
    said, file = export(Own().eval(), out)
    assert "the model is in evaluation mode, and is exported as model.train() leaves it" in said and "too, as in the model" not in said
    assert file.train()(EXAMPLE)[0].eq(file.train()(EXAMPLE)[0]).all().item() is False  # Dropout draws anew.


class DropsNever(Own):
    def forward(self, ids):
        return torch.nn.functional.dropout(super().forward(ids), 0.5, training=False)


@pytest.mark.parametrize("kind", [Own, DropsNever])
def test_a_frozen_norm_and_a_dropout_that_is_off_may_be_all_that_has_a_mode(export, kind):
    model = kind(dropout=0).train()
    model.norm.eval()
    _, file = export(model, "own.pt2")
    assert torch.equal(file.train()(EXAMPLE), model(EXAMPLE))


# What a copy or a file does not have.

def test_a_hook_on_a_gradient_is_refused_by_name(accel_path, tmp_path):
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model = Own()
        getattr(model.tokens.weight, register)(lambda value: None)
        with pytest.raises(accel_export.Refused, match=fr"'tokens.weight' has a hook on its gradient \({register}\)"):
            accel_export.export(model, EXAMPLE, tmp_path / "own.pt2", layers=[], accel=accel_path)
    model = Own(dropout=0)
    accumulates = model.tokens.weight.expand_as(model.tokens.weight).grad_fn.next_functions[0][0]
    accumulates.register_prehook(lambda gradients: tuple(gradient * 0.5 for gradient in gradients))
    with pytest.raises(accel_export.Refused, match=r"a copy of the model \(copy.deepcopy\) is another model: .* 'tokens.weight'"):
        accel_export.export(model, EXAMPLE, tmp_path / "own.pt2", layers=[], accel=accel_path)


def test_a_parameter_from_outside_is_refused_with_its_module_and_line(accel_path, tmp_path):
    outside = torch.nn.Parameter(torch.ones(8))
    hooked = Own()
    hooked.linear.register_forward_hook(lambda module, given, result: result * outside)
    closed = Own()
    closed.linear.forward = lambda x: torch.nn.functional.linear(x, closed.tokens.weight[:8])
    for model, name in ((hooked, "a parameter of shape [8] that the model does not have"),
                        (closed, "the original's parameter 'tokens.weight' in a copy")):
        with pytest.raises(accel_export.Refused) as refused:
            accel_export.export(model, EXAMPLE, tmp_path / "own.pt2", layers=[], accel=accel_path)
        assert all(text in str(refused.value) for text in (name, "in module 'linear'", "test_export_as_given.py:"))
    made_within = Own()  # As enable_input_require_grads() of transformers does.
    made_within.tokens.requires_grad_(False)
    made_within.tokens.register_forward_hook(lambda module, given, result: result.requires_grad_(True))
    own.require_same(made_within, copy.deepcopy(made_within), own.inputs_of(made_within, EXAMPLE, {}), None)


def test_the_authors_model_is_left_as_it_was(export):
    model = Own().train()
    model(EXAMPLE).square().sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    state = torch.random.get_rng_state()
    own.require_same(model, copy.deepcopy(model), own.inputs_of(model, EXAMPLE, {}), None)
    assert torch.equal(torch.random.get_rng_state(), state)
    export(model, "own.pt2")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all(torch.equal(parameter.grad, gradients[name]) for name, parameter in model.named_parameters())


class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.round(decimals=1)

    @staticmethod
    def backward(context, gradient):
        return gradient


@pytest.mark.parametrize("out", FORMATS)
def test_a_gradient_of_ones_own_is_the_reason_that_is_named(accel_path, tmp_path, out):
    model = Own()
    model.dropout.forward = Rounds.apply
    with pytest.raises(accel_export.Refused, match="hint: .*replace (the torch.autograd.Function|it) by operators of torch"):
        accel_export.export(model, EXAMPLE, tmp_path / out, layers=[], accel=accel_path)


# Autocast of the model's own.

class Casts(Own):
    def forward(self, ids):
        x = self.tokens(ids)
        with torch.autocast("cpu", torch.bfloat16):
            x = self.linear(x)
            with torch.autocast("cpu", enabled=False):
                x = x + self.linear(x.float())
        return self.linear(x.float())


@pytest.mark.parametrize("out", FORMATS)
def test_an_autocast_region_of_the_model_is_compared_as_accel_runs_it(export, out):
    said, file = export(Casts().train(), out)
    assert "checked: " in said and not torch.is_autocast_enabled("cpu")
    model = Casts().train()
    assert torch.equal(torch.as_tensor(file(EXAMPLE)[0] if out == "own.pt" else file(EXAMPLE)), model(EXAMPLE))


# Sizes, structures, a model's own loss.

class Pictures(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 4, 4)

    def forward(self, pixels):
        x = self.conv(pixels).flatten(1)
        return x if pixels.shape[0] < 100 else x * 2


def test_sizes_are_tried_without_inputs_of_these_sizes(accel_path, tmp_path, capsys, monkeypatch):
    at = inputs.Input.at

    def small(self, sizes, generator):
        assert max(sizes.values()) < 10
        return at(self, sizes, generator)

    monkeypatch.setattr(inputs.Input, "at", small)
    accel_export.export(Pictures(), torch.randn(2, 3, 384, 384), tmp_path / "own.pt2", layers=[], accel=accel_path)
    assert "sizes that train: batch: 1 to 99" in capsys.readouterr().out


def longrope(tmp_path, layers=2):
    factors = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
               "original_max_position_embeddings": 64}
    config = transformers.Phi3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
        max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_parameters=factors, architectures=["Phi3ForCausalLM"])
    torch.manual_seed(0)
    model = transformers.Phi3ForCausalLM(config)
    model.save_pretrained(tmp_path / "hf")
    return model


def test_the_structure_that_is_published_is_the_one_that_was_compared(accel, tmp_path):
    model = longrope(tmp_path).train()
    cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt")])
    file = torch.jit.load(tmp_path / "model.pt")
    assert {parameter.device.type for parameter in file.parameters()} == {"meta"}
    values = dict(model.named_parameters(remove_duplicate=False))
    for name, _ in list(file.named_parameters(remove_duplicate=False)):
        tracing.owner_of(file._c, name).setattr(name.rpartition(".")[2], values[name])
    for length in (12, 100):
        ids = torch.randint(256, (2, length))
        torch.testing.assert_close(file(ids)[0], model(ids).logits)
    accel("launch", train_runs.config(tmp_path, **{
        "model.path": str(tmp_path / "model.pt"), "model.weights": str(tmp_path / "hf"), "data.train.sequence_length": length,
        "max_steps": 1, "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Phi3DecoderLayer"}))
    text = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    windows = torch.stack([text[i * length:(i + 1) * length + 1] for i in range(8)])
    loss = torch.nn.functional.cross_entropy(model(windows[:, :-1]).logits.flatten(0, 1), windows[:, 1:].flatten())
    assert train_runs.metrics(tmp_path) == pytest.approx([loss.item()], rel=1e-5)


class Keeps(Own):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8))

    def forward(self, ids):
        x = super().forward(ids)
        self.state.copy_(x.detach().mean((0, 1)))
        return x


def test_the_hints_of_what_longrope_does_lead_to_a_file(accel_path, tmp_path):
    with pytest.raises(accel_export.Refused, match="in place[^\n]*\nhint: record the model by tracing: choose a name .* in .pt$"):
        accel_export.export(Keeps(), EXAMPLE, tmp_path / "own.pt2", layers=[], accel=accel_path)
    longrope(tmp_path)
    for flags in ([], ["--accept", "modeling_rope_utils.py:572", "--accept", "modeling_rope_utils.py:574"]):
        with pytest.raises(SystemExit, match="hint: add --weights"):  # What --no-check records has no values.
            cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt"), "--no-check", *flags])


def test_a_loss_of_a_router_is_not_dropped_without_a_word(accel_path, tmp_path, capsys):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 96, "num_local_experts": 4, "pad_token_id": 0, "architectures": ["MixtralForCausalLM"]}
    for writes in (True, False):
        transformers.MixtralConfig(**sizes, output_router_logits=writes).save_pretrained(tmp_path / "hf")
        cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt"), "--overwrite"])
        assert ("the model's own loss has a part beside the cross entropy" in capsys.readouterr().out) == writes


def test_a_squeeze_of_no_or_several_dimensions_is_followed():
    tensor = Recorded.whole("weight", (1, 3, 1))
    assert [part.dims for part in tensor.squeeze().parts] == [(1,)]
    assert [part.dims for part in tensor.squeeze((0, 1)).parts] == [(1, 2)]
    assert transformers.__version__ in huggingface.TRIED
    with pytest.raises(Unsupported, match="torch.squeeze with the arguments"):
        described(parts_of, "squeeze", tensor, tensor, "no")
