"""Checkpoints that Accelerate and torchao save of a training in float8, whose weights are pickled as wrappers of tensors."""

import json
import os
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import train_runs

pytestmark = pytest.mark.long

# torchao is beside the environment; see make_zoo in tools/dev.
sys.path.append(os.environ.get("ACCEL_ZOO_PACKAGES", ""))
pytest.importorskip("torchao.float8", reason="torchao is not installed")
import torchao.optim  # noqa: E402

MODEL = "pytorch_model_fsdp_0"
WRAPPED = b"WeightWithDynamicFloat8CastTensor"


@pytest.fixture(scope="module")
def saved(peer_server, tmp_path_factory):
    """The directory that two ranks of float8_state_peer.py wrote."""
    directory = tmp_path_factory.mktemp("float8")
    train_runs.export(directory / "gpt.pt")
    peer_server.run(2, directory / "peer.log", "float8_state_peer.py", directory / "gpt.pt", directory)
    return directory


@pytest.fixture(scope="module")
def gathered(saved):
    return torch.load(saved / "gathered.pt", weights_only=True)


def require_equal(path, gathered):
    merged = load_file(path)
    assert gathered.keys() <= merged.keys() <= gathered.keys() | {"head.weight"}  # It is tied.
    for name, value in gathered.items():
        assert torch.equal(merged[name], value), name


@pytest.mark.parametrize("source, wrapped", [(f"sharded/{MODEL}", True), ("files", True), ("full/pytorch_model_fsdp.bin", False)])
def test_merged_weights_are_the_gathered_parameters(accel, saved, gathered, tmp_path, source, wrapped):
    """A full state has plain tensors, since Accelerate gathers it."""
    files = [saved / source] if (saved / source).is_file() else [file for file in (saved / source).iterdir() if file.suffix]
    assert any(WRAPPED in file.read_bytes() for file in files) == wrapped
    accel("merge-weights", saved / source, tmp_path / "merged", "--verify")
    require_equal(tmp_path / "merged/model.safetensors", gathered)


def test_inspect_verify_and_diff(accel, saved):
    sharded, full = saved / "sharded" / MODEL, saved / "full/pytorch_model_fsdp.bin"
    listed = json.loads(accel("--json", "inspect", sharded).stdout)["checkpoints"][0]["tensors"]
    (up,) = [tensor for tensor in listed if tensor["name"].endswith("blocks.0.up.weight")]
    assert up["dtype"] == "float32" and up["shape"] == [192, 48]
    accel("verify", saved / "sharded")
    assert ": " in accel("diff", sharded, full).stdout
    changed = torch.load(full, weights_only=True)
    changed["blocks.0.up.weight"][190, 3] += 1
    torch.save(changed, saved / "changed.bin")
    said = accel("diff", sharded, saved / "changed.bin", code=3).stdout
    assert "blocks.0.up.weight differs in 1 of 9216 elements, at most by 1 " in said and "first at [190, 3]" in said


def test_other_forms_are_written(accel, saved, gathered, tmp_path):
    for kind in ("full", "sharded", "local"):
        accel("save", saved / "sharded" / MODEL, tmp_path / kind, "--type", kind, *(() if kind == "full" else ("--ranks", 3)))
        accel("merge-weights", tmp_path / kind, tmp_path / f"of_{kind}")
        require_equal(tmp_path / f"of_{kind}/model.safetensors", gathered)


@pytest.mark.parametrize("key", ["model.weights", "checkpoint.resume"])
def test_a_training_begins_or_goes_on(accel, saved, gathered, tmp_path, key):
    """The learning rate is 0, so that the weights stay those of the checkpoint."""
    source = saved / "sharded" / (MODEL if key == "model.weights" else "")
    config = train_runs.config(tmp_path, 2, **{
        "max_steps": 3, "checkpoint.every": 3, "model.path": str(saved / "gpt.pt"), key: str(source),
        "optimizer": {"type": "adamw", "lr": 0.0, "weight_decay": 0.0}, "lr_scheduler": {"type": "constant"}})
    accel("launch", config)
    accel("merge-weights", tmp_path / "out/checkpoints/checkpoint_3", tmp_path / "merged")
    require_equal(tmp_path / "merged/model.safetensors", gathered)


@pytest.mark.parametrize("form", ["dcp", "file"])
def test_moments_of_8_bits_are_refused_by_name(accel, tmp_path, form):
    """Their values follow from `codes`, `scale` and `qmap`."""
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = torchao.optim.AdamW8bit([weight], lr=0.01)
    weight.grad = torch.ones_like(weight)
    torch.compiler.set_stance("force_eager")
    optimizer.step()
    torch.compiler.set_stance("default")
    path = tmp_path / ("state.pt" if form == "file" else "state")
    state = {"w": weight.detach(), **optimizer.state_dict()}
    torch.save(state, path) if form == "file" else dcp.save(state, checkpoint_id=path, no_dist=True)
    accel("verify", path)
    said = accel("diff", path, path, code=1).stderr
    assert "'state.0.exp_avg" in said  # Of the two moments the one that a thread came to first.
    assert "a tensor of the class torchao.optim.subclass_8bit.OptimState8bit" in said
    assert "hint: save it as a plain tensor, or leave it out" in said
    assert "same: 1 tensors," in accel("diff", path, path, "--include", "w").stdout
