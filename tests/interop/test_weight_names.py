"""Directories of transformers whose tensors have other names or shapes than the parameters of the model."""

import json
import re
import shutil

import pytest
import torch
import transformers

import train_runs
from accel_export import cli
from accel_export.conversions import Unsupported, conversions_of, names_in
from safetensors.torch import load_file, save_file

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 256, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES = {
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen3_moe": {**EXPERTS, "num_experts": 12, "head_dim": 8},
    "deepseek_v3": {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
                    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    "granitemoe": {"num_local_experts": 4},
    "jamba": {"num_experts": 4, "use_mamba_kernels": False},
    "gpt_neox": {},
    "nemotron_h": {**EXPERTS, "layers_block_type": ["mamba", "attention", "moe", "mamba"], "num_hidden_layers": 4,
                   "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "head_dim": 8, "n_routed_experts": 4,
                   "moe_shared_expert_intermediate_size": 16, "n_groups": 1, "chunk_size": 16},
}


def model_of(family, seed=0):
    """A model with random values in all parameters, so that a mix-up shows."""
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **FAMILIES.get(family, {})})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


class Outline(torch.nn.Module):
    """The parameters and buffers of a model under their names, and a forward that any of them can have."""

    def __init__(self, model):
        super().__init__()
        persistent = set(model.state_dict())
        made = {}  # A tied parameter is one tensor with several names.
        for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
            if name not in persistent:
                continue
            *path, last = name.split(".")
            owner = self
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, torch.nn.Module())
                owner = getattr(owner, part)
            if isinstance(tensor, torch.nn.Parameter):
                made.setdefault(tensor, torch.nn.Parameter(torch.zeros_like(tensor)))
                owner.register_parameter(last, made[tensor])
            else:
                owner.register_buffer(last, torch.zeros_like(tensor))

    def forward(self, input_ids):
        total = sum(parameter.sum() for parameter in self.parameters()) * 0
        return torch.zeros(*input_ids.shape, SIZES["vocab_size"]) + total


def export(model, path, names=None):
    traced = torch.jit.trace(Outline(model), (torch.zeros(2, 4, dtype=torch.long),), check_trace=False)
    notes = {"layer_classes": [], "weight_conversions": conversions_of(model, names)}
    torch.jit.save(traced, str(path), _extra_files={"accel.json": json.dumps(notes)})
    return notes["weight_conversions"]


def launch(accel, directory, weights, processes=2, code=0, **training):
    """Trains for a step with a learning rate of 0, so that the weights stay as they were loaded."""
    config = train_runs.config(directory, processes, **{
        "max_steps": 1, "model": {"path": str(directory / "model.pt"), "weights": str(weights), **training.pop("model", {})},
        "optimizer.lr": 0, "optimizer.weight_decay": 0, "lr_scheduler": {"type": "constant"},
        "checkpoint": {"every": 1, "resume": "none"},
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"}, **training})
    return accel("launch", config, code=code)


def loaded(accel, directory):
    accel("merge-weights", directory / "out/checkpoints", directory / "merged", "--keep-tied", "--module-names")
    return load_file(directory / "merged/model.safetensors")


def state_of(directory):
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_equal(found, model):
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.long(but="mixtral")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_goes_in_and_comes_out(accel, tmp_path, family):
    """The weights are those of from_pretrained, and merge-weights writes the tensors of the directory."""
    model = model_of(family)
    model.save_pretrained(tmp_path / "hf", max_shard_size="40KB")
    conversions = export(model, tmp_path / "model.pt")
    assert conversions
    launch(accel, tmp_path, tmp_path / "hf", processes=3 if family == "mixtral" else 2,
           model={"broadcast_from_rank0": family == "jamba"})
    judge = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert_equal(loaded(accel, tmp_path), judge)
    accel("load", tmp_path / "hf", "--into", tmp_path / "model.pt", "--out", tmp_path / "loaded.pt")
    assert_equal(torch.jit.load(tmp_path / "loaded.pt").state_dict(), judge)

    accel("merge-weights", tmp_path / "out/checkpoints", tmp_path / "back", "--copy-assets", tmp_path / "hf", "--verify")
    original, back = state_of(tmp_path / "hf"), state_of(tmp_path / "back")
    assert back.keys() == original.keys()
    for name, tensor in original.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name
    again, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_equal(again.state_dict(), judge)
    # The names do not depend on what is copied, nor on how the source and the output are named.
    run, step = tmp_path / "out", tmp_path / "out/checkpoints/checkpoint_1"
    for number, words in enumerate([(run, "--no-assets"), (step,), (step / "pytorch_model_fsdp_0",)]):
        accel("merge-weights", *words[:1], tmp_path / f"other-{number}.safetensors", *words[1:])
        other = load_file(tmp_path / f"other-{number}.safetensors")
        assert other.keys() == original.keys() and all(torch.equal(other[name], original[name]) for name in original), words
    # transformers loads the names of the model, too.
    shutil.copy(tmp_path / "hf/config.json", tmp_path / "merged")
    assert_equal(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict(), judge)


@pytest.mark.long(but="mixtral")
@pytest.mark.parametrize("family", ["mixtral", "nemotron_h"])
def test_names_of_the_model_are_weights_too(accel, tmp_path, family):
    model = model_of(family)
    export(model, tmp_path / "model.pt")
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path / "weights.safetensors")
    launch(accel, tmp_path, tmp_path / "weights.safetensors")
    assert_equal(loaded(accel, tmp_path), model)


@pytest.mark.long(but="True")
@pytest.mark.parametrize("is_headless", [False, True])
def test_old_names_of_a_directory(accel, tmp_path, is_headless):
    """LayerNorm.gamma and .beta are names of the first BERT. A directory of BertModel has no prefix `bert.`."""
    model = model_of("bert")
    model.save_pretrained(tmp_path / "hf")
    state = load_file(tmp_path / "hf/model.safetensors")
    old = {re.sub("LayerNorm.weight$", "LayerNorm.gamma", re.sub("LayerNorm.bias$", "LayerNorm.beta", name)): tensor
           for name, tensor in state.items()}
    if is_headless:
        old = {name.removeprefix("bert."): tensor for name, tensor in old.items()}
    save_file(old, tmp_path / "hf/model.safetensors", metadata={"format": "pt"})
    conversions = export(model, tmp_path / "model.pt", names=names_in(tmp_path / "hf"))
    assert {"name": "bert.embeddings.LayerNorm.weight",
            "from": ("" if is_headless else "bert.") + "embeddings.LayerNorm.gamma"} in conversions
    launch(accel, tmp_path, tmp_path / "hf")
    assert_equal(loaded(accel, tmp_path), transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf"))


def test_what_a_rename_maps(accel, tmp_path):
    """The patterns apply one after another, before the conversions of the model file."""
    model = model_of("mixtral")
    model.save_pretrained(tmp_path / "hf")
    export(model, tmp_path / "model.pt")
    state = load_file(tmp_path / "hf/model.safetensors")
    other = {f"net.{name.replace('model.layers.', 'blocks/')}": tensor for name, tensor in state.items()}
    save_file(other, tmp_path / "weights.safetensors")
    rename = {"^net\\.": None, "blocks/(\\d+)\\.": "model.layers.\\1."}
    launch(accel, tmp_path, tmp_path / "weights.safetensors", model={"rename": rename})
    assert_equal(loaded(accel, tmp_path), model)
    resolved = json.loads((tmp_path / "out/config.resolved.json").read_text())
    assert resolved["training"]["model"]["rename"][1] == {"pattern": "blocks/(\\d+)\\.", "replacement": "model.layers.\\1."}

    shutil.rmtree(tmp_path / "out")
    for wrong, said in (({**rename, "gamma": "weight"}, "training.model.rename: the pattern 'gamma' is found in no name"),
                        ({**rename, "layers\\.1": "layers.0"}, "would both be called 'model.layers.0"),
                        ({**rename, "(": "weight"}, "the pattern '(' is not valid"),
                        ({**rename, "net": "\\1"}, "the replacement '\\1' of the pattern 'net' is not valid")):
        assert said in launch(accel, tmp_path, tmp_path / "weights.safetensors", code=None, model={"rename": wrong}).stderr
    assert "'training.model.rename' has no effect without 'training.model.weights'" in launch(
        accel, tmp_path, "", code=2, model={"weights": None, "rename": rename}).stderr


@pytest.mark.long
@pytest.mark.parametrize("out", ["model.pt2", "model.pt"])
def test_a_training_of_experts_goes_on_and_is_exported(accel, accel_path, tmp_path, out):
    """The structure is exported, trained with the weights of the directory, interrupted and trained on. Each step has the
    loss of the model in Python."""
    model = model_of("qwen3_moe").eval()
    model.save_pretrained(tmp_path / "hf")
    cli.main([str(tmp_path / "hf"), str(tmp_path / out), "--accel", str(accel_path)])
    wrap = {"fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    training = {"max_steps": 2, "model": {"path": str(tmp_path / out)}, "optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0}, "max_grad_norm": None,
                "checkpoint": {"every": 1, "resume": "auto", "export": "safetensors"}, "data.shuffle": False, **wrap}
    launch(accel, tmp_path, tmp_path / "hf", processes=2, **{**training, "max_steps": 1})
    launch(accel, tmp_path, tmp_path / "hf", processes=2, **training)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    tokens = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    windows = torch.stack([tokens[i:i + 33] for i in range(0, 32 * 16, 32)])
    losses = []
    for batch in windows.split(8):
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, rel=1e-5)
    exported = state_of(tmp_path / "out/export")
    assert exported.keys() == state_of(tmp_path / "hf").keys()
    trained = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out/export").state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.allclose(trained[name], tensor, atol=1e-4), name


def test_what_does_not_fit_is_named(accel, tmp_path):
    model = model_of("mixtral")
    model.save_pretrained(tmp_path / "hf")
    export(model, tmp_path / "model.pt")
    state = load_file(tmp_path / "hf/model.safetensors")
    experts = "model.layers.1.block_sparse_moe.experts"

    def said(**changed):
        kept = {name: tensor for name, tensor in {**state, **changed}.items() if tensor is not None}
        save_file(kept, tmp_path / "weights.safetensors")
        result = launch(accel, tmp_path, tmp_path / "weights.safetensors", code=None)
        assert result.returncode != 0
        return result.stderr

    assert (f"'model.layers.1.mlp.experts.gate_up_proj' is made of 6 tensors, of which '{experts}.2.w1.weight' is missing"
            in said(**{f"{experts}.2.w1.weight": None}))
    assert (f"'{experts}.0.w2.weight', a part of 'model.layers.1.mlp.experts.down_proj', is [32, 47], which does not contain"
            in said(**{f"{experts}.0.w2.weight": torch.zeros(32, 47)}))
    assert f"'{experts}.1.w2.weight', a part of" in said(**{f"{experts}.1.w2.weight": torch.zeros(32, 48).half()})
    fused = model.state_dict()["model.layers.0.mlp.experts.down_proj"].clone()
    assert "has a tensor 'model.layers.0.mlp.experts.down_proj' beside those of which it would be made" in said(
        **{"model.layers.0.mlp.experts.down_proj": fused})


def test_a_conversion_that_is_no_box_is_refused(monkeypatch):
    from transformers import core_model_loading as loading
    from transformers import conversion_mapping as mapping
    monkeypatch.setattr(mapping, "get_checkpoint_conversion_mapping", lambda name: [
        loading.WeightConverter("q_proj.weight", "q_proj.weight", [loading.PermuteForRope()])] if name == "llama" else None)
    with pytest.raises(Unsupported, match="q_proj.weight"):
        conversions_of(model_of("llama"))


def test_code_of_another_release_is_refused(monkeypatch):
    from transformers import conversion_mapping as mapping

    def other(*arguments, **options):
        raise AttributeError("no such attribute")

    monkeypatch.setattr(mapping, "get_model_conversion_mapping", other)
    with pytest.raises(Unsupported, match="in a way that is not known .no such attribute"):
        conversions_of(model_of("llama"), {"model.norm.weight"})


def test_releases_that_do_not_note_what_was_used_give_the_same(tmp_path, monkeypatch):
    from transformers import core_model_loading as loading
    model = model_of("mixtral")
    model.save_pretrained(tmp_path)
    expected = conversions_of(model, names_in(tmp_path))
    assert expected
    monkeypatch.delattr(loading.WeightTransform, "was_used")
    assert conversions_of(model, names_in(tmp_path)) == expected
