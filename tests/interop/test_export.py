"""accel-export writes files that are the model, and refuses what a record would freeze."""

import argparse
import inspect
import json
import random
import re
import subprocess
import sys
import zipfile

import accel_export
import pytest
import torch
import transformers
from accel_export import check, cli, huggingface, structure, tracing
from safetensors.torch import load_file, save_file
from train_runs import ROOT
from transformers.models.qwen3_5 import modeling_qwen3_5

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 96, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}
RWKV = {"attention_hidden_size": 32}
ONE = {"num_hidden_layers": 1}
CHECKED = "checked: loss and gradients are the model's own"


@pytest.fixture
def export(accel_path, tmp_path, capsys):
    """export(FAMILY, SIZES, FLAGS...) runs accel-export on a model of random values and returns what it says."""

    def run(family, sizes, *flags, weights=True, out="model.pt2"):
        if not (tmp_path / "hf" / ("model.safetensors" if weights else "config.json")).exists():
            torch.manual_seed(0)
            config = family if not isinstance(family, str) else transformers.AutoConfig.for_model(family, **{**SIZES, **sizes})
            if not weights:
                config.save_pretrained(tmp_path / "hf")
            elif isinstance(family, str):
                transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "hf")
            else:
                getattr(transformers, config.architectures[0])(config).save_pretrained(tmp_path / "hf")
        cli.main([str(tmp_path / "hf"), str(tmp_path / out), *(["--weights"] if weights else []), "--accel", str(accel_path), *flags])
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(export, tmp_path):
    """refused(...) does what export does and returns why it is refused. No file is written."""

    def run(*arguments, out="model.pt2", **options):
        with pytest.raises(SystemExit) as exit:
            export(*arguments, out=out, **options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]
        return str(exit.value)

    return run


def notes_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(f"{path.stem}/extra/accel.json"))


# What tracing would freeze.

@pytest.mark.parametrize("family, sizes, line", [
    ("llama", DYNAMIC, "if seq_len > max_seq_len_cached:"),
    ("rwkv", RWKV, "if hidden.size(1) == 1 and state is not None:"),
    ("xlstm", {"num_heads": 2}, "if sequence_length > 1:"),
    ("qwen3_next", {**LINEAR, **EXPERTS}, "modeling_qwen3_next.py"),
    ("qwen3_5_text", LINEAR, "modeling_qwen3_5.py"),
    ("olmo_hybrid", LINEAR, "modeling_olmo_hybrid.py"),
])
def test_a_choice_that_tracing_would_freeze_is_refused_with_its_line(refused, family, sizes, line):
    said = refused(family, sizes, out="model.pt")
    assert "tracing would freeze what these lines decide" in said
    assert line in said


@pytest.mark.parametrize("family, sizes, accepted, line", [
    # Each model has a loop over tokens or chunks of tokens, about which the tracer does not warn.
    ("mamba", {}, [], "modeling_mamba.py"),
    ("rwkv", RWKV, ["if hidden.size(1) == 1 and state is not None:"], "modeling_rwkv.py"),
    ("qwen3_next", {**LINEAR, **EXPERTS}, ["if num_k_heads != num_v_heads:"], "modeling_qwen3_next.py"),
    ("olmo_hybrid", LINEAR, ["if num_k_heads != num_v_heads:"], "modeling_olmo_hybrid.py"),
])
def test_a_loop_that_tracing_froze_is_found_by_another_length(refused, monkeypatch, family, sizes, accepted, line):
    monkeypatch.setattr(tracing, "HARMLESS", tracing.HARMLESS + [(".py", line) for line in accepted])
    said = refused(family, sizes, out="model.pt")
    assert "at batch 3, length 150" in said
    assert "the file is another model" in said or "the file fails where the model does not" in said
    assert re.search(rf"  at \S*{line}:\d+: ", said), said


def test_an_accepted_line_is_still_compared(refused):
    lines = [place.split(":")[0].rsplit("/", 1)[-1] + ":" + place.split(":")[1]
             for place in refused("rwkv", RWKV, out="model.pt").splitlines() if ".py:" in place]
    flags = [word for line in lines for word in ("--accept", line)]
    assert "at batch 3, length 150" in refused("rwkv", RWKV, *flags, out="model.pt")


# The same models through torch.export are right or refused.

@pytest.mark.long(but="opt-sizes0-has layerdrop=0.5: it leaves out layers at random")
@pytest.mark.parametrize("family, sizes, said", [
    ("opt", {**OPT, "layerdrop": 0.5}, "has layerdrop=0.5: it leaves out layers at random"),
    ("llama", DYNAMIC, "torch.export"),
    ("mamba", ONE, r"the record holds for one length alone, 16.*\n  at \S*modeling_mamba.py:\d+: for index in range\(seq_len\):"),
    ("rwkv", RWKV, r"the record holds for one length alone, 16.*\n  at \S*modeling_rwkv.py:\d+: for current_index in range\("),
    ("qwen3_5_text", {**LINEAR, "num_hidden_layers": 1, "layer_types": ["linear_attention"]},
     r"the record does not hold for batch 3, length 150.*\n  at \S*modeling_qwen3_5.py:\d+: "),
])
def test_a_loop_or_a_choice_in_a_program_is_refused(refused, monkeypatch, family, sizes, said):
    chunked = inspect.unwrap(modeling_qwen3_5.torch_chunk_gated_delta_rule)
    assert 64 in chunked.__defaults__  # Chunks of 64 are recorded in a minute, those of 8 in seconds.
    monkeypatch.setattr(chunked, "__defaults__", tuple(8 if value == 64 else value for value in chunked.__defaults__))
    assert re.search(said, refused(family, sizes))


@pytest.mark.long(but="mamba-sizes0")
@pytest.mark.parametrize("family, sizes", [("mamba", ONE), ("rwkv", RWKV)])
def test_a_loop_is_exported_for_the_length_that_is_given(export, family, sizes):
    said = export(family, sizes, "--length", "20")
    assert "at batch 3, length 20 and batch 5, length 20" in said
    assert "length: 20 alone" in said


@pytest.mark.long(but="model.pt")
@pytest.mark.parametrize("out", ["model.pt2", "model.pt"])
def test_noise_of_training_alone_is_refused_with_its_line(refused, out):
    """Mixtral draws the noise by uniform_(), which is not an operator that follows the mode."""
    said = refused("mixtral", {"num_local_experts": 4, "router_jitter_noise": 0.5, **ONE}, out=out)
    assert "the file is another model at batch 3, length 150, in evaluation" in said
    assert "the first module whose mode has another effect is 'model.layers.0.mlp' (MixtralSparseMoeBlock)" in said
    assert "if self.training and self.jitter_noise > 0:" in said


# What can be exported.

@pytest.mark.long(but="model.pt2-True-opt-sizes2")
@pytest.mark.parametrize("family, sizes", [("llama", {"attention_dropout": 0.1, "tie_word_embeddings": True}), ("gpt2", GPT2), ("opt", {**OPT, **ONE}),
                                           ("gemma2", {"head_dim": 8}), ("mixtral", {"num_local_experts": 4, **ONE})])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("out", ["model.pt2", "model.pt"])
def test_what_can_be_recorded_is_written(export, tmp_path, family, sizes, weights, out):
    said = export(family, sizes, weights=weights, out=out)
    assert f"{CHECKED}, in training and in evaluation, at batch 3, length 150 and batch 5, length 9" in said
    assert ("batch: any; length: any" in said) == (out == "model.pt2")
    notes = notes_of(tmp_path / out)
    assert notes["inputs"] == ["input_ids"] and notes["outputs"] == ["logits"] and "shifts_labels" not in notes
    assert len(notes["layer_classes"]) == 1
    loaded = (torch.jit.load if out == "model.pt" else torch.export.load)(tmp_path / out)
    if family == "mixtral":  # Tracing a structure needs the other way, which copies weights.
        code = str(loaded.inlined_graph if out == "model.pt" else loaded.graph)
        assert ("grouped_mm" in code) == (weights or out == "model.pt2")


def test_experts_whose_rows_are_no_multiple_of_16_bytes_are_exported(export, tmp_path):
    assert CHECKED in export("mixtral", {"num_local_experts": 4, "intermediate_size": 44, **ONE})
    assert "grouped_mm" not in str(torch.export.load(tmp_path / "model.pt2").graph)


def test_experts_are_grouped_as_in_transformers(export, accel, tmp_path):
    """A single token leaves experts without any, and tokens of one value all go to the same ones."""
    export("qwen3_moe", {**EXPERTS, **ONE, "head_dim": 8})
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", experts_implementation="grouped_mm").train()
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt").train()
    for ids in (torch.arange(34).view(2, 17), torch.tensor([[7]]), torch.full((1, 8), 3)):
        with torch.jit.optimized_execution(False):
            for module in (model, imported):
                module.zero_grad()
                check.flat(module(ids) if module is imported else model(ids).logits)[0].square().mean().backward()
            torch.testing.assert_close(check.flat(imported(ids))[0], model(ids).logits, rtol=1e-5, atol=1e-6)
        for name, parameter in model.named_parameters():
            found = dict(imported.named_parameters())[name].grad
            torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family, sizes", [("biogpt", {}), ("gptj", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
                                           ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2})])
def test_dropout_and_harmless_lines_do_not_make_it_another_model(export, family, sizes):
    assert CHECKED in export(family, sizes, out="model.pt")


def records_of(path):
    with zipfile.ZipFile(path) as archive:
        weights = json.loads(archive.read(f"{path.stem}/data/weights/model_weights_config.json"))["config"]
        return archive.read(f"{path.stem}/models/model.json").decode(), {
            name: (entry, archive.getinfo(f"{path.stem}/data/weights/{entry['path_name']}").file_size) for name, entry in weights.items()}


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_structure_has_no_values_and_no_device_meta(export, tmp_path, dtype):
    export("llama", {"tie_word_embeddings": True, **ONE}, "--dtype", dtype, weights=False)
    program, records = records_of(tmp_path / "model.pt2")
    parameters = {name: size for name, (entry, size) in records.items() if entry["is_param"]}
    assert len(parameters) == 12 and not any(parameters.values())
    assert all(entry["tensor_meta"]["dtype"] == 7 for entry, _ in records.values())  # float32
    assert '"type": "meta"' not in program and '"as_device": {"type": "cpu"' in program
    notes = notes_of(tmp_path / "model.pt2")
    assert notes["ties"] == [["lm_head.weight", "model.embed_tokens.weight"]]
    assert notes.get("dtype") == (None if dtype == "float32" else dtype)
    loaded = torch.export.load(tmp_path / "model.pt2")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    buffers = dict(transformers.AutoModelForCausalLM.from_config(config).named_buffers())
    assert torch.equal(loaded.constants["model.rotary_emb.inv_freq"], buffers["model.rotary_emb.inv_freq"])


@pytest.mark.long(but="bfloat16-model.pt")
@pytest.mark.parametrize("out", ["model.pt2", "model.pt"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_a_16_bit_record_are_the_original_ones(export, tmp_path, accel, dtype, out):
    """The check computes in 16 bits, and the file has the master weights."""
    assert CHECKED in export("llama", ONE, "--dtype", dtype, out=out)
    if out == "model.pt2":
        stored = torch.export.load(tmp_path / out).state_dict
    else:
        stored = torch.jit.load(tmp_path / out).state_dict()
    original = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    assert all(stored[name].dtype == torch.float32 and torch.equal(stored[name], tensor) for name, tensor in original.items())
    assert notes_of(tmp_path / out)["dtype"] == dtype


@pytest.mark.long
def test_a_large_model_is_checked_with_fewer_layers(export, monkeypatch):
    monkeypatch.setattr(huggingface, "CHECKED_PARAMETERS", 25_000)
    assert "the model's own with 2 of its 4 layers" in export("llama", {"num_hidden_layers": 4}, weights=False)


def test_fewer_layers_are_still_of_every_kind(tmp_path, monkeypatch):
    """DeepSeek's first layers have no experts, and its configuration has no list of kinds."""
    transformers.DeepseekV3Config(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=8, first_k_dense_replace=3,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, vocab_size=96).save_pretrained(tmp_path)
    options = argparse.Namespace(peft=None, set=[], architecture=None, is_program=True, weights=True, compile=False)
    directory = huggingface.Directory(tmp_path, options)
    monkeypatch.setattr(huggingface, "CHECKED_PARAMETERS", 1000)
    assert directory.reduced()[1:] == (4, 8)


def test_what_is_larger_than_the_memory_has_a_structure():
    """A layer's experts in one parameter of 16 TB."""
    with structure.parameters_on_meta():
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.empty(2 ** 14, 2 ** 14, 2 ** 14))
        module.scale = torch.nn.Parameter(torch.ones(3))
        module.register_buffer("table", torch.arange(4.0))
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"} and module.table.tolist() == [0, 1, 2, 3]


def test_weights_that_lack_a_tensor_are_refused(export, tmp_path):
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("llama", **{**SIZES, **ONE})).save_pretrained(tmp_path / "hf")
    tensors = load_file(tmp_path / "hf/model.safetensors")
    del tensors["model.layers.0.mlp.down_proj.weight"]
    save_file(tensors, tmp_path / "hf/model.safetensors", {"format": "pt"})
    with pytest.raises(SystemExit, match=r"lack 1 tensors of LlamaForCausalLM, [\s\S]*model.layers.0.mlp.down_proj.weight"):
        export("llama", ONE)
    said = export("llama", ONE, "--class", "LlamaForCausalLM")
    assert "new, with random values: model.layers.0.mlp.down_proj.weight" in said


@pytest.mark.long
def test_an_earlier_file_outlives_an_export_that_fails(export, tmp_path, monkeypatch):
    export("llama", ONE)
    before = (tmp_path / "model.pt2").read_bytes()

    def fails(program, path, **options):
        open(path, "wb").write(b"half")
        raise RuntimeError("No space left on device")

    monkeypatch.setattr(torch.export, "save", fails)
    with pytest.raises(SystemExit, match="model.pt2' exists\nhint: choose another name, or add --overwrite"):
        export("llama", ONE)
    with pytest.raises(SystemExit, match="torch.export.save fails: No space left on device"):
        export("llama", ONE, "--overwrite")
    assert (tmp_path / "model.pt2").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "model.pt2"]


# Labels, other kinds of models, adapters.

def bert(**more):
    return transformers.BertConfig(**{**SIZES, **ONE}, architectures=["BertForMaskedLM"], **more)


@pytest.mark.long(but="<lambda>-True")
@pytest.mark.parametrize("make, shifts", [(lambda: "gpt2", True), (bert, False)])
def test_a_loss_says_what_labels_are(export, tmp_path, make, shifts):
    said = export(make(), GPT2, "--loss")
    notes = notes_of(tmp_path / "model.pt2")
    assert notes["inputs"][-1] == "labels" and notes["outputs"] == ["loss"] and notes["shifts_labels"] is shifts
    assert ("labels: the model shifts them itself" in said) == shifts


T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
AUDIO = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "conv_dim": (16, 16),
         "conv_kernel": (10, 8), "conv_stride": (20, 16), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}


@pytest.mark.long(but="bert")
@pytest.mark.parametrize("config, flags, inputs, output", [
    (bert(), [], ["input_ids", "attention_mask"], "logits"),
    (transformers.T5Config(**T5, architectures=["T5ForConditionalGeneration"]), [], ["input_ids", "decoder_input_ids"], "logits"),
    (transformers.ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
                            architectures=["ViTModel"]), ["--dtype", "bfloat16"], ["pixel_values"], "last_hidden_state"),
    (transformers.Wav2Vec2Config(**AUDIO, architectures=["Wav2Vec2Model"]),
     ["--set", "layerdrop=0", "--set", "apply_spec_augment=false"], ["input_values"], "last_hidden_state"),
], ids=["bert", "t5", "vit", "wav2vec2"])
def test_other_kinds_of_models(export, tmp_path, config, flags, inputs, output):
    assert CHECKED in export(config, {}, *flags, weights=False)
    notes = notes_of(tmp_path / "model.pt2")
    assert notes["inputs"] == inputs and notes["outputs"] == [output]


def test_an_adapter_is_trained_on_a_frozen_base(export, tmp_path):
    import peft
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **ONE})), lora).save_pretrained(tmp_path / "adapter")
    flags = ("--peft", str(tmp_path / "adapter/adapter_config.json"))
    with pytest.raises(SystemExit, match="add --weights"):
        export("llama", ONE, *flags, weights=False)
    assert CHECKED in export("llama", ONE, *flags)
    _, records = records_of(tmp_path / "model.pt2")
    adapter = {name for name in records if "lora_" in name}
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight" in adapter and len(adapter) == 4
    assert all((name in adapter) == entry["tensor_meta"]["requires_grad"] for name, (entry, _) in records.items())
    assert all(size > 0 for _, size in records.values())
    # Values that PEFT would leave out without a word.
    weights = tmp_path / "adapter/adapter_model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    save_file({f"other.{name}": tensor for name, tensor in tensors.items()}, weights)
    with pytest.raises(SystemExit, match="does not fit LlamaForCausalLM"):
        export("llama", ONE, *flags, "--overwrite")
    weights.rename(tmp_path / "adapter/adapter_model.bin")
    with pytest.raises(SystemExit, match="the adapter's values as a pickle"):
        export("llama", ONE, *flags, "--overwrite")


# Models of one's own, and what is refused.

class Layer(torch.nn.Module):
    def __init__(self, act=torch.nn.functional.gelu):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.act = act

    def forward(self, x):
        return x + self.act(self.linear(x))


class Own(torch.nn.Module):
    def __init__(self, act=torch.nn.functional.gelu, **options):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8, **options)
        self.layers = torch.nn.ModuleList([Layer(act) for _ in range(3)])
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, ids, scale):
        x = self.tokens(ids) * scale[:, None, None]
        for layer in self.layers:
            x = layer(x)
        return {"hidden": self.dropout(x), "mean": x.mean()}


EXAMPLE = (torch.randint(16, (2, 12), generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, 2.0]))


def test_a_model_of_ones_own(accel_path, tmp_path, capsys):
    model = Own()
    accel_export.export(model, EXAMPLE, tmp_path / "own.pt2", accel=accel_path)
    said = capsys.readouterr().out
    assert CHECKED in said and "inputs: ids [batch, length]; scale [batch]; outputs: hidden, mean" in said
    notes = notes_of(tmp_path / "own.pt2")
    assert notes["layer_classes"] == ["Layer"] and notes["outputs"] == ["hidden", "mean"]
    accel_export.export(model, EXAMPLE, tmp_path / "own.pt", outputs=["hidden"])
    assert torch.jit.load(tmp_path / "own.pt")(*EXAMPLE)[0].shape == (2, 12, 8)
    accel_export.export(model, EXAMPLE, tmp_path / "structure.pt2", accel=accel_path, weights=False)
    assert not any(size for _, size in records_of(tmp_path / "structure.pt2")[1].values())


@torch.library.custom_op("accel_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def branches(x):
    return x * 2 if x.sum() > 0 else x


def draws(x):
    return x * random.random()


def counts(x):
    return x * x.shape[1] if x.shape[1] > 13 else x


def singles(x):
    return x * 3 if x.shape[0] == 1 else x


@pytest.mark.parametrize("act, said", [
    (singles, ["the file is another model at batch 1, length 27"]),
    (torch.ops.accel_test.twice, ["calls the custom operator accel_test.twice", "in module 'layers.0'", "test_export.py"]),
    (branches, ["torch.export.export fails", "in module 'layers.0'", "return x * 2 if x.sum() > 0 else x", "without a branch"]),
    (draws, ["the file is another model", "the first module with another output is 'layers.0' (Layer)", "test_export.py"]),
])
def test_what_is_refused_is_named_with_its_line(accel_path, tmp_path, act, said):
    with pytest.raises(accel_export.Refused) as error:
        accel_export.export(Own(act), EXAMPLE, tmp_path / "own.pt2", accel=accel_path)
    assert all(text in str(error.value) for text in said), str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_branch_on_the_length_bounds_it(accel_path, tmp_path, capsys):
    accel_export.export(Own(counts), EXAMPLE, tmp_path / "own.pt2", accel=accel_path)
    assert "sizes that train: batch: any; length: 1 to 13" in capsys.readouterr().out
    accel_export.export(Own(counts), (EXAMPLE[0].repeat(1, 2), EXAMPLE[1]), tmp_path / "own.pt2", accel=accel_path, overwrite=True)
    assert "sizes that train: batch: any; length: 14 to any" in capsys.readouterr().out


def test_a_small_random_number_is_seen_under_16_bits(accel_path, tmp_path):
    def noise(x):
        return x * (1 + 0.01 * random.random())

    with pytest.raises(accel_export.Refused, match="the file is another model"):
        accel_export.export(Own(noise), EXAMPLE, tmp_path / "own.pt2", accel=accel_path, dtype=torch.bfloat16)


def test_a_model_of_16_bits_is_refused(accel_path, tmp_path):
    with pytest.raises(accel_export.Refused, match=r"'tokens.weight' is of torch.bfloat16[\s\S]*export model.float\(\)"):
        accel_export.export(Own().bfloat16(), EXAMPLE, tmp_path / "own.pt2", accel=accel_path, dtype=torch.bfloat16)


def test_an_embedding_with_max_norm_is_refused(accel_path, tmp_path):
    with pytest.raises(accel_export.Refused, match=r"module 'tokens' \(Embedding\) has max_norm=1.0"):
        accel_export.export(Own(max_norm=1.0), EXAMPLE, tmp_path / "own.pt2", accel=accel_path)


@pytest.mark.parametrize("out", ["own.pt2", "own.pt"])
def test_a_forward_that_changes_a_parameter_is_refused(accel_path, tmp_path, out):
    class Changing(Own):
        def forward(self, ids, scale):
            self.tokens.weight.data.mul_(0.99)
            return super().forward(ids, scale)

    with pytest.raises(accel_export.Refused, match="forward changes the parameter 'tokens.weight' itself"):
        accel_export.export(Changing(), EXAMPLE, tmp_path / out, accel=accel_path)


def test_layers_have_to_be_there(accel_path, refused, export, tmp_path):
    assert "--layers names 'GPT2Block', and the model has no module of this class" in refused("llama", ONE, "--layers", "GPT2Block")
    with pytest.raises(accel_export.Refused, match="name the classes of its layers"):
        accel_export.export(torch.nn.Linear(3, 3), torch.ones(2, 3), tmp_path / "own.pt2", accel=accel_path)
    export("llama", ONE, "--layers", "LlamaMLP")
    assert notes_of(tmp_path / "model.pt2")["layer_classes"] == ["LlamaMLP"]


def test_operators_of_attention_that_are_not_torch_s_are_refused(refused):
    assert "asks for the attention 'flash_attention_2'" in refused("llama", {}, "--set", "_attn_implementation=flash_attention_2")


def test_without_the_program_accel_nothing_is_written(refused, export, tmp_path):
    assert "hint: name the program with --accel PROGRAM" in refused("llama", ONE, "--accel", str(tmp_path / "none"))
    assert "checked" not in export("llama", ONE, "--accel", str(tmp_path / "none"), "--no-check")


@pytest.mark.parametrize("command", [[ROOT / "tools/export/accel-export"], ["-m", "accel_export"]])
def test_it_runs_from_the_checkout(command, tmp_path):
    done = subprocess.run([sys.executable, *command, tmp_path / "none", "out.pt2"], capture_output=True, text=True,
                          cwd=ROOT / "tools/export" if command[0] == "-m" else tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(f"accel-export: '{tmp_path}/none' does not exist\nhint: ")


def test_the_difference_counts_every_element():
    assert check.difference(torch.ones(2), torch.ones(2), 0) == 0
    assert check.difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]), 0) == 0.5
    assert check.difference(None, torch.ones(1), 0) == float("inf")
    assert check.difference(torch.tensor([float("nan")]), torch.ones(1), 0) == float("inf")
