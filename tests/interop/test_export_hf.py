"""The exporter of Hugging Face models refuses what tracing would freeze and what a TorchScript file cannot do."""

import pytest
import torch
import transformers

import train_runs  # noqa: F401  It puts examples/ on the path.
import export_hf

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 96, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}


def directory_of(tmp_path, family, sizes, weights):
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **sizes})
    if weights:
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "hf")
    else:
        config.save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def export(tmp_path, family, sizes, *flags, weights=True):
    directory = directory_of(tmp_path, family, sizes, weights)
    export_hf.main([str(directory), str(tmp_path / "model.pt"), *(["--weights"] if weights else []), *flags])


def refused(tmp_path, *arguments, **options):
    with pytest.raises(SystemExit) as exit:
        export(tmp_path, *arguments, **options)
    assert not (tmp_path / "model.pt").exists()
    return str(exit.value)


@pytest.mark.parametrize("family, sizes, line", [
    ("opt", {**OPT, "layerdrop": 0.5}, "if dropout_probability < self.layerdrop:"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
     "if seq_len > max_seq_len_cached:"),
    ("rwkv", {"attention_hidden_size": 32}, "if hidden.size(1) == 1 and state is not None:"),
    ("xlstm", {"num_heads": 2}, "if sequence_length > 1:"),
    ("qwen3_next", {**LINEAR, **EXPERTS}, "modeling_qwen3_next.py"),
    ("qwen3_5_text", LINEAR, "modeling_qwen3_5.py"),
    ("olmo_hybrid", LINEAR, "modeling_olmo_hybrid.py"),
])
def test_a_choice_that_tracing_would_freeze_is_refused_with_its_line(tmp_path, family, sizes, line):
    said = refused(tmp_path, family, sizes)
    assert "tracing would freeze what these lines decide" in said
    assert line in said


@pytest.mark.parametrize("family, sizes, accepted", [
    # Each model has a loop over tokens or chunks of tokens, about which the tracer does not warn.
    ("mamba", {}, []),
    ("rwkv", {"attention_hidden_size": 32}, ["if hidden.size(1) == 1 and state is not None:"]),
    ("qwen3_next", {**LINEAR, **EXPERTS}, ["if num_k_heads != num_v_heads:"]),
    ("olmo_hybrid", LINEAR, ["if num_k_heads != num_v_heads:"]),
])
def test_a_frozen_loop_is_found_by_another_length(tmp_path, monkeypatch, family, sizes, accepted):
    monkeypatch.setattr(export_hf, "HARMLESS", export_hf.HARMLESS + [(".py", line) for line in accepted])
    said = refused(tmp_path, family, sizes)
    assert "at batch 3, length 150" in said
    assert "the traced model is another one" in said or "the traced model fails where the model does not" in said


def test_an_accepted_line_is_still_compared(tmp_path):
    lines = [place.split(":")[0].rsplit("/", 1)[-1] + ":" + place.split(":")[1]
             for place in refused(tmp_path, "opt", {**OPT, "layerdrop": 0.5}).splitlines() if ".py:" in place]
    flags = [word for line in lines for word in ("--accept", line)]
    assert "the traced model is another one" in refused(tmp_path, "opt", {**OPT, "layerdrop": 0.5}, *flags)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("family, sizes", [("llama", {"attention_dropout": 0.1}), ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
                                           ("opt", OPT), ("gemma2", {"head_dim": 8})])
def test_what_can_be_traced_is_written(tmp_path, capsys, family, sizes, weights):
    export(tmp_path, family, sizes, weights=weights)
    assert "loss and gradients are the model's own, at lengths up to 150" in capsys.readouterr().out
    assert torch.jit.load(tmp_path / "model.pt") is not None


@pytest.mark.parametrize("family, sizes", [("biogpt", {}), ("gptj", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
                                           ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2})])
def test_dropout_and_harmless_lines_do_not_make_it_another_model(tmp_path, capsys, family, sizes):
    export(tmp_path, family, sizes)
    assert "loss and gradients are the model's own" in capsys.readouterr().out


def test_an_earlier_file_outlives_an_export_that_fails(tmp_path, monkeypatch):
    export(tmp_path, "llama", {})
    before = (tmp_path / "model.pt").read_bytes()

    def fails(module, path, **options):
        open(path, "wb").write(b"half")
        raise RuntimeError("aten::equal")

    monkeypatch.setattr(torch.jit, "save", fails)
    with pytest.raises(SystemExit, match="torch.jit.save fails: aten::equal"):
        export(tmp_path, "llama", {})
    assert (tmp_path / "model.pt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "model.pt"]


def test_a_large_model_is_checked_with_fewer_layers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export_hf, "CHECKED_PARAMETERS", 40_000)
    export(tmp_path, "llama", {"num_hidden_layers": 8}, weights=False)
    assert "the model's own with 4 of its 8 layers" in capsys.readouterr().out


def test_an_embedding_with_max_norm_is_refused(tmp_path, monkeypatch):
    load = export_hf.load

    def with_max_norm(*arguments):
        model = load(*arguments)
        model.get_input_embeddings().max_norm = 1.0
        return model

    monkeypatch.setattr(export_hf, "load", with_max_norm)
    assert "module 'model.embed_tokens' (Embedding) has max_norm=1.0" in refused(tmp_path, "llama", {})


def test_a_forward_that_changes_a_parameter_is_refused(tmp_path, monkeypatch):
    load = export_hf.load

    def changing(*arguments):
        model = load(*arguments)
        weight = model.model.norm.weight
        model.model.norm.register_forward_pre_hook(lambda module, inputs: weight.data.mul_(0.99) is None or None)
        return model

    monkeypatch.setattr(export_hf, "load", changing)
    said = refused(tmp_path, "llama", {})
    assert "forward changes the parameter 'model.norm.weight' itself" in said
