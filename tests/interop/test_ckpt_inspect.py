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


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, width), torch.nn.Linear(width, 4)

    def forward(self, x):
        return self.down(self.up(x))


class Stack(torch.nn.Module):
    """Four layers, of which one is larger, between an embedding and a head that shares its weight."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.layers = torch.nn.ModuleList(Layer(width) for width in (4, 4, 8, 4))
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, ids, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x) * self.scale
        return self.head(x), x


def saved_stack(path):
    """Trains the model for a step and saves it with its optimizer, as a training loop does."""
    model = Stack()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2]]))[0].sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    return model, optimizer


def table(text, title):
    """The rows of the table that begins with a title, by their first cells."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.split()[:1] == [title])
    end = next((i for i in range(begin, len(lines)) if not lines[i]), len(lines))
    return {line.split()[0]: line.split()[1:] for line in lines[begin + 1:end]}


def test_a_summary_by_layer_has_the_numbers_of_torch(accel, inspect, tmp_path):
    model, _ = saved_stack(tmp_path / "m.pt")
    (found,) = inspect(tmp_path / "m.pt")

    def sums(*prefixes):
        tensors = [tensor for name, tensor in model.state_dict().items() if name.startswith(prefixes)]
        return [len(tensors), sum(t.numel() for t in tensors), sum(t.nbytes for t in tensors)]

    layers = {row["name"]: [row["tensors"], row["elements"], row["bytes"]] for row in found["layers"]}
    assert layers == {"embed": sums("embed"), "head": sums("head"), "scale": sums("scale"), "layers.2": sums("layers.2."),
                      "layers.0-1,3": sums("layers.0.", "layers.1.", "layers.3.")}
    assert {row["name"]: row["layers"] for row in found["layers"]}["layers.0-1,3"] == 3
    rows = table(accel("inspect", "m.pt").stdout, "LAYER")
    one = sums("layers.0.")[1]
    assert rows["layers.0-1,3"][:3] == ["12", str(3 * one), str(one)]
    assert rows["scale"] == ["1", "4", "16", "B", "float32"]


def test_the_optimizer_is_summed_unless_it_is_asked_for(accel, inspect, tmp_path):
    model, optimizer = saved_stack(tmp_path / "m.pt")
    state = [value for values in optimizer.state_dict()["state"].values() for value in values.values()]
    elements = sum(value.numel() for value in state)
    summary = f"  optimizer: {len(state)} tensors ({len(state)} float32), {elements} elements, "
    plain, tensors, everything = (accel("inspect", "m.pt", *flags).stdout for flags in ([], ["--tensors"], ["--tensors", "--optimizer"]))
    assert all(summary in text for text in (plain, tensors, everything))
    weights = {f"model.{name}" for name in model.state_dict()}
    assert "TENSOR" not in plain.split() and set(table(tensors, "TENSOR")) == weights
    listed = set(table(everything, "TENSOR"))
    assert weights < listed and len(listed - weights) == len(state) and "optimizer.state.0.exp_avg" in listed
    assert set(table(plain, "OBJECT")) == {"epoch"} and "optimizer.param_groups.0.lr" in table(everything, "OBJECT")
    (found,) = inspect(tmp_path / "m.pt")
    assert sorted(entry["name"] for entry in found["tensors"] if entry["part"] == "weights") == sorted(weights)


def test_the_model_of_a_run_comes_first(accel, torch_checkpoints):
    text = accel("inspect", torch_checkpoints / "net").stdout
    assert 0 < text.index("pytorch_model_fsdp_0: sharded") < text.index("optimizer_0: sharded")
    assert "blocks.0-2" in table(text, "LAYER")


def test_what_a_model_file_says_of_its_model(accel, inspect, tmp_path):
    model = Stack()
    torch.jit.script(model).save(tmp_path / "m.pt")
    torch.export.save(torch.export.export(model, (torch.tensor([[1, 2]]),)), tmp_path / "m.pt2")
    script, exported = (inspect(tmp_path / name)[0]["model"] for name in ("m.pt", "m.pt2"))
    for found in (script, exported):
        assert [sorted(names) for names in found["ties"]] == [["embed.weight", "head.weight"]]
        assert found["parameters"] == len(list(model.parameters()))
        assert found["elements"] == sum(parameter.numel() for parameter in model.parameters())
        assert found["has_weights"] and found["class"] == "Stack"
        assert found["layers"] == [{"class": "Layer", "modules": 4}]
    assert script["inputs"] == [{"name": "ids", "type": "Tensor", "has_default": False},
                                {"name": "mask", "type": "Optional[Tensor]", "has_default": True}]
    assert script["returns"] == "Tuple[Tensor, Tensor]" and exported["inputs"][0]["name"] == "ids"
    text = accel("inspect", "m.pt").stdout
    assert "  inputs      ids: Tensor, mask: Optional[Tensor] (optional)\n" in text
    assert "  tied        embed.weight = head.weight\n" in text and "  weights     in the file\n" in text


def test_a_model_that_accel_cannot_train_is_shown_with_the_reason(accel, tmp_path):
    model = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(4, 4)), {torch.nn.Linear})
    torch.jit.script(model).save(tmp_path / "m.pt")
    assert "  accel cannot train it: " in accel("inspect", "m.pt").stdout


def test_a_table_is_as_wide_as_the_terminal(accel, on_terminal, tmp_path):
    name = "a_module_with_a_long_name." * 4 + "weight"
    safetensors.torch.save_file({name: torch.zeros(2)}, tmp_path / "m.safetensors")
    assert name in accel("inspect", "m.safetensors", "--tensors").stdout
    lines = on_terminal(60, "inspect", "m.safetensors", "--tensors").splitlines()
    cut = next(line for line in lines if line.startswith("  a_module"))
    assert len(cut) == 60 and "..." in cut and cut.split()[0].endswith("name.weight") and cut.endswith("  float32  [2]        8")
    assert max(map(len, lines)) == 60
