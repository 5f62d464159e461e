"""LoRA: checkpoints of the adapter alone, what PEFT and torch load of them, and a run that goes on from one."""

import json
import pathlib
import shutil
import subprocess

import accel_export
import pytest
import torch
import torch.distributed.checkpoint as dcp
import train_runs
import transformers
import yaml
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

STEPS = 6
LENGTH = 24
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 256, "max_position_embeddings": 64}


def base_model(directory: pathlib.Path):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.save_pretrained(directory / "base")
    return model


def with_adapter(base, name="default", **options):
    torch.manual_seed(1)
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], **options)
    model = get_peft_model(base, lora, adapter_name=name)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # With zeros, where PEFT begins, the gradient of A is zero.
                parameter.normal_(std=0.05)
    return model


def export(model, path) -> None:
    model.config.use_cache = False
    accel_export.export(model, {"input_ids": torch.arange(32).reshape(2, 16)}, path)


def write_model(directory: pathlib.Path, **options) -> None:
    """Writes model.pt with the base and the adapter, whose configuration is in the notes of the file."""
    model = with_adapter(base_model(directory), **options)
    model.save_pretrained(directory / "begin")
    export(model, directory / "model.pt")


def without_notes(directory: pathlib.Path) -> None:
    """Makes of the model file one of another exporter, with the adapter's configuration beside it."""
    torch.jit.load(directory / "model.pt").save(str(directory / "model.pt"))
    shutil.copy(directory / "begin/adapter_config.json", directory)


def config(directory, **more):
    return train_runs.config(directory, **{
        "model.path": str(directory / "model.pt"), "data.train.sequence_length": LENGTH, "max_steps": STEPS,
        "optimizer.weight_decay": 0.01, "optimizer.no_decay": [], "lr_scheduler": {"type": "constant"},
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "checkpoint": {"every": STEPS // 2, "adapter_only": True, "export": "safetensors"}, **more})


@pytest.fixture(scope="module", params=["lora", "lora and lm_head"])
def run(request, accel_path, tmp_path_factory):
    """A finished run over 2 ranks."""
    directory = tmp_path_factory.mktemp("adapter")
    more = {}
    if request.param != "lora":
        write_model(directory, modules_to_save=["lm_head"])
        without_notes(directory)
        more = {"checkpoint.adapter_names": ["lora_", "modules_to_save"]}
    else:
        write_model(directory)
    subprocess.run([accel_path, "launch", config(directory, **more)], check=True)
    return directory


def checkpoint(run, step=STEPS):
    return run / f"out/checkpoints/checkpoint_{step}"


def loaded(run, adapter):
    base = transformers.LlamaForCausalLM.from_pretrained(run / "base")
    return PeftModel.from_pretrained(base, adapter, is_trainable=True)


@pytest.mark.parametrize("form", ["torch", "dcp", "safetensors"])
def test_peft_loads_what_was_merged_of_the_trained_part(accel, tmp_path, form):
    """A program may save the trained part under the names of its modules, with the originals of `modules_to_save`."""
    model = with_adapter(base_model(tmp_path), modules_to_save=["lm_head"])
    with torch.no_grad():
        model.base_model.model.lm_head.modules_to_save.default.weight.add_(1)
    model.save_pretrained(tmp_path / "theirs")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()
             if any(part in name for part in ("lora_", "modules_to_save", "original_module"))}
    source = tmp_path / f"trained.{form}"
    if form == "torch":
        torch.save({"model": state, "epoch": 1}, source)
    elif form == "dcp":
        dcp.save({"model": state}, checkpoint_id=source, no_dist=True)
    else:
        save_file(state, source)
    said = accel("merge-weights", source, tmp_path / "merged", "--copy-assets", tmp_path / "theirs").stderr
    assert "'*.original_module.*' (1 tensor)" in said
    merged = load_file(tmp_path / "merged/adapter_model.safetensors")
    theirs = load_file(tmp_path / "theirs/adapter_model.safetensors")
    assert merged.keys() == theirs.keys() and all(torch.equal(merged[name], tensor) for name, tensor in theirs.items())
    again = loaded(tmp_path, tmp_path / "merged").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def trained_in_python(run):
    """Trains the same adapter on the same tokens in one process, and returns the model and its losses."""
    model = loaded(run, run / "begin")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    text = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    losses = []
    for step in range(STEPS):
        windows = torch.stack([text[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(step * 8, step * 8 + 8)])
        logits = model(input_ids=windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


@pytest.mark.long(but="lora")
def test_peft_loads_the_export(run):
    names = {path.name for path in (run / "out/export").iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json"}
    # For PEFT target_modules is a set, whose order differs from process to process.
    began, ended = (json.loads((run / f"{name}/adapter_config.json").read_text()) for name in ("begin", "out/export"))
    assert {**ended, "target_modules": sorted(ended["target_modules"])} == {**began, "target_modules": sorted(began["target_modules"])}
    exported = load_file(run / "out/export/adapter_model.safetensors")
    model = loaded(run, run / "out/export")
    theirs = get_peft_model_state_dict(model)
    assert exported.keys() == theirs.keys()
    assert all(torch.equal(exported[name], theirs[name]) for name in exported)
    began = load_file(run / "begin/adapter_model.safetensors")
    assert not any(torch.equal(exported[name], began[name]) for name in exported)


def test_losses_and_weights_are_those_of_peft(run):
    model, losses = trained_in_python(run)
    assert train_runs.metrics(run) == pytest.approx(losses, rel=1e-5)
    exported = load_file(run / "out/export/adapter_model.safetensors")
    for name, tensor in get_peft_model_state_dict(model).items():
        torch.testing.assert_close(exported[name], tensor, rtol=1e-3, atol=2e-5)


def test_a_checkpoint_holds_no_frozen_weight(accel, run):
    reader = dcp.FileSystemReader(checkpoint(run) / "pytorch_model_fsdp_0")
    names = {name.removeprefix("model.") for name in reader.read_metadata().state_dict_metadata}
    exported = load_file(run / "out/export/adapter_model.safetensors")
    assert names == set(exported)
    assert "ok" in accel("verify", checkpoint(run)).stdout
    manifest = json.loads((checkpoint(run) / "accel_manifest.json").read_text())
    assert not any("base_layer" in name or "mlp" in name for name in manifest["tensors"])


def test_merge_weights_names_the_files_as_peft(accel, run, tmp_path):
    accel("merge-weights", checkpoint(run), tmp_path / "merged", "--copy-assets", run / "begin")
    merged = load_file(tmp_path / "merged/adapter_model.safetensors")
    exported = load_file(run / "out/export/adapter_model.safetensors")
    assert merged.keys() == exported.keys() and all(torch.equal(merged[name], exported[name]) for name in merged)
    loaded(run, tmp_path / "merged")


@pytest.mark.parametrize("flags", [(), ("--partial",)])
def test_a_model_file_of_the_base_takes_no_adapter(accel, run, tmp_path, flags):
    export(base_model(tmp_path), tmp_path / "base.pt")
    for adapter in (run / "out/export", run / "begin", checkpoint(run)):
        said = accel("load", adapter, "--into", tmp_path / "base.pt", "--out", tmp_path / "new.pt", *flags, code=1).stderr
        assert "is an adapter of PEFT" in said and "merge-weights BASE MERGED --adapter" in said and "missing" not in said
    if not flags:  # A model file with the adapter has these parameters, under PEFT's names of modules.
        said = accel("load", run / "out/export", "--into", run / "model.pt", "--out", tmp_path / "new.pt", code=1).stderr
        assert "is an adapter of PEFT" not in said and "missing" in said
    assert not (tmp_path / "new.pt").exists()
    # What the message says to do.
    accel("merge-weights", run / "base", tmp_path / "merged", "--adapter", run / "out/export")
    merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "merged")
    accel("load", tmp_path / "merged", "--into", tmp_path / "base.pt", "--out", tmp_path / "new.pt")
    ids = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        assert torch.equal(torch.jit.load(tmp_path / "new.pt").eval()(ids)[0], merged.eval()(input_ids=ids).logits)


def test_accelerate_loads_the_checkpoint(run):
    """These are the calls of load_fsdp_model with adapter_only."""
    model = loaded(run, run / "begin")
    state = {"model": get_peft_model_state_dict(model)}
    dcp.load(state, checkpoint_id=checkpoint(run) / "pytorch_model_fsdp_0", no_dist=True)
    set_peft_model_state_dict(model, state["model"])
    exported = load_file(run / "out/export/adapter_model.safetensors")
    assert all(torch.equal(exported[name], tensor) for name, tensor in get_peft_model_state_dict(model).items())


@pytest.mark.long(but="lora-False")
@pytest.mark.parametrize("rank_0_reads", [False, True])
def test_a_run_goes_on_bit_for_bit(accel, run, tmp_path, rank_0_reads):
    for path in run.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    document = json.loads((tmp_path / "config.yaml").read_text().replace(str(run), str(tmp_path)))
    document["training"]["checkpoint"]["resume"] = str(checkpoint(run, STEPS // 2))
    document["training"]["model"]["broadcast_from_rank0"] = rank_0_reads
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    accel("launch", tmp_path / "config.yaml")
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        accel("diff", checkpoint(tmp_path) / part, checkpoint(run) / part)


ADAPTERS = {
    "lora": (lambda: LoraConfig(r=4, target_modules=["q_proj"]), None),
    "lora and lm_head": (lambda: LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]), ["lora_", "modules_to_save"]),
    "ia3": (lambda: IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]), ["ia3_l"]),
}


@pytest.mark.long(but="lora")
@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_configuration_that_accel_writes_trains_the_adapter(accel, tmp_path, kind):
    make, names = ADAPTERS[kind]
    base_model(tmp_path)
    model = get_peft_model(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base"), make())
    export(model, tmp_path / "model.pt")
    accel("config", "model.pt", "--cpu", "--num-processes", 2, "--data", train_runs.TEXT, "-o", "c.yaml")
    written = yaml.safe_load((tmp_path / "c.yaml").read_text())
    saved = written["training"]["checkpoint"]
    assert (saved["adapter_only"], saved["export"], saved.get("adapter_names")) == (True, "safetensors", names)
    assert "weights" not in written["training"]["model"] and written["distributed_type"] == "MULTI_CPU"
    assert json.loads(accel("--json", "config", "model.pt").stdout)["has_adapter"]
    accel("launch", "c.yaml", "--main-process-port", "0", "--set", "training.max_steps=3", "--set", "training.lr_scheduler.warmup_steps=0")
    trained = get_peft_model_state_dict(loaded(tmp_path, tmp_path / "runs/c/export"))
    began = get_peft_model_state_dict(model)
    assert trained.keys() == began.keys() and any(not torch.equal(trained[name], began[name]) for name in began)


def test_a_trained_parameter_that_no_name_covers_is_refused(accel, tmp_path):
    write_model(tmp_path, modules_to_save=["lm_head"])
    said = accel("launch", config(tmp_path), code=6).stderr
    assert "'base_model.model.lm_head.modules_to_save.default.weight' is trained" in said
    assert "training.checkpoint.adapter_names in it, which are lora_" in said
    assert not (tmp_path / "out/checkpoints").exists() or not any((tmp_path / "out/checkpoints").iterdir())


def test_an_adapter_of_another_name_is_refused(accel, tmp_path):
    model = with_adapter(base_model(tmp_path), name="mine")
    export(model, tmp_path / "model.pt")
    assert "is of an adapter named 'mine'" in accel("launch", config(tmp_path), code=6).stderr


def copy_of(run, directory):
    """The model and the configuration of `run`, and its checkpoints up to the middle."""
    for path in run.iterdir():
        if path.is_file():
            shutil.copy(path, directory)
    shutil.copytree(checkpoint(run, STEPS // 2), checkpoint(directory, STEPS // 2))
    return json.loads((directory / "config.yaml").read_text().replace(str(run), str(directory)))


def test_other_frozen_weights_are_refused(accel, run, tmp_path):
    document = copy_of(run, tmp_path)
    document["training"]["checkpoint"]["resume"] = "auto"
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    model = torch.jit.load(tmp_path / "model.pt")
    with torch.no_grad():
        dict(model.named_parameters())["base_model.model.model.layers.1.mlp.up_proj.weight"].add_(1e-3)
    torch.jit.save(model, tmp_path / "model.pt")
    said = accel("launch", tmp_path / "config.yaml", code=6).stderr
    assert "is of an adapter on other frozen weights than those of this run" in said


@pytest.mark.long(but="lora")
def test_a_checkpoint_of_all_weights_and_one_of_the_adapter_do_not_mix(accel, run, tmp_path):
    document = copy_of(run, tmp_path)
    document["training"]["checkpoint"].update(resume="auto", adapter_only=False)
    document["training"]["checkpoint"].pop("adapter_names", None)
    document["training"]["max_steps"] = STEPS - 1
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    accel("launch", tmp_path / "config.yaml")  # It goes on from the adapter, and saves all weights.
    document["training"]["max_steps"] = STEPS
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    accel("launch", tmp_path / "config.yaml")
    accel("diff", checkpoint(tmp_path) / "optimizer_0", checkpoint(run) / "optimizer_0")
    accel("merge-weights", checkpoint(tmp_path), tmp_path / "merged")
    merged = {name.replace(".modules_to_save.default", "").replace(".default", ""): tensor
              for name, tensor in load_file(tmp_path / "merged/model.safetensors").items()}
    exported = load_file(run / "out/export/adapter_model.safetensors")
    assert all(torch.equal(merged[name], tensor) for name, tensor in exported.items())
    document["training"]["checkpoint"].update(adapter_only=True, adapter_names=["lora_", "modules_to_save"])
    document["training"]["max_steps"] = STEPS + 1
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    said = accel("launch", tmp_path / "config.yaml", code=6).stderr
    assert "has all weights; training.checkpoint.adapter_only cannot go on from it" in said


def test_a_checkpoint_that_has_lost_some_frozen_weights_is_refused(accel, run, tmp_path):
    document = copy_of(run, tmp_path)
    state = {"model": {**torch.jit.load(tmp_path / "model.pt").state_dict()}}
    state["model"].pop("base_model.model.model.norm.weight")
    dcp.save(state, checkpoint_id=tmp_path / "state/pytorch_model_fsdp_0", no_dist=True)
    shutil.copytree(checkpoint(run) / "optimizer_0", tmp_path / "state/optimizer_0")
    document["training"]["checkpoint"].update(resume=str(tmp_path / "state"), adapter_only=False)
    document["training"]["checkpoint"].pop("adapter_names", None)
    document["training"]["output_dir"] = str(tmp_path / "other")
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    said = accel("launch", tmp_path / "config.yaml", code=6).stderr
    assert "has no weights for 1 of" in said and "'base_model.model.model.norm.weight'" in said


class Pair(torch.nn.Module):
    """Its parameters would have one name if `default` were stripped from both."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 16)
        self.lora_A = torch.nn.Linear(16, 16, bias=False)
        self.lora_A.default = torch.nn.Linear(16, 16, bias=False)
        self.head = torch.nn.Linear(16, 256)

    def forward(self, input_ids: torch.Tensor):
        x = self.tokens(input_ids)
        return self.head(torch.tanh(torch.nn.functional.linear(x, self.lora_A.weight) + self.lora_A.default.weight.sum()))


@pytest.mark.parametrize("frozen", [(), ("lora_A.default.weight",)])
def test_names_that_look_like_peft_s_are_not_mixed_up(accel, tmp_path, frozen):
    model = Pair()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    torch.jit.script(model).save(str(tmp_path / "model.pt"))
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"}
    accel("launch", config(tmp_path, checkpoint={"every": STEPS // 2}, **options))
    shutil.move(checkpoint(tmp_path), tmp_path / "whole")
    accel("launch", config(tmp_path, checkpoint={"every": STEPS // 2}, **options))
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        accel("diff", checkpoint(tmp_path) / part, tmp_path / "whole" / part)


def test_two_parameters_of_one_stored_name_are_refused(accel, tmp_path):
    model = Pair()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    torch.jit.script(model).save(str(tmp_path / "model.pt"))
    said = accel("launch", config(tmp_path, **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"}), code=6).stderr
    assert "would both be stored as 'lora_A.weight'" in said


def test_an_adapter_is_not_split(accel, run, tmp_path):
    said = accel("merge-weights", checkpoint(run), tmp_path / "merged", "--max-shard-size", "1KB", code=2).stderr
    assert "an adapter cannot be split into shards" in said
