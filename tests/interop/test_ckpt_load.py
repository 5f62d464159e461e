"""`accel load` writes models that torch.jit.load reads, with the new weights and without any other change."""

import json
import zipfile

import ckpt_peers
import pytest
import safetensors.torch
import torch
from ckpt_peers import assert_same


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.register_buffer("steps", torch.tensor(3))
        self.plain = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.plain[0] + self.steps


class Model(torch.nn.Module):
    """A model with tied, transposed, overlapping and plain tensors, a method besides forward, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.others = torch.nn.ModuleList([Inner(), Inner()])
        self.tied = self.inner.linear.weight
        self.transposed = torch.nn.Parameter(torch.randn(4, 6).t())
        self.channels_last = torch.nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
        base = torch.arange(10.0)
        self.register_buffer("left", base[2:6])
        self.register_buffer("right", base[4:8])
        self.register_buffer("bf", torch.randn(5).bfloat16())
        self.register_buffer("empty", torch.zeros(0, 3))
        self.lists = [torch.zeros(2)]

    @torch.jit.export
    def twice(self, x: int) -> int:
        return 2 * x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) + self.tied.sum() + self.transposed.sum() + self.channels_last[0, 0, 0, 1] + self.lists[0][0]
        for other in self.others:
            y = y + other(x)
        return y + self.left[0] + self.right[1] + self.bf[2] + torch.tensor([7.0])[0]


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(1)
    scripted = torch.jit.script(Model()).eval()
    torch.jit.save(scripted, tmp_path / "model.pt", _extra_files={"note.txt": "hello"})
    return tmp_path / "model.pt"


@pytest.fixture
def weights(model):
    """Other values for the full state dict of the model."""
    torch.manual_seed(2)
    state = {}
    for name, tensor in torch.jit.load(model).state_dict().items():
        state[name] = torch.randn(tensor.shape).to(tensor.dtype) if tensor.is_floating_point() else tensor + 5
    state["tied"] = state["inner.linear.weight"]
    state["right"][:2] = state["left"][2:]
    return state


def assert_loaded(path, model, expected):
    """Asserts that `path` is `model` with the state dict `expected` and no other difference."""
    extra = {"note.txt": ""}
    found = torch.jit.load(path, _extra_files=extra)
    assert_same(found.state_dict(), expected)
    assert extra["note.txt"] in ("hello", b"hello")
    assert found.twice(4) == 8
    before = torch.jit.load(model)
    assert found.training == before.training
    assert [t.stride() for t in found.state_dict().values()] == [t.stride() for t in before.state_dict().values()]
    assert found.tied.data_ptr() == found.inner.linear.weight.data_ptr()
    before.load_state_dict(expected)
    x = torch.randn(2, 3)
    assert torch.equal(found(x), before(x))
    with zipfile.ZipFile(path) as ours, zipfile.ZipFile(model) as theirs:
        assert ours.namelist() == theirs.namelist()
        assert ours.testzip() is None
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in ours.infolist())
        for name in ours.namelist():
            if "/data/" not in name:
                assert ours.read(name) == theirs.read(name), name


def checkpoint_of(form, weights, tmp_path, accel):
    torch.save(weights, tmp_path / "weights.bin")
    if form == "bin":
        return tmp_path / "weights.bin"
    if form == "safetensors":
        safetensors.torch.save_file({n: t.clone().contiguous() for n, t in weights.items()}, tmp_path / "w.safetensors")
        return tmp_path / "w.safetensors"
    accel("save", tmp_path / "weights.bin", tmp_path / form, "--type", form, "--ranks", 3)
    return tmp_path / form


@pytest.mark.parametrize("form", ["bin", "safetensors", "sharded", "local"])
def test_loads_every_kind(accel, model, weights, tmp_path, form):
    checkpoint = checkpoint_of(form, weights, tmp_path, accel)
    accel("load", checkpoint, "--into", model, "--out", tmp_path / "new.pt")
    assert_loaded(tmp_path / "new.pt", model, weights)


def test_other_dtypes_become_the_models(accel, model, weights, tmp_path):
    wide = {n: t.double() if t.is_floating_point() else t for n, t in weights.items()}
    torch.save(wide, tmp_path / "wide.bin")
    accel("load", tmp_path / "wide.bin", "--into", model, "--out", tmp_path / "new.pt")
    assert_loaded(tmp_path / "new.pt", model, weights)


def test_a_tied_weight_under_one_name_is_enough(accel, model, weights, tmp_path):
    torch.save({n: t for n, t in weights.items() if n != "tied"}, tmp_path / "w.bin")
    accel("load", tmp_path / "w.bin", "--into", model, "--out", tmp_path / "new.pt")
    assert_loaded(tmp_path / "new.pt", model, weights)


def test_what_does_not_fit_is_listed_at_once(accel, model, weights, tmp_path):
    del weights["inner.linear.bias"]
    weights["bf"] = torch.zeros(4)
    weights["inner.steps"] = torch.tensor(1.5)
    weights["more"] = torch.zeros(1)
    torch.save(weights, tmp_path / "w.bin")
    error = accel("load", tmp_path / "w.bin", "--into", model, "--out", tmp_path / "new.pt", code=1).stderr
    assert "missing 'inner.linear.bias'" in error
    assert "'bf' is [4], the model's is [5]" in error
    assert "'inner.steps' is float32, the model's is int64" in error
    assert "unexpected 'more'" in error
    assert not (tmp_path / "new.pt").exists()


def test_partial_keeps_what_is_missing(accel, model, weights, tmp_path):
    kept = torch.jit.load(model).state_dict()["others.1.linear.weight"]
    del weights["others.1.linear.weight"]
    torch.save(weights, tmp_path / "w.bin")
    arguments = ("load", tmp_path / "w.bin", "--into", model, "--out", tmp_path / "new.pt")
    assert "--partial" in accel(*arguments, code=1).stderr
    assert "'others.1.linear.weight'" in accel(*arguments, "--partial").stderr
    assert_loaded(tmp_path / "new.pt", model, {**weights, "others.1.linear.weight": kept})


@pytest.mark.parametrize("name", ["tied", "right"])
def test_tensors_that_share_bytes_must_agree(accel, model, weights, tmp_path, name):
    weights[name] = weights[name] + 1
    torch.save(weights, tmp_path / "w.bin")
    error = accel("load", tmp_path / "w.bin", "--into", model, "--out", tmp_path / "new.pt", code=1).stderr
    assert f"'{name}'" in error and "share their bytes in the model" in error


def test_existing_output_and_the_model_itself(accel, model, weights, tmp_path):
    torch.save(weights, tmp_path / "w.bin")
    arguments = ("load", tmp_path / "w.bin", "--into", model, "--out", model)
    assert "already there" in accel(*arguments, code=1).stderr
    original = tmp_path / "original.pt"
    original.write_bytes(model.read_bytes())
    result = json.loads(accel(*arguments, "--force", "--json", "--quiet").stdout)
    assert result["tensors"] == len(weights) and result["kept"] == []
    assert_loaded(model, original, weights)


def test_a_broken_model_is_found(accel, model, weights, tmp_path):
    torch.save(weights, tmp_path / "w.bin")
    arguments = ("load", tmp_path / "w.bin", "--into", model, "--out", tmp_path / "new.pt")
    whole = model.read_bytes()
    broken = bytearray(whole)
    broken[whole.index(b"hello")] ^= 1
    model.write_bytes(broken)
    assert "CRC" in accel(*arguments, code=5).stderr
    model.write_bytes(whole[: len(whole) // 2])
    assert accel(*arguments, code=None).returncode != 0
    torch.save(weights, model)
    assert "needs a model file" in accel(*arguments, code=2).stderr
    assert not (tmp_path / "new.pt").exists()


def test_dry_run_writes_nothing(accel, model, weights, tmp_path):
    torch.save(weights, tmp_path / "w.bin")
    result = accel("load", tmp_path / "w.bin", "--into", model, "--out", tmp_path / "new.pt", "--dry-run")
    assert "inner.linear.bias float32 [4]" in result.stdout
    assert not (tmp_path / "new.pt").exists()
    assert ckpt_peers.bits(torch.jit.load(model).bf) != ckpt_peers.bits(weights["bf"])


class Structure(torch.nn.Module):
    """A tied weight, and a module with the name of the device."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(8, 4)
        self.meta = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.full((4,), 2.0, device="cpu"))

    def forward(self, ids):
        return self.head(self.meta(self.tokens(ids)) * self.scale)


def test_a_structure_without_weights_gets_them(accel, tmp_path):
    with torch.device("meta"):
        torch.jit.script(Structure()).save(tmp_path / "structure.pt")
    whole = Structure()
    torch.save(whole.state_dict(), tmp_path / "w.bin")
    arguments = ("--into", tmp_path / "structure.pt", "--out", tmp_path / "new.pt")
    accel("load", tmp_path / "w.bin", *arguments)
    loaded = torch.jit.load(tmp_path / "new.pt")
    ids = torch.arange(8).view(2, 4)
    assert torch.equal(loaded(ids), whole(ids))
    assert loaded.head.weight is loaded.tokens.weight and all(p.requires_grad for p in loaded.parameters())
    missing = whole.state_dict()
    del missing["meta.bias"]
    torch.save(missing, tmp_path / "part.bin")
    error = accel("load", tmp_path / "part.bin", *arguments, "--force", "--partial", code=1).stderr
    assert "without values in the model, too: 'meta.bias'" in error


def test_a_model_is_replaced_only_if_nothing_is_damaged(accel, tmp_path):
    model = tmp_path / "model.pt"
    torch.jit.script(torch.nn.Linear(40, 30)).save(model)
    torch.save({"weight": torch.ones(30, 40), "bias": torch.ones(30)}, tmp_path / "state.bin")
    command = ("load", tmp_path / "state.bin", "--into", model, "--out", model, "--force")
    sound, before = (tmp_path / "state.bin").read_bytes(), model.read_bytes()
    for path in (model, tmp_path / "state.bin"):
        data = bytearray(path.read_bytes())
        data[data.index(b"data/0") + 200] ^= 1
        path.write_bytes(data)
        assert "checksum" in accel(*command, code=5).stderr
        assert path.read_bytes() == data
        path.write_bytes(before if path == model else sound)
    accel(*command)
    assert torch.equal(torch.jit.load(model).weight, torch.ones(30, 40))
