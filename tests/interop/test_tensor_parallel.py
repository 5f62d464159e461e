"""Tensor parallelism beside the same training without it: losses, gradient norms, weights, checkpoints."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

import tensor_models
import train_runs
from tensor_models import LLAMA, QWEN3, VOCABULARY

STEPS = 20
# Sums over ranks have another order, which changes float32 numbers by 6e-8 of themselves. 20 steps may make a hundred times
# that of it. AdamW divides small gradients by their own size, so that weights differ by more.
FLOAT32 = {"loss": 1e-5, "grad_norm": 1e-5, "weights": 1e-4}
FAMILIES = {"llama": (LLAMA, "LlamaDecoderLayer"), "qwen3": (QWEN3, "Qwen3DecoderLayer")}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Paths of exported models by family; those with "_tied" have a head that is tied to the embedding."""
    directory = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        tensor_models.export(directory / f"{family}.pt2", family)
    tensor_models.export(directory / "llama_tied.pt2", "llama", tie_word_embeddings=True)
    return directory


def config_of(directory, models, family, data_ranks, tp=1, steps=STEPS, plan=None, **options):
    directory.mkdir(exist_ok=True)
    rules, layer = FAMILIES[family.split("_")[0]]
    options = {"model.path": str(models / f"{family}.pt2"), "fsdp_config.fsdp_transformer_layer_cls_to_wrap": layer,
               "max_steps": steps, "checkpoint.every": steps, **options}
    if tp > 1:
        options |= {"parallelism_config.tp_size": tp, "parallel.tp_plan": plan or {**rules, **VOCABULARY}}
    return train_runs.config(directory, data_ranks * tp, **options)


def result(accel, directory, step=STEPS):
    accel("merge-weights", directory / f"out/checkpoints/checkpoint_{step}", directory / "merged")
    return {"loss": train_runs.metrics(directory), "grad_norm": train_runs.metrics(directory, "grad_norm"),
            "weights": load_file(directory / "merged/model.safetensors")}


def run(accel, *arguments, **options):
    config = config_of(*arguments, **options)
    accel("launch", config)
    return result(accel, arguments[0], options.get("steps", STEPS))


def require_close(ours, theirs, bounds=None):
    bounds = bounds or FLOAT32
    for key in ("loss", "grad_norm"):
        assert ours[key] == pytest.approx(theirs[key], rel=bounds[key]), key
    assert theirs["loss"][-1] < theirs["loss"][0] - 0.5
    assert ours["weights"].keys() == theirs["weights"].keys()
    for key, value in theirs["weights"].items():
        torch.testing.assert_close(ours["weights"][key], value, rtol=0, atol=bounds["weights"], msg=lambda text: f"{key}: {text}")


def read_dcp(directory):
    """What torch's DCP reads of a directory, by the names of the tensors."""
    state = {}
    dcp.state_dict_loader._load_state_dict(state, storage_reader=dcp.FileSystemReader(directory),
                                           planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return flattened(state)


def flattened(state, prefix=""):
    found = {}
    for key, value in state.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


CASES = {
    # name: (family, data ranks, options of both runs)
    "llama, tp 2": ("llama", 1, {}),
    "llama tied, dp 2 x tp 2, accumulation": ("llama_tied", 2, {"gradient_accumulation_steps": 2}),
    "qwen3, replicate 2 x tp 2, checkpointing": (
        "qwen3", 2, {"parallelism_config.dp_replicate_size": 2, "fsdp_config.fsdp_activation_checkpointing": True}),
    "qwen3, tp 2, accumulation": ("qwen3", 1, {"gradient_accumulation_steps": 2}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_training_equals_that_without_tensor_parallelism(accel, models, tmp_path, name):
    family, data_ranks, options = CASES[name]
    whole = run(accel, tmp_path / "whole", models, family, data_ranks, **options)
    cut = run(accel, tmp_path / "cut", models, family, data_ranks, 2, **options)
    require_close(cut, whole)


HEADS = {
    # name: (family, data ranks, options of the model)
    "all options": ("llama", 1, {"label_smoothing": 0.1, "z_loss": 1e-3, "class_weights": [1 + i % 3 for i in range(256)]}),
    "tied, dp 2, checkpointing": ("llama_tied", 2, {}),
}


@pytest.mark.long(but="all options")
@pytest.mark.parametrize("name", HEADS)
def test_a_cut_head_is_fused(accel, models, tmp_path, name):
    """Ranks exchange no logits. The evaluation counts right labels."""
    family, data_ranks, options = HEADS[name]
    options = {f"model.{key}": value for key, value in options.items()}
    if "checkpointing" in name:
        options["fsdp_config.fsdp_activation_checkpointing"] = True
    (tmp_path / "held_out.txt").write_bytes(train_runs.TEXT.read_bytes()[-2000:])
    evaluation = {"eval_every": 10, "data.eval": {"format": "text", "path": str(tmp_path / "held_out.txt"), "sequence_length": 32}}
    whole = run(accel, tmp_path / "whole", models, family, data_ranks, **{**options, **evaluation, "model.fused_head": "never"})
    cut = run(accel, tmp_path / "cut", models, family, data_ranks, 2, **{**options, **evaluation, "model.fused_head": "always"})
    require_close(cut, whole)
    for key in ("eval_loss", "eval_accuracy"):
        values = train_runs.metrics(tmp_path / "cut", key)
        assert len(values) == 2 and values == pytest.approx(train_runs.metrics(tmp_path / "whole", key), rel=1e-5), key


@pytest.mark.parametrize("data_ranks", [1, 2])
def test_a_norm_whose_gradient_is_not_summed_is_refused(accel, models, tmp_path, data_ranks):
    """Ranks have the gradients of different heads. Nothing else is refused: the other tests have whole parameters as well."""
    config = config_of(tmp_path / "run", models, "qwen3", data_ranks, 2, plan={**LLAMA, **VOCABULARY})
    error = accel("launch", config, code=6).stderr
    assert "_norm.weight', which tensor parallelism does not cut, differs between its ranks" in error
    assert "style replicated_with_grad_allreduce in training.parallel.tp_plan" in error
    assert "the gradient of 'model.layers." in error and "input_layernorm" not in error
    assert not (tmp_path / "run/out/checkpoints").exists() and not train_runs.metrics(tmp_path / "run")


def test_a_sum_of_gradients_that_are_whole_is_refused(accel, models, tmp_path):
    """It would be twice the gradient, on all ranks alike."""
    plan = {**LLAMA, **VOCABULARY, "layers.*.input_layernorm": "replicated_with_grad_allreduce"}
    error = accel("launch", config_of(tmp_path / "run", models, "llama", 1, 2, plan=plan), code=6).stderr
    assert "_layernorm.weight' is the same on the 2 ranks of tensor parallelism, and their sum would be 2 times" in error
    assert "take the style replicated_with_grad_allreduce from its module" in error
    assert not train_runs.metrics(tmp_path / "run")


class Heads(torch.nn.Module):
    """Attention that drops pairs of tokens and, between cut linears of its own, what is whole."""

    def __init__(self, dropout):
        super().__init__()
        # The gradient of a bias of keys is zero but for rounding.
        self.q, self.k, self.v, self.o = (torch.nn.Linear(24, 24, bias=key != "k") for key in "qkvo")
        self.p = dropout
        self.register_buffer("mask", torch.zeros(8))

    def forward(self, x):
        p = self.p if self.training else 0.0
        shape = (x.size(0), x.size(1), -1, 6)
        q, k = self.q(x).view(shape).transpose(1, 2), self.k(x).view(shape).transpose(1, 2)
        v = self.v(torch.nn.functional.dropout(x, p)).view(shape).transpose(1, 2)
        with torch.no_grad():  # How much of the mask of the first head is left in each row.
            kept = torch.nn.functional.scaled_dot_product_attention(q * 0, k * 0, v * 0 + 1, dropout_p=p)
            self.mask.copy_(kept[0, 0, :8, 0])
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.up = torch.nn.Linear(24, 40)
        self.down = torch.nn.Linear(40, 24)
        self.mix = torch.nn.Linear(24, 24)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros(3, 24))
        self.heads = Heads(dropout)

    def forward(self, x):
        y = self.dropout(self.down(torch.tanh(self.up(self.norm(self.heads(x))))))
        with torch.no_grad():  # What a rank has of parameters that are whole, and of an activation.
            self.seen.copy_(torch.stack((self.norm.weight, self.down.bias, y.detach()[0, 0])))
        return x + y + torch.sin(self.mix(y))


class Net(torch.nn.Module):
    """A scripted model with a module for each style."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 24, padding_idx=130)
        self.places = torch.nn.Embedding(32, 24)
        self.blocks = torch.nn.ModuleList([Block(dropout), Block(dropout)])
        self.head = torch.nn.Linear(24, 256)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.size(1), device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


STYLES = {"blocks.*.up": "ColwiseParallel", "blocks.*.down": "RowwiseParallel", "blocks.*.mix": "rowwise_split_input",
          "tokens": "RowwiseParallel", "places": "embedding_colwise", "head": "colwise_gather_output",
          **{f"blocks.*.heads.{name}": "colwise" for name in "qkv"}, "blocks.*.heads.o": "rowwise"}


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("net") / "net.pt"
    torch.jit.script(Net()).save(str(path))
    return path


def net_config(directory, net, data_ranks, tp, steps=STEPS, **options):
    directory.mkdir(exist_ok=True)
    if tp > 1:
        options = {"parallelism_config.tp_size": tp, "parallel.tp_plan": STYLES, **options}
    return train_runs.config(directory, data_ranks * tp, **{"model.path": str(net), "max_steps": steps, "checkpoint.every": steps,
                                                            **options})


def test_every_style_of_a_scripted_model(accel, net, tmp_path):
    """What is whole stays equal on the ranks that share it, bit for bit, without being averaged."""
    accel("launch", net_config(tmp_path / "whole", net, 1, 1))
    accel("launch", net_config(tmp_path / "cut", net, 1, 4))
    whole, cut = result(accel, tmp_path / "whole"), result(accel, tmp_path / "cut")
    require_close(cut, whole)
    seen = {key: value for key, value in cut["weights"].items() if key.endswith("seen")}
    own = read_dcp(tmp_path / f"cut/out/checkpoints/checkpoint_{STEPS}/training_state")
    assert len(seen) == 2
    for key, value in seen.items():
        for rank in (1, 2, 3):
            assert torch.equal(own[f"training.rank_{rank}.buffers.{key}"], value), (key, rank)


def test_ranks_of_a_copy_draw_the_same_numbers_after_a_resume(accel, tmp_path):
    """The ranks with other data have other random numbers in the checkpoint."""
    torch.manual_seed(3)
    torch.jit.script(Net(dropout=0.3)).save(str(tmp_path / "net.pt"))
    accel("launch", net_config(tmp_path / "data", tmp_path / "net.pt", 2, 1, steps=2))
    run = accel("launch", net_config(tmp_path / "cut", tmp_path / "net.pt", 1, 2, steps=4, **{
        "checkpoint.resume": str(tmp_path / "data/out/checkpoints/checkpoint_2")}))
    assert "tensor parallelism has other ranks than in the checkpoint; random numbers" in run.stderr
    require_equal_activations(tmp_path / "cut", result(accel, tmp_path / "cut", 4)["weights"])


def require_equal_activations(directory, weights):
    """Two ranks have equal activations, and equal masks of dropout, but where each has a part of an activation."""
    first = {key: value for key, value in weights.items() if key.endswith(("seen", "mask"))}
    own = read_dcp(directory / "out/checkpoints/checkpoint_4/training_state")
    assert len(first) == 4
    for key, value in first.items():
        assert torch.equal(own[f"training.rank_1.buffers.{key}"], value) == key.endswith("seen"), key


def test_the_masks_of_parts_are_the_same_after_a_resume_and_when_they_are_made_again(accel, tmp_path):
    torch.manual_seed(3)
    torch.jit.script(Net(dropout=0.3)).save(str(tmp_path / "net.pt"))

    def run(name, **options):
        accel("launch", net_config(tmp_path / name, tmp_path / "net.pt", 1, 2, **{"steps": 4, "checkpoint.every": 2, **options}))
        return result(accel, tmp_path / name, 4)

    expected = run("run")
    require_equal_activations(tmp_path / "run", expected["weights"])
    resumed = run("resumed", **{"checkpoint.resume": str(tmp_path / "run/out/checkpoints/checkpoint_2")})
    again = run("again", **{"fsdp_config.fsdp_activation_checkpointing": True,
                            "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Block"})
    assert resumed["loss"] == expected["loss"][2:] and again["loss"] == expected["loss"]
    for key, value in expected["weights"].items():
        assert torch.equal(resumed["weights"][key], value) and torch.equal(again["weights"][key], value), key


@pytest.mark.long(but="llama-1")
@pytest.mark.parametrize("family, shards", [("llama", 1), ("qwen3", 1), ("llama", 2)])
def test_losses_and_weights_equal_those_of_transformers(accel, peer, tmp_path, family, shards):
    """transformers cuts the model by its own plan, and shards it, on as many ranks. test_export_tensor_parallel.py has other
    families."""
    model = tensor_models.export(tmp_path / f"{family}.pt2", family)
    model.save_pretrained(tmp_path / "model")
    ours = run(accel, tmp_path / "run", tmp_path, family, shards, 2, plan={**FAMILIES[family][0], "lm_head": "colwise_gather_output"},
               **tensor_models.JUDGED)
    theirs = tensor_models.train_with_transformers(peer, tmp_path, 2, STEPS, shards)
    assert any("q_proj" in name for name in theirs["cut"]) and any("lm_head" in name for name in theirs["cut"])
    require_close(ours, theirs)


@pytest.mark.long(but="FSDP")
@pytest.mark.parametrize("kind", ["FSDP", "MULTI_CPU"])
def test_bfloat16(accel, net, tmp_path, kind):
    """The sums over ranks are rounded to bfloat16, whose numbers are 2^-8 apart, so that each step may differ by some of that."""
    options = {"mixed_precision": "bf16", "distributed_type": kind, "steps": 10}
    for name, tp in (("whole", 1), ("cut", 2)):
        accel("launch", net_config(tmp_path / name, net, 2, tp, **options))
    whole, cut = result(accel, tmp_path / "whole", 10), result(accel, tmp_path / "cut", 10)
    assert cut["loss"] == pytest.approx(whole["loss"], rel=2e-2)
    assert cut["grad_norm"] == pytest.approx(whole["grad_norm"], rel=0.1)


@pytest.mark.long
def test_a_checkpoint_is_read_at_any_sizes(accel, models, tmp_path):
    """A run of 2 x 2 ranks goes on with other ranks along each axis. torch reads what it wrote, and so does accel."""
    family, half = "qwen3", STEPS // 2
    whole = run(accel, tmp_path / "whole", models, family, 2)
    config = config_of(tmp_path / "cut", models, family, 2, 2, half, **{"lr_scheduler.total_steps": STEPS})
    assert "Tensor parallelism: 16 of 25 parameters are cut among 2 ranks" in accel("check", config).stdout
    accel("launch", config)
    checkpoint = tmp_path / f"cut/out/checkpoints/checkpoint_{half}"
    accel("verify", checkpoint)
    merged = result(accel, tmp_path / "cut", half)["weights"]
    read = read_dcp(checkpoint / "pytorch_model_fsdp_0")
    assert {key.removeprefix("model."): value.shape for key, value in read.items()} == {key: v.shape for key, v in merged.items()}
    for key, value in merged.items():
        assert torch.equal(read[f"model.{key}"], value), key
    optimizer = read_dcp(checkpoint / "optimizer_0")
    for key, value in merged.items():
        assert optimizer[f"optimizer.state.{key}.exp_avg"].shape == value.shape

    for name, data_ranks, tp, options in [
            ("tp 1", 2, 1, {}), ("replicas", 2, 2, {"parallelism_config.dp_replicate_size": 2}),
            ("full", 2, 2, {"fsdp_config.fsdp_state_dict_type": "FULL_STATE_DICT"})]:
        config = config_of(tmp_path / name, models, family, data_ranks, tp, **{"checkpoint.resume": str(checkpoint), **options})
        accel("launch", config)
        resumed = result(accel, tmp_path / name)
        assert resumed["loss"] == pytest.approx(whole["loss"][half:], rel=FLOAT32["loss"]), name
        for key, value in whole["weights"].items():
            torch.testing.assert_close(resumed["weights"][key], value, rtol=0, atol=FLOAT32["weights"])


class Flattened(torch.nn.Module):
    """Views all tokens at once, so that a part of the width becomes a part of the tokens."""

    def __init__(self, sizes):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 24)
        self.up = torch.nn.Linear(24, 32)
        self.down = torch.nn.Linear(32, 24)
        self.head = torch.nn.Linear(24, 256)
        self.sizes = sizes

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        y = torch.tanh(self.up(x).view(self.sizes)).reshape(x.size(0), x.size(1), -1)
        return self.head(x + self.down(y))


class Reading(Flattened):
    """Reads a weight that is cut from outside its module."""

    def __init__(self):
        super().__init__([4, 32, -1, 8])

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        return self.head(x + self.down(self.up(x))) + self.up.weight.sum()


class Packed(torch.nn.Module):
    """A gate and its values in one linear, whose output is cut in the way that `how` says."""

    how: torch.jit.Final[str]

    def __init__(self, how):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 24)
        self.up = torch.nn.Linear(24, 64)
        self.down = torch.nn.Linear(32, 24)
        self.head = torch.nn.Linear(24, 256)
        self.how = how

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        y = self.up(x)
        if self.how == "chunk":
            gate, up = y.chunk(2, -1)
        elif self.how == "activation":
            gate, up = torch.nn.functional.silu(y).chunk(2, -1)
        elif self.how == "slice":
            half = y.size(2) // 2
            gate, up = y[:, :, :half], y[:, :, half:]
        elif self.how == "unflatten":
            gate, up = torch.unflatten(y, -1, [2, -1]).unbind(2)
        else:  # Each gate is a neighbour of its value, which is right for a part.
            gate, up = torch.unflatten(y, -1, [-1, 2]).unbind(-1)
        return self.head(x + self.down(torch.sigmoid(gate) * up))


@pytest.mark.long
def test_what_tensor_parallelism_cannot_do_is_refused(accel, tmp_path):
    rules = {"up": "colwise", "down": "rowwise"}

    def launch(path, plan, code):
        config = train_runs.config(tmp_path, 2, **{
            "model.path": str(path), "output_dir": str(path.with_suffix(".out")), "max_steps": 1,
            "fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "parallelism_config.tp_size": 2,
            **({"parallel.tp_plan": plan} if plan else {})})
        return accel("launch", config, code=code).stderr

    for name, sizes, code in (("flat", [-1, 4, 8], 6), ("heads", [4, 32, 4, 8], 6), ("right", [4, 32, -1, 8], 0)):
        torch.jit.script(Flattened(sizes)).save(str(tmp_path / f"{name}.pt"))
        error = launch(tmp_path / f"{name}.pt", rules, code)
        if name == "flat":
            assert "is [4, 32, 16] on this rank, and the model's code views it as [-1, 4, 8], in which -1 is not the" in error
        if name == "heads":
            assert "a size that the model's code has as a constant must be -1 there" in error
    for how in ("chunk", "activation", "slice", "unflatten", "neighbours"):
        torch.jit.script(Packed(how)).save(str(tmp_path / f"{how}.pt"))
        error = launch(tmp_path / f"{how}.pt", rules, 0 if how == "neighbours" else 6)
        if how != "neighbours":
            assert "is [4, 32, 32] on this rank, and the model's code cuts its last dimension again" in error, how
    assert "needs a plan, and the model file has none" in launch(tmp_path / "right.pt", {}, 2)
    assert "'training.parallel.tp_plan': no module of the model matches 'middle'" in launch(
        tmp_path / "right.pt", {**rules, "middle": "colwise"}, 2)
    torch.jit.script(Reading()).save(str(tmp_path / "reading.pt"))
    assert "cuts 'up.weight', which another module reads" in launch(tmp_path / "reading.pt", rules, 6)
