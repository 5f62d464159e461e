"""Files of torch.save before torch 1.6: a row of pickles with the storages behind them."""

import json
import pickle
import shutil

import pytest
import safetensors.torch
import torch
from ckpt_peers import assert_same, tensor_of

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool, torch.complex64]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)
        self.outer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.outer(self.inner(x))


def save(value, path):
    torch.save(value, path, _use_new_zipfile_serialization=False)


def state():
    shared = tensor_of(1, (6, 5), torch.float32)
    return {
        **{f"of.{str(dtype).removeprefix('torch.')}": tensor_of(i, (3, 5), dtype) for i, dtype in enumerate(DTYPES)},
        "all": shared,
        "part": shared[2:4],
        "turned": shared.t(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "large": tensor_of(9, (300, 401), torch.float32),
    }


@pytest.fixture
def old(tmp_path):
    save({"model": state(), "step": 3}, tmp_path / "old.pt")
    return tmp_path / "old.pt"


def test_merge_inspect_diff_and_load(accel, old, tmp_path):
    expected = torch.load(old, weights_only=True)["model"]
    accel("verify", old)
    accel("merge-weights", old, tmp_path / "merged", "--keep-tied")
    assert_same(safetensors.torch.load_file(tmp_path / "merged/model.safetensors"), expected)
    found = json.loads(accel("--json", "inspect", old).stdout)["checkpoints"][0]
    assert found["kind"] == "torch" and {t["name"] for t in found["tensors"]} == {f"model.{name}" for name in expected}
    torch.save({"model": expected, "step": 3}, tmp_path / "new.pt")
    assert "bit for bit" in accel("diff", old, tmp_path / "new.pt").stdout

    model, other = Model(), Model()
    torch.jit.script(model).save(str(tmp_path / "model.pt"))
    save(other.state_dict(), tmp_path / "weights.bin")
    accel("load", tmp_path / "weights.bin", "--into", tmp_path / "model.pt", "--out", tmp_path / "loaded.pt")
    assert_same(torch.jit.load(tmp_path / "loaded.pt").state_dict(), other.state_dict())
    save(model, tmp_path / "module.pt")  # A whole module: its classes are references to their sources.
    accel("merge-weights", tmp_path / "module.pt", tmp_path / "module")
    assert_same(safetensors.torch.load_file(tmp_path / "module/model.safetensors"), model.state_dict())


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_protocols_of_the_pickle(accel, tmp_path, protocol):
    torch.save(state(), tmp_path / "m.pt", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    accel("verify", tmp_path / "m.pt")
    accel("merge-weights", tmp_path / "m.pt", tmp_path / "out", "--keep-tied")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), state())


def test_shards_of_transformers_before_torch_1_6(accel, tmp_path):
    parts = {"pytorch_model-00001-of-00002.bin": {"a": torch.randn(3)}, "pytorch_model-00002-of-00002.bin": {"b": torch.randn(2, 2)}}
    for name, part in parts.items():
        save(part, tmp_path / name)
    weight_map = {key: name for name, part in parts.items() for key in part}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    accel("verify", tmp_path)
    accel("merge-weights", tmp_path, tmp_path / "out")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), {k: t for part in parts.values() for k, t in part.items()})


def test_damage_is_found(accel, old):
    data = old.read_bytes()
    for kept in (len(data) - 1, len(data) // 2, 300, 40):
        old.write_bytes(data[:kept])
        assert "broken: old.pt" in accel("verify", old, code=3).stdout
        assert "may be truncated" in accel("inspect", old, code=5).stderr
    old.write_bytes(data + b"behind")
    torch.load(old, weights_only=True)
    assert "note: 6 bytes follow the last storage" in accel("verify", old).stdout
    place = data.rindex((300 * 401).to_bytes(8, "little"))
    old.write_bytes(data[:place] + (300 * 400).to_bytes(8, "little") + data[place + 8 :])
    with pytest.raises(RuntimeError):
        torch.load(old, weights_only=True)
    assert "has 480000 bytes, its pickle says 481200" in accel("verify", old, code=3).stdout


def test_nothing_in_the_pickles_runs(accel, tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    save({"w": torch.ones(2), "harm": Harm()}, tmp_path / "harm.pt")
    accel("merge-weights", tmp_path / "harm.pt", tmp_path / "out")
    accel("verify", tmp_path / "harm.pt")
    assert not (tmp_path / "harm").exists()
    assert pickle.loads(pickle.dumps(Harm())) is not None and (tmp_path / "harm").exists(), "Python runs it"  # noqa: S301


def test_a_tar_is_named(accel, tmp_path):
    for name in ("sys_info", "pickle", "tensors", "storages"):
        (tmp_path / "parts" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "parts" / name).write_bytes(b"x")
    shutil.make_archive(str(tmp_path / "old"), "tar", tmp_path / "parts")
    (tmp_path / "old.tar").rename(tmp_path / "old.pt")
    assert "the form of torch.save before torch 0.1.10" in accel("inspect", tmp_path / "old.pt", code=1).stderr
    assert "the form of torch.save before torch 0.1.10" in accel("verify", tmp_path / "old.pt", code=3).stdout
