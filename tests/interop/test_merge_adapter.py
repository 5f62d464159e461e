"""An adapter that accel merges into its base, beside PEFT's merge_and_unload()."""

import json
import pathlib
import shutil

import accel_export
import numpy
import pytest
import torch
import train_runs
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

# The sizes differ, so that no transposition is hidden, and one does not divide the columns that accel sums together.
LLAMA = {"hidden_size": 24, "intermediate_size": 300, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 320, "max_position_embeddings": 64, "attention_bias": True}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64}
QV = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"]}


def model_of(family: str, dtype: torch.dtype):
    torch.manual_seed(0)
    if family == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).to(dtype)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).to(dtype)


def write_adapter(base, config: LoraConfig, directory: pathlib.Path, exact: bool = True) -> None:
    """Writes an adapter with values that are not those it begins with. If they are `exact`, multiples of 1/4 of few bits,
    float32 has the sums of their products exactly, in any order."""
    model = get_peft_model(base, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randint(-3, 4, parameter.shape) / 4 if exact else torch.randn(parameter.shape))
            elif parameter.requires_grad:
                parameter.normal_()
    model.save_pretrained(directory)


def merged_by_peft(directory: pathlib.Path, base: str = "base", adapter: str = "adapter") -> dict[str, torch.Tensor]:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory / base, dtype="auto")
    PeftModel.from_pretrained(model, directory / adapter).merge_and_unload().save_pretrained(directory / "theirs")
    return load_file(directory / "theirs/model.safetensors")


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name


CONFIGS = {
    "plain": ("llama", QV),
    "rslora": ("llama", {**QV, "use_rslora": True}),
    "patterns": ("llama", {**QV, "rank_pattern": {"v_proj": 8}, "alpha_pattern": {"layers.1.self_attn.q_proj": 3, "^model.*v_proj": 5}}),
    "embedding": ("llama", {**QV, "target_modules": ["embed_tokens", "down_proj"]}),
    "head": ("llama", {**QV, "target_modules": ["lm_head", "up_proj"]}),
    "modules_to_save": ("llama", {**QV, "modules_to_save": ["lm_head", "embed_tokens"]}),
    "all biases": ("llama", {**QV, "bias": "all"}),
    "biases of LoRA": ("llama", {**QV, "bias": "lora_only"}),
    "Conv1D": ("gpt2", {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "square Conv1D": ("gpt2", {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": r".*attn\.c_proj"}),
}


@pytest.mark.parametrize(("kind", "dtype"), [
    *((kind, "bfloat16") for kind in CONFIGS), *((kind, "float32") for kind in ("rslora", "embedding", "Conv1D", "modules_to_save")),
    ("embedding", "float16")])
def test_the_weights_are_those_of_peft_bit_for_bit(accel, tmp_path, kind, dtype):
    family, options = CONFIGS[kind]
    base = model_of(family, getattr(torch, dtype))
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**options), tmp_path / "adapter")
    if dtype == "bfloat16":  # Some trainers write it like this.
        halves = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(tmp_path / "adapter/adapter_model.safetensors").items()}
        save_file(halves, tmp_path / "adapter/adapter_model.safetensors", metadata={"format": "pt"})
    said = accel("--json", "merge-weights", "base", "ours", "--adapter", "adapter")
    assert_same(load_file(tmp_path / "ours/model.safetensors"), merged_by_peft(tmp_path))
    assert json.loads(said.stdout)["assets"] == ["config.json", "generation_config.json"]

    ids = torch.arange(40).reshape(2, 20)
    ours, theirs = (transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto").eval() for name in ("ours", "theirs"))
    began = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype="auto").eval()
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
        assert not torch.equal(ours(ids).logits, began(ids).logits)


def test_sums_that_are_rounded_are_within_their_bound(accel, tmp_path):
    """accel sums in float64 and rounds once, PEFT rounds each of up to `rank` partial sums in float32."""
    base = model_of("llama", torch.float32)
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**{**QV, "r": 16, "target_modules": ["q_proj", "down_proj"]}), tmp_path / "adapter", exact=False)
    accel("merge-weights", "base", "ours", "--adapter", "adapter")
    ours, theirs = load_file(tmp_path / "ours/model.safetensors"), merged_by_peft(tmp_path)
    began, adapter = load_file(tmp_path / "base/model.safetensors"), load_file(tmp_path / "adapter/adapter_model.safetensors")
    changed = 0
    for name, tensor in ours.items():
        part = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{part}.lora_A.weight" not in adapter:
            assert torch.equal(tensor, began[name])
            continue
        changed += 1
        a, b = (adapter[f"{part}.lora_{factor}.weight"].double() for factor in "AB")
        exact = began[name].double() + 7 / 16 * (b @ a)
        unit = numpy.finfo(numpy.float32).eps / 2
        # One rounding each of the sum, the scaling, the product with it, and the result.
        bound = unit * (3.01 * (7 / 16 * (b @ a)).abs() + exact.abs())
        assert ((tensor.double() - exact).abs() <= bound).all(), name
        assert ((tensor - theirs[name]).double().abs() <= 2 * bound + 16.01 * unit * 7 / 16 * (b.abs() @ a.abs())).all(), name
    assert changed == 4


def test_a_sharded_base_stays_sharded(accel, tmp_path):
    base = model_of("llama", torch.bfloat16)
    base.save_pretrained(tmp_path / "base", max_shard_size="30KB")
    write_adapter(base, LoraConfig(**QV), tmp_path / "adapter")
    accel("merge-weights", "base", "ours", "--adapter", "adapter")
    ours, began = (json.loads((tmp_path / name / "model.safetensors.index.json").read_text()) for name in ("ours", "base"))
    assert ours == began and len(set(began["weight_map"].values())) > 2
    for file in sorted(set(began["weight_map"].values())):
        assert load_file(tmp_path / "ours" / file).keys() == load_file(tmp_path / "base" / file).keys()
    tensors = {name: tensor for file in set(ours["weight_map"].values()) for name, tensor in load_file(tmp_path / "ours" / file).items()}
    assert_same(tensors, merged_by_peft(tmp_path))
    # In one file if it may be as large, and as a file of its own.
    accel("merge-weights", "base", "one", "--adapter", "adapter", "--max-shard-size", "1GB", "--threads", 1, "--max-memory", "16MB")
    assert_same(load_file(tmp_path / "one/model.safetensors"), tensors)
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")


def test_names_that_a_base_has_without_the_name_of_the_model(accel, tmp_path):
    """The files of GPT-2 have 'h.0' for 'transformer.h.0'. A model without a head is the other way round."""
    base = model_of("gpt2", torch.float32)
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**CONFIGS["Conv1D"][1]), tmp_path / "adapter")
    theirs = merged_by_peft(tmp_path)
    shutil.copytree(tmp_path / "base", tmp_path / "short")
    short = {name.removeprefix("transformer."): tensor for name, tensor in load_file(tmp_path / "base/model.safetensors").items()}
    save_file(short, tmp_path / "short/model.safetensors", metadata={"format": "pt"})
    accel("merge-weights", "short", "ours", "--adapter", "adapter")
    ours = load_file(tmp_path / "ours/model.safetensors")
    assert_same({f"transformer.{name}": tensor for name, tensor in ours.items()}, theirs)

    headless = transformers.GPT2Model.from_pretrained(tmp_path / "base")
    options = {key: value for key, value in CONFIGS["Conv1D"][1].items() if key != "task_type"}
    write_adapter(headless, LoraConfig(**options), tmp_path / "headless")
    assert "base_model.model.h.0.attn.c_attn.lora_A.weight" in load_file(tmp_path / "headless/adapter_model.safetensors")
    accel("merge-weights", "base", "other", "--adapter", "headless")
    assert_same(load_file(tmp_path / "other/model.safetensors"), theirs)


def test_the_adapter_of_a_run(accel, tmp_path):
    base = model_of("llama", torch.float32)
    base.save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    model = get_peft_model(base, LoraConfig(**QV, modules_to_save=["lm_head"], lora_dropout=0.0))
    model.config.use_cache = False
    accel_export.export(model, {"input_ids": torch.arange(32).reshape(2, 16)}, tmp_path / "model.pt")
    config = train_runs.config(tmp_path, **{
        "model.path": str(tmp_path / "model.pt"), "data.train.sequence_length": 16, "max_steps": 4, "lr_scheduler": {"type": "constant"},
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "optimizer.lr": 1e-2,
        "checkpoint": {"every": 2, "adapter_only": True, "adapter_names": ["lora_", "modules_to_save"], "export": "safetensors"}})
    accel("launch", config)
    accel("merge-weights", "base", "ours", "--adapter", "out")
    ours = load_file(tmp_path / "ours/model.safetensors")
    shutil.copytree(tmp_path / "out/export", tmp_path / "adapter")
    theirs = merged_by_peft(tmp_path)
    began = load_file(tmp_path / "base/model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-7)
    changed = {name for name in ours if not torch.equal(ours[name], began[name])}
    assert changed == {name for name in began if "q_proj.weight" in name or "v_proj.weight" in name} | {"lm_head.weight"}
    for adapter in ("out/checkpoints/checkpoint_4", "out/export", "out/export/adapter_model.safetensors"):
        accel("merge-weights", "base", "again", "--adapter", adapter, "--force")
        assert_same(load_file(tmp_path / "again/model.safetensors"), ours)
    accel("merge-weights", "base", "earlier", "--adapter", "out", "--step", 2)
    assert not torch.equal(load_file(tmp_path / "earlier/model.safetensors")["lm_head.weight"], ours["lm_head.weight"])


@pytest.fixture
def plain(tmp_path):
    """A base and its adapter in tmp_path."""
    base = model_of("llama", torch.float32)
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**QV), tmp_path / "adapter")
    return tmp_path


def refused(accel, directory, what, code=1, *flags):
    said = accel("merge-weights", "base", "ours", "--adapter", "adapter", *flags, code=code).stderr
    assert what in said, said
    assert not (directory / "ours").exists()
    return said


OTHER_CONFIGS = {
    "dora": (LoraConfig(**QV, use_dora=True), "use_dora = true"),
    "bias of the adapter": (LoraConfig(**QV, lora_bias=True), "lora_bias = true"),
    "tokens": (LoraConfig(**QV, trainable_token_indices=[1, 2]), "trainable_token_indices = [1,2]"),
    "pissa": (LoraConfig(**QV, init_lora_weights="pissa"), "init_lora_weights is 'pissa'"),
    "layers twice": (LoraConfig(**QV, layer_replication=[(0, 2), (1, 2)]), "layer_replication"),
}


@pytest.mark.parametrize("kind", OTHER_CONFIGS)
def test_what_is_not_plain_lora_is_refused_by_name(accel, tmp_path, kind):
    config, what = OTHER_CONFIGS[kind]
    base = model_of("llama", torch.float32)
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, config, tmp_path / "adapter")
    assert "merge_and_unload()" in refused(accel, tmp_path, what)


def test_an_unknown_setting_is_refused(accel, plain):
    path = plain / "adapter/adapter_config.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "a_new_kind": {"of": "LoRA"}, "a_new_list": [], "a_new_flag": False}))
    refused(accel, plain, 'the adapter has the setting a_new_kind = {"of":"LoRA"}')
    path.write_text(json.dumps({**known, "a_new_list": [], "a_new_flag": False}))
    accel("merge-weights", "base", "ours", "--adapter", "adapter")


@pytest.mark.parametrize("how", ["another base", "one matrix", "a magnitude", "another rank", "no configuration", "a wrong flag"])
def test_what_does_not_fit_is_refused(accel, plain, how):
    file, config = plain / "adapter/adapter_model.safetensors", plain / "adapter/adapter_config.json"
    tensors, settings = load_file(file), json.loads(config.read_text())
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    code, what = 1, ""
    if how == "another base":
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, "hidden_size": 16})).save_pretrained(plain / "base")
        what = "the weight of 'model.layers.0.self_attn.q_proj' is [16, 16] in the base"
    elif how == "one matrix":
        tensors.pop(f"{layer}.lora_B.weight")
        code, what = 4, "one of the two matrices of 'model.layers.0.self_attn.q_proj' alone"
    elif how == "a magnitude":
        tensors[f"{layer}.lora_magnitude_vector"] = torch.ones(24)
        what = f"'{layer}.lora_magnitude_vector' of the adapter is not one of plain LoRA"
    elif how == "another rank":
        settings["r"] = 8
        what = "have the rank 4, but adapter_config.json says 8"
    elif how == "no configuration":
        config.rename(plain / "elsewhere.json")
        settings, code, what = None, 4, "has no adapter_config.json, which says how the adapter is scaled"
    else:  # q_proj is square; v_proj is not, and shows that the flag is wrong.
        settings["fan_in_fan_out"] = True
        what = "it cannot be told whether the square weight of 'model.layers.0.self_attn.q_proj' is transposed: " \
               "adapter_config.json says fan_in_fan_out = true of the layer that was wrapped last, and " \
               "'model.layers.1.self_attn.v_proj' is not transposed"
    save_file(tensors, file, metadata={"format": "pt"})
    if settings is not None:
        config.write_text(json.dumps(settings))
    refused(accel, plain, what, code)


def test_a_tensor_without_a_place_is_refused(accel, tmp_path):
    """A tied head is not in the files of the base, and a head that the adapter trains is another one."""
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**QV, modules_to_save=["lm_head"]), tmp_path / "adapter")
    said = refused(accel, tmp_path, "has no tensor 'lm_head.weight', which the adapter changes")
    assert "save the base with an untied head first" in said


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_a_tied_pair_that_the_base_has_twice_is_not_changed_in_part(accel, tmp_path, target):
    """PEFT adds to the tensor that embedding and head share; in a file one of two tensors would keep its values."""
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**{**QV, "target_modules": [target, "q_proj"]}), tmp_path / "adapter")
    theirs = merged_by_peft(tmp_path)
    began = load_file(tmp_path / "base/model.safetensors")
    assert "lm_head.weight" not in began and not torch.equal(theirs["model.embed_tokens.weight"], began["model.embed_tokens.weight"])
    twice = {**began, "lm_head.weight": began["model.embed_tokens.weight"].clone()}
    save_file(twice, tmp_path / "base/model.safetensors", metadata={"format": "pt"})
    assert_same(merged_by_peft(tmp_path), theirs)
    name, other = ("lm_head.weight", "model.embed_tokens.weight")[::1 if target == "lm_head" else -1]
    refused(accel, tmp_path, f"the adapter changes '{name}', which is tied to '{other}' in the base (tie_word_embeddings)")

    # It is not refused for other layers, nor if the configuration does not tie them.
    write_adapter(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), LoraConfig(**QV), tmp_path / "other")
    accel("merge-weights", "base", "ours", "--adapter", "other")
    assert load_file(tmp_path / "ours/model.safetensors").keys() == twice.keys()
    config = tmp_path / "base/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": False}))
    accel("merge-weights", "base", "untied", "--adapter", "adapter")
    assert_same(load_file(tmp_path / "untied/model.safetensors"), merged_by_peft(tmp_path))


def logits_of(model):
    with torch.no_grad():
        return model.eval()(torch.arange(40).reshape(2, 20)).logits


TIED = {
    "modules_to_save": {"modules_to_save": ["embed_tokens"]},
    "LoRA": {"target_modules": ["embed_tokens", "q_proj"]},
    "both saved": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "both LoRA": {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
}


@pytest.mark.parametrize("written", [True, False])  # Gemma and GPT-2 do not write tie_word_embeddings: it is the default.
@pytest.mark.parametrize("kind", TIED)
def test_the_one_tensor_of_a_tied_base_is_changed_for_both_or_not_at_all(accel, tmp_path, kind, written):
    """In training the head keeps the old values unless PEFT ties the changes, and a file has one tensor for both."""
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**{**QV, **TIED[kind]}), tmp_path / "adapter")
    began = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = logits_of(PeftModel.from_pretrained(began, tmp_path / "adapter"))
    config = tmp_path / "base/config.json"
    settings = json.loads(config.read_text())
    if not written:
        del settings["tie_word_embeddings"]
        config.write_text(json.dumps(settings))
    if "both" not in kind:
        said = refused(accel, tmp_path, "the adapter changes 'model.embed_tokens.weight', which is tied to the head in the base")
        assert "save the base with a head of its own" in said
        untied = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", tie_word_embeddings=True)
        untied.config.tie_word_embeddings = False
        untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.clone())
        untied.save_pretrained(tmp_path / "base")
    accel("merge-weights", "base", "ours", "--adapter", "adapter")
    (tmp_path / "ours/config.json").write_text(json.dumps({**json.loads((tmp_path / "ours/config.json").read_text()),
                                                           "tie_word_embeddings": "both" in kind}))
    ours = logits_of(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours"))
    torch.testing.assert_close(ours, adapted, rtol=1e-3, atol=1e-4)
    assert (ours - logits_of(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"))).abs().max() > 0.1


def test_changes_of_a_tied_pair_that_differ_are_refused(accel, tmp_path):
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**QV, modules_to_save=["embed_tokens", "lm_head"]), tmp_path / "adapter")
    refused(accel, tmp_path, "does not change both alike")


@pytest.mark.parametrize("kind", ["NaN in a factor", "overflow of float16", "NaN in a replacement", "replacement beyond float16"])
def test_numbers_that_are_not_finite_are_refused(accel, tmp_path, kind):
    base = model_of("llama", torch.float16)
    base.save_pretrained(tmp_path / "base")
    write_adapter(base, LoraConfig(**QV, modules_to_save=["lm_head"]), tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    tensors = {name: tensor.float() for name, tensor in load_file(file).items()}
    name = "lm_head.weight" if "replacement" in kind else "model.layers.1.self_attn.v_proj.lora_B.weight"
    tensors[f"base_model.model.{name}"].view(-1)[-1] = float("nan") if "NaN" in kind else 1e5 if "replacement" in kind else 1e9
    save_file(tensors, file, metadata={"format": "pt"})
    said = refused(accel, tmp_path, "not finite in float16" if "replacement" not in kind else "of the adapter is", 5)
    assert name.split(".lora")[0] in said


def test_files_that_are_links_have_the_configuration_beside_the_link(accel, plain):
    """The Hugging Face cache has the files of all revisions in one directory, and links to them."""
    accel("merge-weights", "base", "files", "--adapter", "adapter")
    settings = json.loads((plain / "adapter/adapter_config.json").read_text())
    (plain / "blobs").mkdir()
    for file in [*(plain / "adapter").iterdir()]:
        file.rename(plain / f"blobs/of_{file.name}")
        file.symlink_to(plain / f"blobs/of_{file.name}")
    for beside_the_target in (None, {**settings, "lora_alpha": settings["lora_alpha"] * 10}):
        if beside_the_target:
            (plain / "blobs/adapter_config.json").write_text(json.dumps(beside_the_target))
        accel("merge-weights", "base", "links", "--adapter", "adapter", "--force")
        assert_same(load_file(plain / "links/model.safetensors"), load_file(plain / "files/model.safetensors"))
        accel("merge-weights", "adapter", "copied", "--force")
        assert json.loads((plain / "copied/adapter_config.json").read_text()) == settings


def test_the_metadata_of_the_base_is_kept(accel, plain):
    base = plain / "base/model.safetensors"
    save_file(load_file(base), base, metadata={"format": "pt", "origin": "a card"})
    accel("merge-weights", "base", "ours", "--adapter", "adapter")
    with safe_open(plain / "ours/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "origin": "a card"}
    # A configuration of an adapter in the base's directory would make transformers take the model for one.
    shutil.copy(plain / "adapter/adapter_config.json", plain / "base")
    for flags in ((), ("--copy-assets", "base")):
        accel("merge-weights", "base", "again", "--adapter", "adapter", "--force", *flags)
        assert (plain / "again/config.json").exists() and not (plain / "again/adapter_config.json").exists()


WRONG_NUMBERS = {
    "no rank": ({"rank_pattern": {"q_proj": 0}}, "'q_proj' of 'rank_pattern' is 0, not a positive whole number"),
    "a negative rank": ({"rank_pattern": {"q_proj": -4}}, "'q_proj' of 'rank_pattern' is -4, not a positive whole number"),
    "a part of a rank": ({"r": 4.5, "rank_pattern": {"q_proj": 4, "v_proj": 4}}, "'r' is 4.5, not a positive whole number"),
    "a large alpha": ({"alpha_pattern": {"q_proj": 1e300}}, "'q_proj' of 'alpha_pattern' is 1e+300, which is not finite in float32"),
    "a larger alpha": ({"lora_alpha": 1e39}, "'lora_alpha' is 1e+39, which is not finite in float32"),
}


@pytest.mark.parametrize("kind", WRONG_NUMBERS)
def test_ranks_and_alphas_without_a_finite_scaling_are_refused(accel, plain, kind):
    """PEFT refuses a rank that is not positive, and a scaling that float32 does not have gives weights that are not finite."""
    settings, what = WRONG_NUMBERS[kind]
    file, config = plain / "adapter/adapter_model.safetensors", plain / "adapter/adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))
    if kind == "no rank":  # The matrices have that rank.
        tensors = load_file(file)
        for name in [name for name in tensors if "q_proj" in name]:
            tensors[name] = torch.zeros((0, 24) if "lora_A" in name else (24, 0))
        save_file(tensors, file, metadata={"format": "pt"})
    if "alpha" in kind:
        assert not all(tensor.isfinite().all() for tensor in merged_by_peft(plain).values())
    elif kind != "a part of a rank":
        with pytest.raises(ValueError, match="positive integer"):
            merged_by_peft(plain)
    refused(accel, plain, what, 5)


def test_the_first_pattern_of_the_file_counts(accel, plain):
    """PEFT writes patterns sorted, but people who edit the file do not."""
    config = plain / "adapter/adapter_config.json"
    patterns = {"v_proj": 5, "layers.1.self_attn.v_proj": 3, "q_proj": -2}
    config.write_text(json.dumps({**json.loads(config.read_text()), "alpha_pattern": patterns}))
    accel("merge-weights", "base", "ours", "--adapter", "adapter")
    assert_same(load_file(plain / "ours/model.safetensors"), merged_by_peft(plain))


@pytest.mark.parametrize("how", ["a matrix", "a replacement", "a base layer"])
def test_two_tensors_for_one_place_are_refused(accel, plain, how):
    """Names that differ in their first component alone may both be those of one tensor of the base."""
    file, layer = plain / "adapter/adapter_model.safetensors", "layers.0.self_attn.q_proj"
    tensors = load_file(file)
    if how == "a matrix":
        tensors.update({f"base_model.model.decoder.{layer}.lora_{part}.weight": tensors[f"base_model.model.model.{layer}.lora_{part}.weight"] + 1
                        for part in "AB"})
        what = f"'decoder.{layer}' and 'model.{layer}' of the adapter both change '{layer}.weight' of the base"
        save_file({name.removeprefix("model."): tensor for name, tensor in load_file(plain / "base/model.safetensors").items()},
                  plain / "base/model.safetensors", metadata={"format": "pt"})
    else:
        names = ("norm.weight", "model.norm.weight") if how == "a replacement" else ("model.norm.weight", "model.norm.base_layer.weight")
        tensors.update({f"base_model.model.{name}": torch.full((24,), float(i)) for i, name in enumerate(names)})
        what = ("'model.norm.weight' and 'norm.weight' of the adapter both change 'model.norm.weight'" if how == "a replacement" else
                "the adapter has the tensor 'model.norm.weight' twice")
    save_file(tensors, file, metadata={"format": "pt"})
    refused(accel, plain, what)


@pytest.mark.parametrize("flags", [("--verify",), ("--dtype", "bf16"), ("--rename", "a=b"), ("--step", "3")])
def test_options_of_other_merges_are_refused(accel, plain, flags):
    refused(accel, plain, flags[0], 2, *flags)


def test_the_base_and_the_adapter_are_never_replaced(accel, plain):
    before = {path: path.read_bytes() for path in (*(plain / "base").iterdir(), *(plain / "adapter").iterdir())}
    for output in ("base", "adapter"):
        said = accel("merge-weights", "base", output, "--adapter", "adapter", "--force", code=2).stderr
        assert f"the output '{output}' is the directory of" in said
    said = accel("merge-weights", "base", "base/model.safetensors", "--adapter", "adapter", "--force", code=2).stderr
    assert "of which it is made" in said or "is made from it" in said
    assert before == {path: path.read_bytes() for path in before}
    accel("merge-weights", "base", "file.safetensors", "--adapter", "adapter")
    assert_same(load_file(plain / "file.safetensors"), merged_by_peft(plain))


def test_no_file_of_the_base_or_the_adapter_is_replaced_by_name(accel, tmp_path):
    """A file as OUT may be a shard of the base, the only copy of the adapter, or a link to one of them."""
    base = model_of("llama", torch.float32)
    base.save_pretrained(tmp_path / "base", max_shard_size="60KB")
    write_adapter(base, LoraConfig(**QV), tmp_path / "adapter")
    (tmp_path / "link").symlink_to("adapter")
    shards = sorted(path.name for path in (tmp_path / "base").glob("*.safetensors"))
    assert len(shards) > 1
    before = {path: path.read_bytes() for path in (*(tmp_path / "base").iterdir(), *(tmp_path / "adapter").iterdir())}
    outputs = ["adapter/adapter_model.safetensors", "link/adapter_model.safetensors", *(f"base/{name}" for name in shards)]
    for adapter in ("adapter", "adapter/adapter_model.safetensors"):
        for output in outputs:
            said = accel("merge-weights", "base", output, "--adapter", adapter, "--max-shard-size", "1GB", "--force", code=2).stderr
            assert f"the output '{output}' is a file of '" in said
            assert before == {path: path.read_bytes() for path in before}
    for _ in range(2):  # Another file beside them may be replaced.
        accel("merge-weights", "base", "adapter/merged.safetensors", "--adapter", "adapter/adapter_model.safetensors",
              "--max-shard-size", "1GB", "--force")
    assert_same(load_file(tmp_path / "adapter/merged.safetensors"), merged_by_peft(tmp_path))


def test_a_dry_run_says_what_is_added(accel, plain):
    plan = accel("merge-weights", "base", "ours", "--adapter", "adapter", "--dry-run").stdout
    layer = "model.layers.0.self_attn.q_proj"
    assert f"{layer}.weight float32 [24, 24] + 1.75 * base_model.model.{layer}.lora_B.weight @ base_model.model.{layer}.lora_A.weight" in plan
    document = json.loads(accel("--json", "merge-weights", "base", "ours", "--adapter", "adapter", "--dry-run").stdout)
    segments = {segment["name"]: segment for segment in document["plan"][0]["segments"]}
    assert segments["model.layers.0.self_attn.v_proj.weight"]["update"] == {
        "a": "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight",
        "b": "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", "scaling": 1.75, "transposed": False}
    assert "update" not in segments["lm_head.weight"] and not (plain / "ours").exists()
