"""accel inspect on files of torch and safetensors."""

import collections
import json

import ckpt_peers
import pytest
import safetensors.torch
import torch


@pytest.fixture
def inspect(accel):
    def run(path):
        return json.loads(accel("inspect", path, "--json").stdout)["checkpoints"]

    return run


def by_name(entries):
    return {entry["name"]: entry for entry in entries}


def test_dcp_checkpoint(inspect, torch_checkpoints):
    (found,) = inspect(torch_checkpoints / "net/pytorch_model_fsdp_0")
    assert found["kind"] == "dcp"
    expected = ckpt_peers.expected_state("net")
    tensors = by_name(found["tensors"])
    assert sorted(tensors) == sorted(f"model.{name}" for name in expected)
    for name, tensor in expected.items():
        entry = tensors[f"model.{name}"]
        assert entry["shape"] == list(tensor.shape)
        assert entry["dtype"] == str(tensor.dtype).removeprefix("torch.")
        assert entry["bytes"] == tensor.nbytes
    assert tensors["model.blocks.0.weight"]["files"] == ["__0_0.distcp", "__1_0.distcp"]


def test_optimizer_objects_are_decoded(inspect, torch_checkpoints):
    (found,) = inspect(torch_checkpoints / "net/optimizer_0")
    objects = by_name(found["objects"])
    assert objects["optimizer.param_groups.0.lr"]["value"] == "0.25"
    assert objects["optimizer.param_groups.0.foreach"]["value"] == "None"


def test_directory_of_checkpoints(inspect, torch_checkpoints):
    names = [entry["path"].split("/")[-1] for entry in inspect(torch_checkpoints / "net")]
    assert names == ["optimizer_0", "pytorch_model_fsdp_0"]


def test_safetensors_file(inspect, tmp_path):
    state = ckpt_peers.full_state("rows")
    safetensors.torch.save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt", "note": "x"})
    (found,) = inspect(tmp_path / "m.safetensors")
    assert found["kind"] == "safetensors"
    assert found["metadata"] == {"format": "pt", "note": "x"}
    assert {entry["name"]: entry["shape"] for entry in found["tensors"]} == {k: list(v.shape) for k, v in state.items()}


def test_torch_save_file(inspect, tmp_path):
    state = {"model": ckpt_peers.net().state_dict(), "step": 7, "pair": (torch.zeros(2), "x")}
    torch.save(state, tmp_path / "m.bin")
    (found,) = inspect(tmp_path / "m.bin")
    assert found["kind"] == "torch"
    tensors = by_name(found["tensors"])
    assert tensors["model.blocks.1.bias"]["shape"] == [6]
    assert tensors["pair.0"]["bytes"] == 8
    assert by_name(found["objects"])["step"]["value"] == "7"
    assert any(record["name"].endswith("/data.pkl") for record in found["files"])


def test_torchscript_file(accel, inspect, tmp_path):
    torch.jit.script(ckpt_peers.net()).save(tmp_path / "m.pt")
    (found,) = inspect(tmp_path / "m.pt")
    assert found["kind"] == "torchscript"
    tensors = by_name(found["tensors"])
    assert tensors["embed.weight"]["shape"] == [11, 6]
    assert tensors["blocks.2.weight"]["shape"] == [6, 6]
    assert "TorchScript model" in accel("inspect", tmp_path / "m.pt").stdout


def test_a_pickle_that_would_run_code_is_only_shown(inspect, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    torch.save(collections.OrderedDict(bomb=Bomb(), w=torch.zeros(2)), tmp_path / "m.bin")
    (found,) = inspect(tmp_path / "m.bin")
    assert by_name(found["tensors"])["w"]["shape"] == [2]
    assert not (tmp_path / "exploded").exists()


def test_missing_and_corrupt(accel, tmp_path):
    assert "is not there" in accel("inspect", tmp_path / "nothing", code=4).stderr
    torch.save(torch.zeros(4), tmp_path / "m.pt")
    data = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "short.pt").write_bytes(data[:-30])
    assert "short.pt" in accel("inspect", tmp_path / "short.pt", code=5).stderr
    (tmp_path / "m.safetensors").write_bytes(b"\xff" * 20)
    accel("inspect", tmp_path / "m.safetensors", code=5)
