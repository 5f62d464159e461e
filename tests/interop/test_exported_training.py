"""Hugging Face models that accel-export wrote train as they do in Python: in 16 bits under FSDP 2, and with an adapter of
PEFT."""

import json

import family_configs
import family_row
import peft
import pytest
import torch
import train_runs
import transformers
from accel_export import cli
from safetensors.torch import load_file

FAMILIES = {"llama": "LlamaDecoderLayer", "gpt_neox": "GPTNeoXLayer", "qwen3": "Qwen3DecoderLayer"}
RUNS = [*((family, "bfloat16") for family in FAMILIES), ("llama", "float16")]
STEPS, BATCH, LENGTH = 5, 2, 24
TRAINING = {"max_steps": STEPS, "data.batch_size": BATCH, "data.train.sequence_length": LENGTH,
            "optimizer": {"type": "adamw", **family_row.OPTIMIZER}, "lr_scheduler": {"type": "constant"}}


def save(family, directory, **changes):
    """Writes a tiny model of a family as save_pretrained does."""
    torch.manual_seed(0)
    config = family_configs.config_of(family)
    for key, value in changes.items():
        setattr(config, key, value)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # The noise moves biases and norms away from 0 and 1, so that a mix-up of parameters shows.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(directory)
    return model


def launch(accel, directory, model, dtype, **options):
    """Trains a model file on 2 ranks in a directory of its own and returns the losses."""
    directory.mkdir()
    config = train_runs.config(directory, **{**TRAINING, "model.path": str(model), "fsdp_config": {
        "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, **options})
    accel("launch", config, "--mixed-precision", dtype)
    return train_runs.metrics(directory)


@pytest.fixture(scope="module")
def in_python(peer_server, made_once):
    """The directories and the losses of fully_shard, {(family, dtype): (directory, losses)}."""

    def make(folder):
        for family in FAMILIES:
            save(family, folder / family)
        spec = {"runs": [(str(folder / family), FAMILIES[family], dtype) for family, dtype in RUNS], "data": str(train_runs.TEXT),
                "batch_size": BATCH, "length": LENGTH, "max_steps": STEPS, "max_grad_norm": 1.0, "optimizer": family_row.OPTIMIZER,
                "out": str(folder / "losses.json")}
        (folder / "spec.json").write_text(json.dumps(spec))
        peer_server.run(2, folder / "peer.log", "huggingface_peer.py", folder / "spec.json")

    folder = made_once("exported_families", make)
    losses = json.loads((folder / "losses.json").read_text())
    return {run: (folder / run[0], found) for run, found in zip(RUNS, losses, strict=True)}


def first_loss(model):
    """Returns the loss of the first step of 2 ranks, without a step of the optimizer."""
    with torch.no_grad():
        return family_row.loss_of(lambda ids: model(ids, use_cache=False).logits, family_row.windows(0, 2 * BATCH, LENGTH)).item()


@pytest.mark.long
@pytest.mark.parametrize("family, dtype", RUNS)
def test_losses_in_16_bits_equal_fully_shard(accel, accel_path, in_python, tmp_path, family, dtype):
    """Both routes give the same losses. The first two are those of fully_shard, because the learning rate of the first
    step is 0. Later the optimizers differ in the last bit of a few weights."""
    directory, theirs = in_python[family, dtype]
    losses = {}
    for name in ("model.pt2", "model.pt"):
        cli.main([str(directory), str(tmp_path / name), "--accel", str(accel_path), "--weights", "--dtype", dtype, "--no-check"])
        losses[name] = launch(accel, tmp_path / f"run-{name}", tmp_path / name, {"bfloat16": "bf16", "float16": "fp16"}[dtype],
                              lr_scheduler={"type": "constant_with_warmup", "warmup_steps": 1})
    ours = losses["model.pt2"]
    assert len(ours) == len(theirs) == STEPS
    assert losses["model.pt"] == ours
    full = first_loss(transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32))
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    print(f"{family}, {dtype}: largest difference of the loss from fully_shard {worst:.1e}, of the first loss from float32 "
          f"{abs(ours[0] - full):.1e}")
    assert ours[:2] == pytest.approx(theirs[:2], abs=1e-9)
    assert worst < 2e-3
    assert 1e-6 < abs(ours[0] - full) < 2e-3
    # The model learns, so the losses are not equal only because the weights do not change.
    assert theirs[-1] < theirs[0] - 0.05


def loaded_base(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def lora_config(saved):
    return peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", modules_to_save=saved)


def with_values(base, values, saved):
    """The adapted model with these values of its adapter, made without an adapter_config.json."""
    model = peft.get_peft_model(loaded_base(base), lora_config(saved))
    assert not peft.set_peft_model_state_dict(model, values).unexpected_keys
    return model.eval()


@pytest.mark.long
@pytest.mark.parametrize("saved", [None, ["lm_head", "embed_tokens"]])
def test_an_adapter_of_a_program_is_trained_as_peft_trains_it(accel, accel_path, tmp_path, saved):
    """`saved` are modules_to_save, which are trained whole beside LoRA."""
    adapted = peft.get_peft_model(save("llama", tmp_path / "base"), lora_config(saved))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:  # Without values B has zeros, and A no gradient in the first step.
                parameter.normal_(std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    cli.main([str(tmp_path / "base"), str(tmp_path / "model.pt2"), "--accel", str(accel_path), "--weights",
              "--peft", str(tmp_path / "adapter"), *([] if saved else ["--no-check"])])
    named = {"adapter_names": ["lora_", "modules_to_save"]} if saved else {}
    found = launch(accel, tmp_path / "run", tmp_path / "model.pt2", "no", max_steps=family_row.STEPS,
                   checkpoint={"every": family_row.STEPS, "resume": "none", "adapter_only": True, "export": "safetensors", **named})
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    before = {name: tensor.clone() for name, tensor in peft.get_peft_model_state_dict(model).items()}
    assert found == pytest.approx(family_row.train_in_python(model), rel=1e-5)
    ours, theirs = load_file(tmp_path / "run/out/export/adapter_model.safetensors"), peft.get_peft_model_state_dict(model)
    assert ours.keys() == theirs.keys() and len(theirs) == 8 + len(saved or [])
    for name, tensor in theirs.items():
        assert (tensor - before[name]).abs().max() > 1e-3, name
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5, msg=name)
    # No adapter_config.json lies beside the model: the export and the checkpoints have it from the notes.
    assert not (tmp_path / "adapter_config.json").exists() and not (tmp_path / "run/adapter_config.json").exists()
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        expected = with_values(tmp_path / "base", ours, saved)(input_ids=tokens).logits
    checkpoint = tmp_path / f"run/out/checkpoints/checkpoint_{family_row.STEPS}"
    accel("merge-weights", tmp_path / "run/out", tmp_path / "of_run")
    accel("merge-weights", checkpoint, tmp_path / "of_checkpoint")
    accel("merge-weights", checkpoint, tmp_path / "without", "--no-assets")
    assert not (tmp_path / "without/adapter_config.json").exists()
    for directory in (tmp_path / "run/out/export", tmp_path / "of_run", tmp_path / "of_checkpoint"):
        loaded = peft.PeftModel.from_pretrained(loaded_base(tmp_path / "base"), directory).eval()
        with torch.no_grad():
            assert torch.equal(loaded(input_ids=tokens).logits, expected), directory
        theirs = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
        theirs["base_model_name_or_path"] = str(tmp_path / "base")  # They were saved before the base had a directory.
        assert json.loads((directory / "adapter_config.json").read_text()) == theirs
    assert "ok" in accel("verify", checkpoint).stdout


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
def test_layers_that_are_left_out_at_random_are_refused(accel_path, tmp_path, name):
    save("opt", tmp_path / "opt", layerdrop=0.5)
    with pytest.raises(SystemExit, match="has layerdrop=0.5: it leaves out layers at random"):
        cli.main([str(tmp_path / "opt"), str(tmp_path / name), "--accel", str(accel_path), "--weights"])
    assert not (tmp_path / name).exists()
