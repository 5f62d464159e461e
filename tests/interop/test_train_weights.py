"""Weights that are not from the model file: safetensors of transformers, checkpoints and random values."""

import json

import pytest
import torch
import transformers

import train_runs
from accel_export import cli
from safetensors.torch import load_file, save_file

SIZES = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A directory for from_pretrained, with several weight files, and its model traced without and with weights."""
    directory = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.save_pretrained(directory / "hf", max_shard_size="40KB")
    assert (directory / "hf/model.safetensors.index.json").exists()
    for name, flags in (("structure", []), ("full", ["--weights"])):
        cli.main([str(directory / "hf"), str(directory / f"{name}.pt"), *flags])
    return directory


def run(accel, directory, model, processes=2, code=0, lr=3e-3, **model_options):
    directory.mkdir()
    config = train_runs.config(directory, processes, max_steps=4, eval_every=4, **{
        "optimizer.lr": lr, "model": {"path": str(model), **model_options},
        "data.eval": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 32, "max_samples": 8},
        "checkpoint": {"every": 4, "resume": "none"},
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"})
    document = json.loads(config.read_text())
    del document["training"]["data"]["eval"]["max_samples"]
    short = directory / "eval.txt"
    short.write_bytes(train_runs.TEXT.read_bytes()[:32 * 20 + 1])
    document["training"]["data"]["eval"]["path"] = str(short)
    config.write_text(json.dumps(document))
    return accel("launch", config, code=code)


def losses(directory):
    return train_runs.metrics(directory) + train_runs.metrics(directory, "eval_loss")


def test_original_safetensors_train_and_come_back(accel, llama, tmp_path):
    """accel trains a Hugging Face directory into another one. The model file never has the weights."""
    assert (llama / "structure.pt").stat().st_size < 150_000
    run(accel, tmp_path / "full", llama / "full.pt")
    run(accel, tmp_path / "weights", llama / "structure.pt", weights=str(llama / "hf"))
    assert losses(tmp_path / "weights") == losses(tmp_path / "full")

    accel("merge-weights", tmp_path / "weights/out/checkpoints", tmp_path / "merged",
          "--copy-assets", llama / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    tokens = torch.frombuffer(bytearray((tmp_path / "full/eval.txt").read_bytes()), dtype=torch.uint8).long()
    windows = torch.stack([tokens[i:i + 33] for i in range(0, 32 * 20, 32)])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(windows[:, :-1]).logits.flatten(0, 1), windows[:, 1:].flatten())
    assert abs(loss.item() - train_runs.metrics(tmp_path / "weights", "eval_loss")[-1]) < 1e-5


def test_checkpoints_and_other_dtypes_are_weights_too(accel, llama, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama / "hf", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "bf16")
    assert run(accel, tmp_path / "a", llama / "structure.pt", weights=str(tmp_path / "bf16")).returncode == 0
    model.to(torch.float32).save_pretrained(tmp_path / "rounded")
    run(accel, tmp_path / "b", llama / "structure.pt", weights=str(tmp_path / "rounded"))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    accel("save", tmp_path / "rounded", tmp_path / "sharded", "--type", "sharded", "--ranks", 3)
    run(accel, tmp_path / "c", llama / "structure.pt", weights=str(tmp_path / "sharded"))
    assert losses(tmp_path / "c") == losses(tmp_path / "b")


@pytest.mark.long(but="each rank-1-2-bf16")
@pytest.mark.parametrize("processes, version, precision", [(1, 2, "bf16"), (2, 2, "bf16"), (2, 1, "bf16"), (2, 2, "fp16")])
@pytest.mark.parametrize("from_rank_0", [False, True], ids=["each rank", "rank 0"])
def test_master_weights_have_the_precision_of_the_weights(accel, tmp_path, processes, version, precision, from_rank_0):
    """The model file is in bfloat16, as many are. The master weights equal those of the float32 file bit for bit."""
    model = train_runs.export(tmp_path / "gpt.pt")
    torch.jit.script(model.bfloat16()).save(str(tmp_path / "gpt.pt"))
    exact = train_runs.export(tmp_path / "float32.pt").state_dict()
    del exact["head.weight"]  # It is tied to tokens.weight.
    save_file({name: tensor.contiguous() for name, tensor in exact.items()}, tmp_path / "weights.safetensors")
    config = train_runs.config(tmp_path, processes, max_steps=1, **{
        "model.weights": str(tmp_path / "weights.safetensors"), "model.broadcast_from_rank0": from_rank_0,
        "optimizer.lr": 0, "lr_scheduler": {"type": "constant"}, "checkpoint": {"every": 1, "resume": "none"},
        "fsdp_config.fsdp_version": version})
    accel("launch", config, "--mixed-precision", precision)
    accel("merge-weights", tmp_path / "out/checkpoints/checkpoint_1", tmp_path / "merged")
    trained = load_file(tmp_path / "merged/model.safetensors")
    for name, tensor in exact.items():
        assert trained[name].dtype == torch.float32 and torch.equal(trained[name], tensor), name


def test_random_weights_are_those_of_any_world_size(accel, llama, tmp_path):
    states = []
    for processes in (1, 3):
        # With such a small learning rate the weights do not change.
        run(accel, tmp_path / str(processes), llama / "structure.pt", processes, init={"std": 0.02}, lr=1e-30)
        accel("merge-weights", tmp_path / str(processes) / "out/checkpoints", tmp_path / f"merged{processes}")
        states.append(load_file(tmp_path / f"merged{processes}/model.safetensors"))
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
        if tensor.dim() == 1:
            assert (tensor == 1).all(), name
        else:
            assert abs(tensor.std().item() - 0.02) < 0.001 and abs(tensor.mean().item()) < 0.002, name
    first, second = (states[0][f"model.layers.{i}.self_attn.q_proj.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("what", ["nothing", "missing", "shape", "contradiction", "absent"])
def test_what_does_not_fit_is_named(accel, llama, tmp_path, what):
    state = {name: tensor.clone() for name, tensor in transformers.AutoModelForCausalLM.from_pretrained(
        llama / "hf").state_dict().items()}
    if what == "missing":
        state["model.layers.1.mlp.up_prj.weight"] = state.pop("model.layers.1.mlp.up_proj.weight")
    if what == "shape":
        state["model.norm.weight"] = torch.ones(31)
    save_file(state, tmp_path / "weights.safetensors")
    options = {} if what == "nothing" else {"weights": str(tmp_path / "weights.safetensors")}
    if what == "contradiction":
        options["init"] = {"std": 0.02}
    if what == "absent":
        options["weights"] = "none.safetensors"
    error = run(accel, tmp_path / "run", llama / "structure.pt", code=None, **options)
    assert error.returncode != 0
    expected = {
        "nothing": ["the model file has no values for 'model.embed_tokens.weight'", "training.model.weights"],
        "missing": ["has no weights for 1 of 30 parameters: 'model.layers.1.mlp.up_proj.weight'",
                    "the nearest name there is 'model.layers.1.mlp.up_prj.weight'"],
        "shape": ["'model.norm.weight' is [31], the model's is [32]"],
        "contradiction": ["'training.model.init.std' contradicts 'training.model.weights'"],
        "absent": ["'none.safetensors' does not exist"],
    }[what]
    for text in expected:
        assert text in error.stderr


def test_what_the_model_ties_has_to_be_the_same_in_the_weights(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")  # Its head is tied to its embedding.
    state = {name: value.clone() for name, value in torch.jit.load(tmp_path / "gpt.pt").state_dict().items()}
    config = {"max_steps": 1, "model.weights": str(tmp_path / "model.safetensors")}

    def launch(code=0, **changed):
        save_file({**state, **changed}, tmp_path / "model.safetensors")
        (tmp_path / "out/metrics.jsonl").unlink(missing_ok=True)
        return accel("launch", train_runs.config(tmp_path, 2, **config), code=code).stderr

    launch()
    assert len(train_runs.metrics(tmp_path)) == 1
    other = state["head.weight"].clone()
    other[-1, -1] += 1
    assert "'tokens.weight' and 'head.weight' are tied in the model, but their values differ in the weights" in launch(
        6, **{"head.weight": other})
    assert "'head.weight' is float32 [2, 48], but it is tied in the model to 'tokens.weight'" in launch(
        2, **{"head.weight": other[:2].clone()})
