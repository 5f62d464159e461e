"""accel's units of the zoo's models are those of Accelerate's fsdp2_prepare_model, except for the pairs in MEANT."""

import json
import pathlib
import subprocess
import sys

import pytest

import train_runs
import zoo_models
from test_model_zoo import write_model

pytestmark = pytest.mark.long

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {name: zoo for name, zoo in zoo_models.models().items() if zoo.peer_classes is None}
SIZES = (100, 1000, 3000, 10000)
POLICIES = {"TRANSFORMER_BASED_WRAP": {}, "NO_WRAP": {}, **{f"SIZE_BASED_WRAP {size}": {"min_num_params": size} for size in SIZES}}

BY_CLASS, BY_NONE = "TRANSFORMER_BASED_WRAP", "NO_WRAP"
S100, S1000, S3000, S10000 = (f"SIZE_BASED_WRAP {size}" for size in SIZES)

# Intended differences: {model: {policies: {(Accelerate's unit, accel's unit): reason}}}. The root unit is "".
NORM = "the final norm stays with the module around it, which has little else"
TIED = "a tied parameter is the root's, which is gathered as long"
NOTHING_WRAPPED = "without wrapped modules there are no units but the root"
NO_EMBEDDING = "a file does not say which its embedding is; modules of a class ...Embedding and Linear of one shape are taken"
TWICE = "Accelerate shards it once more for its second unit; here it is in the outer one, or the root's if it is tied"
CROSS_UNIT = "read by a module outside, which no call of the unit announces: fully_shard would not gather it for that"
MEANT = {
    "gpt": {(S100, S1000): {("gpt.head and gpt.tokens", ""): TIED}},
    "TransformerEncoder": {
        (BY_CLASS, S3000): {("", "embedding"): NO_EMBEDDING, ("", "head"): NO_EMBEDDING},
        (BY_CLASS, S100, S1000): {("encoder.layers.0", ""): CROSS_UNIT},
        (S100, S1000): {("encoder.layers.0.self_attn", ""): CROSS_UNIT, ("encoder.layers.1.self_attn", ""): CROSS_UNIT},
        (S100,): {(f"encoder.layers.{layer}.{part}", ""): CROSS_UNIT
                  for layer in (0, 1) for part in ("linear1", "linear2", "self_attn.out_proj")}},
    "TransformerEncoder, traced": {
        (BY_CLASS, S3000): {("", "embedding"): NO_EMBEDDING, ("", "head"): NO_EMBEDDING},
        (S100,): {(f"encoder.layers.{layer}.self_attn.out_proj", ""): CROSS_UNIT for layer in (0, 1)}},
    "LSTM": {(S100, S1000): {("embedding", ""): CROSS_UNIT}},
    "Llama": {
        (BY_CLASS,): {("model.model.norm + model.lm_head", ""): NORM,
                      ("model.model.norm + model.lm_head", "model.lm_head"): NORM},
        (BY_NONE,): {("model.model.norm + model.lm_head", ""): NOTHING_WRAPPED, ("model.model.embed_tokens", ""): NOTHING_WRAPPED},
        (S100, S1000): {("model.model and model.model.norm", "model.model"): TWICE},
        (S3000, S10000): {("model.model and model.model.embed_tokens", "model.model"): TWICE,
                          ("model.model and model.model.norm + model.lm_head", "model.model"): TWICE,
                          # The head is not a unit if its embedding is part of another unit.
                          ("model.model.norm + model.lm_head", ""): NO_EMBEDDING}},
    "Qwen3": {
        (BY_CLASS,): {("model.model.embed_tokens + model.lm_head", ""): TIED},
        (BY_NONE,): {("model.model.embed_tokens + model.model.norm + model.lm_head", ""): NOTHING_WRAPPED},
        (S100, S1000): {("model.lm_head and model.model.embed_tokens", ""): TIED,
                        ("model.model and model.model.norm", "model.model"): TWICE},
        (S3000, S10000): {("model.model and model.model.embed_tokens and model.model.norm + model.lm_head", ""): TWICE,
                          ("model.model and model.model.norm + model.lm_head", "model.model"): TWICE}},
    "GPT-2": {
        (BY_CLASS,): {("model.transformer.wte + model.transformer.ln_f + model.lm_head", ""): TIED},
        (BY_NONE,): {("model.transformer.wte + model.transformer.ln_f + model.lm_head", ""): NOTHING_WRAPPED},
        (S100, S1000): {("model.lm_head and model.transformer.wte", ""): TIED,
                        ("model.transformer and model.transformer.ln_f", "model.transformer"): TWICE},
        (S3000, S10000): {
            ("model.transformer and model.transformer.ln_f + model.lm_head", "model.transformer"): TWICE,
            ("model.transformer and model.transformer.ln_f + model.lm_head and model.transformer.wte", ""): TWICE}},
    "BERT": {
        (BY_CLASS, BY_NONE): {("model.bert.embeddings.word_embeddings + model.cls.predictions.decoder", ""): TIED,
                              (" and model.bert.embeddings.word_embeddings + model.cls.predictions.decoder", ""): TIED},
        (S100, S1000): {("model.bert.embeddings.word_embeddings and model.cls.predictions.decoder", ""): TIED,
                        ("model.cls.predictions and model.cls.predictions.decoder", ""): TIED},  # This is the bias.
        (S3000,): {("model.bert.embeddings and model.bert.embeddings.word_embeddings and model.cls.predictions and "
                    "model.cls.predictions.decoder", ""): TIED,
                   ("model.cls.predictions and model.cls.predictions.decoder", "model.cls.predictions"): TWICE},
        (S10000,): {("model.bert and model.bert.embeddings.word_embeddings and model.cls.predictions.decoder", ""): TIED,
                    (" and model.cls.predictions.decoder", ""): TWICE,
                    # This is the rest of bert.embeddings, through which the traced head reads the tied weight.
                    ("model.bert", ""): CROSS_UNIT}},
    "T5": {
        (BY_CLASS, BY_NONE): {(" and model.shared + model.lm_head", ""): TIED},
        (S100, S1000): {("model.decoder.embed_tokens and model.encoder.embed_tokens and model.lm_head and model.shared", ""): TIED},
        (S3000, S10000): {("model.decoder and model.encoder and model.shared + model.lm_head", ""): TIED}},
    "ViT": {
        (BY_CLASS,): {("model.vit.embeddings.patch_embeddings", ""): NO_EMBEDDING, ("model.vit.layernorm", ""): NORM},
        (BY_NONE,): {("model.vit.embeddings.patch_embeddings", ""): NOTHING_WRAPPED, ("model.vit.layernorm", ""): NOTHING_WRAPPED},
        (S100, S1000, S3000, S10000): {("model.vit and model.vit.layernorm", "model.vit"): TWICE},
        (S10000,): {("model.vit and model.vit.embeddings.patch_embeddings", "model.vit"): TWICE}},
}


def cases_of(directory):
    for name, zoo in MODELS.items():
        for label, options in POLICIES.items():
            policy = label.split()[0]
            case = {"model": name, "label": label, "policy": policy, **options,
                    "out": str(directory / f"{name} {label}.json".replace("/", "_"))}
            if policy == "TRANSFORMER_BASED_WRAP":
                case["classes"] = zoo.classes
            yield case


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Accelerate's units as {(model, policy): {parameter: unit}}."""
    directory = tmp_path_factory.mktemp("units")
    cases = list(cases_of(directory))
    (directory / "job.json").write_text(json.dumps(cases))
    result = subprocess.run([sys.executable, HERE / "units_peer.py", directory / "job.json"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {(case["model"], case["label"]): json.loads(pathlib.Path(case["out"]).read_text()) for case in cases}


def our_units(accel, directory, case):
    fsdp = {"fsdp_config.fsdp_auto_wrap_policy": case["policy"], "model.path": str(directory / "model.pt"),
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap": ",".join(case.get("classes", [])) or None,
            **({"fsdp_config.fsdp_min_num_params": case["min_num_params"]} if "min_num_params" in case else {})}
    plan = json.loads(accel("plan", train_runs.config(directory, 1, **fsdp), "--json").stdout)
    return {name: unit["module"] for unit in plan["units"] for name in unit["parameters"]}


def differences(accel, directory, case, peer):
    """Returns {(Accelerate's unit, accel's unit)} of the parameters for which the two differ."""
    ours = our_units(accel, directory, case)
    assert ours.keys() == peer.keys()
    # Accelerate does not get the zoo's wrapper around a model of transformers, which has no parameters of its own.
    root = ("",) if "model" in peer.values() else ("", "model")
    return {(peer[key], "" if ours[key] in root else ours[key]) for key in ours} - {(unit, unit) for unit in {"", *ours.values()}}


@pytest.mark.parametrize("name", MODELS)
def test_units_equal_accelerates(accel, tmp_path, theirs, name):
    write_model(tmp_path, MODELS[name])
    for case in cases_of(tmp_path):
        if case["model"] == name:
            meant = {pair for policies, pairs in MEANT.get(name, {}).items() if case["label"] in policies for pair in pairs}
            assert differences(accel, tmp_path, case, theirs[name, case["label"]]) == meant, case["label"]
