"""The plan for tensor parallelism that accel-export stores: it is that of transformers, and the file is right with whole weights
and with those of each rank."""

import copy
import dataclasses
import json
import pathlib
import threading
import zipfile

import accel_export
import pytest
import tensor_models
import torch
import train_runs
import transformers
from accel_export import cli, program, tensor_parallel
from safetensors.torch import load_file
from torch import nn
from transformers.distributed.parallel_utils import _get_parameter_plan
from transformers.models.llama import modeling_llama

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 4, "vocab_size": 256, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
# The families, and the number that a number of ranks divides.
FAMILIES = {"llama": 4, "qwen2": 4, "qwen3": 4, "mistral": 4, "gemma3_text": 4, "gpt_neox": 8, "phi3": 32}
# The families that are trained with transformers' tensor parallelism as well, on so many ranks. test_tensor_parallel.py has Llama and
# Qwen3 on two.
RANKS = {"llama": 4, "gemma3_text": 2, "gpt_neox": 2, "phi3": 2}
STEPS = 20
IDS = torch.randint(3, 96, (3, 21), generator=torch.Generator().manual_seed(0))


def make(family, sizes, directory):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **{**SIZES, **sizes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return model.eval()


@pytest.fixture
def export(accel_path, tmp_path, capsys):
    """export(FAMILY, SIZES, FLAGS...) runs accel-export on a model of random values and returns what it says."""

    def run(family, sizes, *flags):
        make(family, sizes, tmp_path / "hf")
        cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt2"), "--weights", "--accel", str(accel_path), *flags])
        return capsys.readouterr().out

    return run


@dataclasses.dataclass
class Exported:
    family: str
    model: nn.Module
    path: pathlib.Path
    plain: torch.export.ExportedProgram  # The record before sizes became -1.


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request, accel_path, tmp_path_factory):
    """A model of each family and its file."""
    directory, record, plain = tmp_path_factory.mktemp(request.param), program.record, []
    # Tied parameters are two leaves in one record and one in the other.
    model = make(request.param, {"tie_word_embeddings": False}, directory / "model")

    def keep(subject):
        recorded = record(subject)
        plain.append(copy.deepcopy(recorded.exported))
        return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "record", keep)
        cli.main([str(directory / "model"), str(directory / "model.pt2"), "--weights", "--accel", str(accel_path)])
    return Exported(request.param, model, directory / "model.pt2", plain[0])


def notes_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(f"{path.stem}/extra/accel.json"))


class Ranks:
    """What the threads of the ranks hand to each other."""

    def __init__(self, size):
        self.size, self.given, self.barrier = size, [None] * size, threading.Barrier(size, timeout=60)

    def all_gather(self, rank, tensor):
        self.given[rank] = tensor
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found

    def run(self, body):
        """Returns what body(RANK) returns on each rank, each in a thread."""
        results, threads = [None] * self.size, []

        def one(rank):
            try:
                with torch.no_grad():
                    results[rank] = body(rank)
            except BaseException as error:
                results[rank] = error
                self.barrier.abort()

        for rank in range(self.size):
            threads.append(threading.Thread(target=one, args=(rank,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return results


class Local(nn.Module):
    """A module of which a rank has a part of the weight, by a style of transformers."""

    def __init__(self, whole, style, ranks, rank):
        super().__init__()
        self.style, self.ranks, self.rank = style, ranks, rank
        dim = 1 if style.startswith("rowwise") else 0
        self.weight = whole.weight.detach().chunk(ranks.size, dim)[rank]
        bias = getattr(whole, "bias", None)
        self.bias = bias if bias is None or dim == 1 else bias.detach().chunk(ranks.size)[rank]

    def forward(self, x):
        if self.style == "rowwise_split_input":
            x = x.chunk(self.ranks.size, -1)[self.rank]
        if self.style.startswith("rowwise"):
            total = sum(self.ranks.all_gather(self.rank, nn.functional.linear(x, self.weight)))
            return total if self.bias is None else total + self.bias
        result = nn.functional.linear(x, self.weight, self.bias)
        return torch.cat(self.ranks.all_gather(self.rank, result), -1) if self.style == "colwise_gather_output" else result


def local_program(path, plan, ranks, rank):
    """Opens the file with the weights of one rank. The linears of the plan are replaced, all else is the file's own. An
    embedding is whole, because it gives the whole tensor in any case."""
    model = torch.export.unflatten(torch.export.load(path))
    for name, whole in list(model.named_modules()):
        style = plan.get(".".join("*" if part.isdigit() else part for part in name.split(".")))
        if style is not None and style not in ("replicated_with_grad_allreduce", "embedding_rowwise"):
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, Local(whole, style, ranks, rank))
    return model


@pytest.mark.long
def test_a_file_is_right_with_the_weights_of_each_rank(exported, accel):
    model, notes, heads = exported.model, notes_of(exported.path), FAMILIES[exported.family]
    assert notes["tp_heads"] == heads
    assert f"tp plan     for numbers of ranks that divide {heads}" in accel("inspect", exported.path).stdout
    # Each parameter has the style that transformers finds for it.
    for name, _ in model.named_parameters():
        module = ".".join("*" if part.isdigit() else part for part in name.split(".")[:-1])
        assert notes["tp_plan"].get(module) == _get_parameter_plan(name, model.tp_plan), name
    assert "colwise" in notes["tp_plan"].values() or exported.family == "phi3"

    expected = model(IDS, use_cache=False).logits.detach()
    for size in (2, 4):
        ranks = Ranks(size)
        programs = [local_program(exported.path, notes["tp_plan"], ranks, rank) for rank in range(size)]
        for result in ranks.run(lambda rank: programs[rank](IDS)):
            assert not isinstance(result, BaseException), repr(result)
            # Sums of at most 64 numbers, in another order, through two layers.
            assert (result[0] - expected).abs().max() < 1e-4 * expected.abs().max()


def results_of(exported):
    """Returns output and gradients of a record."""
    module = exported.module()
    logits = module(IDS)[0]
    nn.functional.cross_entropy(logits.flatten(0, 1), IDS.flatten()).backward()
    return {"logits": logits.detach(), **{name: parameter.grad for name, parameter in module.named_parameters()}}


@pytest.mark.long(but="llama")
def test_a_file_with_whole_weights_is_the_plain_record(exported):
    """The sizes that became -1 change no bit of output and gradients."""
    stored = torch.export.load(exported.path)
    sizes = [[node.args[1] for node in one.graph.nodes if node.target in tensor_parallel.WITH_SIZES] for one in (exported.plain, stored)]
    changed = sum(str(before) != str(after) for before, after in zip(*sizes, strict=True))
    # Two of expand and two of reshape a layer, for the repeated keys and values. The families with one head of keys for each of
    # queries have none.
    assert changed == (0 if exported.family in ("gpt_neox", "phi3") else 8)
    before, after = results_of(exported.plain), results_of(stored)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def train(accel, exported, directory, ranks):
    """Trains with the plan of the file, of which the configuration says nothing."""
    directory.mkdir()
    accel("launch", train_runs.config(directory, ranks, **{
        "model.path": str(exported.path), "max_steps": STEPS, "checkpoint.every": STEPS, "parallelism_config.tp_size": ranks,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": notes_of(exported.path)["layer_classes"][0], **tensor_models.JUDGED}))
    accel("merge-weights", directory / f"out/checkpoints/checkpoint_{STEPS}", directory / "merged", "--module-names")
    return {**{key: train_runs.metrics(directory, key) for key in ("loss", "grad_norm")},
            "weights": load_file(directory / "merged/model.safetensors")}


def require_close(found, expected):
    """Sums over ranks have another order. AdamW divides small gradients by their own size, so that weights differ by more; they
    move by 6e-3."""
    assert len(found["loss"]) == STEPS and found["loss"][-1] < found["loss"][0]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert found["weights"].keys() == expected["weights"].keys()
    for key, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][key], value, rtol=0, atol=1e-4, msg=lambda text: f"{key}: {text}")


@pytest.mark.long(but="qwen2")
def test_it_trains_on_several_ranks_as_on_one_and_as_transformers_does(exported, accel, peer, tmp_path):
    ranks = RANKS.get(exported.family, 2)
    found = train(accel, exported, tmp_path / "cut", ranks)
    require_close(found, train(accel, exported, tmp_path / "whole", 1))
    if exported.family in RANKS:
        theirs = tensor_models.train_with_transformers(peer, exported.path.parent, ranks, STEPS)
        # The style of a bias is that of its weight, and the bias behind a sum over ranks is whole.
        plan = notes_of(exported.path)["tp_plan"]
        cut = {name for name, _ in exported.model.named_parameters()
               if "wise" in (style := plan.get(tensor_parallel.pattern_of(name.rpartition(".")[0]), "")) and
               not (style.startswith("rowwise") and name.endswith("bias"))}
        assert set(theirs["cut"]) == cut
        require_close(found, theirs)


def warning_of(said):
    return [line for line in said.splitlines() if "tensor parallelism" in line]


@pytest.mark.long(but="llama-sizes1-'model.layers.0.mlp.gate_proj.weight' has 64 rows, which 3 ranks cannot share")
@pytest.mark.parametrize("family, sizes, why", [
    ("llama", {"num_key_value_heads": 1}, "ranks share whole heads, and the model has one head of keys and values"),
    ("llama", {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3},
     "'model.layers.0.mlp.gate_proj.weight' has 64 rows, which 3 ranks cannot share"),
    ("mixtral", {"num_local_experts": 4}, "'model.layers.*.mlp.experts: moe_tp_experts', a style that accel does not know"),
])
def test_what_no_ranks_can_share_has_no_plan(export, tmp_path, family, sizes, why):
    said = export(family, sizes)
    assert len(warning_of(said)) == 1 and f"warning: the file has no plan for tensor parallelism: {why}" in said.replace("transformers' plan has ", "")
    assert not {"tp_plan", "tp_heads"} & notes_of(tmp_path / "model.pt2").keys()


def averaged(h):
    """The mean is that of a rank's part. No size of the record differs."""
    return h - h.mean(-1, keepdim=True)


def turned(h):
    half = h.shape[-1] // 2
    return torch.cat([h[..., half:], h[..., :half]], -1)


def widened(h):
    """A -1 would keep the size 1."""
    return h * h.new_ones(1).expand(h.shape[-1])


def folded(h):
    return h.reshape(-1, h.shape[-1]).sin().reshape(h.shape)


def branched(h):
    return h * 2 if h.shape[-1] == 64 else h + h


def fixed(h):
    return h.reshape(h.shape[0], h.shape[1], 16, 4).flatten(-2)


@pytest.mark.long
@pytest.mark.parametrize("change, why", [
    (averaged, "2 ranks compute something else: the largest difference is "),
    (turned, "in 'model.layers.0.mlp' aten.slice.Tensor depends on the number of ranks in a way that one -1 does not say: "
             "its numbers are [2, 32, 9223372036854775807], and with the weights of one of 2 ranks [2, 16, 9223372036854775807]"),
    (widened, "in 'model.layers.0.mlp' aten.expand.default depends on the number of ranks in a way that one -1 does not say: "
              "its numbers are [64], and with the weights of one of 2 ranks [32]"),
    (folded, "in 'model.layers.0.mlp' aten.reshape.default depends on the number of ranks in a way that one -1 does not say: "
             "its numbers are [-1, 64], and with the weights of one of 2 ranks [-1, 32]"),
    (branched, "its code takes aten.add.Tensor for aten.mul.Tensor in 'model.layers.0.mlp' with the weights of one of 2 ranks"),
    (fixed, "its code fails with the weights of one of 2 ranks: "),
])
def test_a_model_that_is_another_one_with_local_weights_has_no_plan(export, tmp_path, monkeypatch, change, why):
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward",
                        lambda self, x: self.down_proj(change(self.act_fn(self.gate_proj(x)) * self.up_proj(x))))
    said = export("llama", {})
    assert len(warning_of(said)) == 1 and f"warning: the file has no plan for tensor parallelism: {why}" in said
    assert "checked: " in said and "tp_plan" not in notes_of(tmp_path / "model.pt2")


def without_sum(styles):
    return {name: style for name, style in styles.items() if style != "replicated_with_grad_allreduce"}


def with_sum(styles):
    return {**styles, "model.layers.*.input_layernorm": "replicated_with_grad_allreduce"}


@pytest.mark.long
@pytest.mark.parametrize("change, why", [
    (without_sum, "takes a part on each rank and something whole, and transformers' plan does not sum the gradient of "
                  "'model.layers.0.self_attn."),
    (with_sum, "transformers' plan sums the gradient of 'model.layers.0.input_layernorm.weight' over the ranks, and each has all of it"),
])
def test_a_plan_that_gives_a_parameter_another_gradient_is_not_stored(export, tmp_path, monkeypatch, change, why):
    """The outputs are right. With the first plan a rank has the gradient of its own heads, with the second one twice the gradient."""
    styles_of = tensor_parallel.styles_of
    monkeypatch.setattr(tensor_parallel, "styles_of", lambda model: change(styles_of(model)))
    said = export("qwen3", {})
    assert len(warning_of(said)) == 1 and why in said
    assert "tp_plan" not in notes_of(tmp_path / "model.pt2")


@pytest.mark.long
def test_the_plan_needs_the_comparison(export, tmp_path):
    said = export("llama", {}, "--no-check")
    assert "no plan for tensor parallelism: it is compared with the whole model first, and the comparison was left out" in said
    assert "tp_plan" not in notes_of(tmp_path / "model.pt2")


@pytest.mark.long
def test_models_without_a_plan_and_files_of_tracing_say_nothing(export, tmp_path):
    said = export("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4})
    assert not warning_of(said) and "tp_plan" not in notes_of(tmp_path / "model.pt2")


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["--dtype", "bfloat16"], ["--loss"]])
def test_a_file_of_the_structure_alone_has_the_plan(accel_path, tmp_path, capsys, flags):
    config = transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"], tie_word_embeddings=True)
    config.save_pretrained(tmp_path / "hf")
    cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt2"), "--accel", str(accel_path), *flags])
    assert "transformers' plan, for numbers of ranks that divide 4" in capsys.readouterr().out
    notes = notes_of(tmp_path / "model.pt2")
    assert notes["tp_plan"]["model.layers.*.self_attn.o_proj"] == "rowwise" and notes["tp_heads"] == 4
    sizes = [node.args[1] for node in torch.export.load(tmp_path / "model.pt2").graph.nodes if node.target in tensor_parallel.WITH_SIZES]
    assert sum(-1 in size for size in sizes) >= 8


@pytest.mark.long
def test_the_python_api_stores_the_plan(accel_path, tmp_path):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, use_cache=False))
    said = []
    accel_export.export(model, {"input_ids": IDS}, tmp_path / "model.pt2", outputs=["logits"], accel=accel_path, say=said.append)
    assert notes_of(tmp_path / "model.pt2")["tp_heads"] == 4
    assert any("transformers' plan, for numbers of ranks that divide 4" in line for line in said)
    # The parameters of the model are its own again.
    assert model.model.layers[0].mlp.up_proj.weight.shape == (64, 32) and model.model.layers[0].mlp.up_proj.out_features == 64
