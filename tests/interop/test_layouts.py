"""Checkpoints that hold more than weights, written by torch in the layouts of other programs: the weights alone are taken."""

import json

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckpt_peers import assert_same
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("step", torch.tensor(3))  # It has the name of what an optimizer keeps.

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(4))


class CausalLM(torch.nn.Module):
    """As in transformers, the attributes have the names of parts of a checkpoint."""

    def __init__(self):
        super().__init__()
        self.model = Net()
        self.scaler = Scale()
        self.lm_head = torch.nn.Linear(4, 7, bias=False)


class AppState(Stateful):
    """As in PyTorch's tutorial "Getting Started with Distributed Checkpoint"."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state_dict):
        raise NotImplementedError


def optimizer_by_name(model, optimizer, flat=False):
    return get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat))


def titan(model, optimizer):
    """As torchtitan does: the weights have no key above them, and the optimizer's state dict is flat."""
    return {
        **get_model_state_dict(model),
        "optimizer": optimizer_by_name(model, optimizer, flat=True),
        "lr_scheduler": {"last_epoch": 3, "base_lrs": [0.1]},
        "dataloader": {"dp_rank_0": b"state", "world_size": 2},
        "train_state": {"step": torch.tensor(3, dtype=torch.int32), "ntokens_seen": torch.tensor(30)},
    }


def lightning(model, optimizer):
    return {
        "epoch": 1, "global_step": 3, "pytorch-lightning_version": "2.5.0", "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"epoch_progress": {"current": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [{"last_epoch": 3}],
        "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.1},
    }  # fmt: skip


DCP = {
    "AppState": lambda m, o: {"app": AppState(m, o)},
    "VeOmni": lambda m, o: {"state": {"model": get_model_state_dict(m), "optimizer": optimizer_by_name(m, o), "extra": {"step": 3}}},
    "torchtitan": titan,
    "model and optimizer": lambda m, o: {"model": get_model_state_dict(m), "optimizer": optimizer_by_name(m, o), "epoch": 1},
}
TORCH = {
    "Lightning": lightning,
    "plain": lambda m, o: {"model": m.state_dict(), "optimizer": o.state_dict(), "epoch": 3, "loss": torch.tensor(0.5)},
    "recipe": lambda m, o: {"epoch": 3, "model_state_dict": m.state_dict(), "optimizer_state_dict": o.state_dict(), "loss": 0.5},
    "module": lambda m, o: {"module": m.state_dict(), "optimizer": o.state_dict(), "global_steps": 3},
    "unknown key": lambda m, o: {"net": m.state_dict(), "opt": o.state_dict()},
}
OPTIMIZER = {"AppState": "app.optim", "VeOmni": "state.optimizer", "Lightning": "optimizer_states", "recipe": "optimizer_state_dict",
             "unknown key": "opt"}  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.arange(7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.fixture(scope="module", params=[*DCP, *TORCH])
def checkpoint(request, trained, tmp_path_factory):
    directory = tmp_path_factory.mktemp("layout")
    if request.param in DCP:
        dcp.save(DCP[request.param](*trained), checkpoint_id=directory / "ckpt", no_dist=True)
        return request.param, directory / "ckpt"
    torch.save(TORCH[request.param](*trained), directory / "last.ckpt")
    return request.param, directory / "last.ckpt"


def test_weights_alone_are_taken(accel, trained, checkpoint, tmp_path):
    """merge-weights, save, load and diff take the weights, and one line says what they leave out."""
    layout, path = checkpoint
    expected = trained[0].state_dict()
    merged = accel("merge-weights", path, tmp_path / "merged", "--verify")
    assert_same(safetensors.torch.load_file(tmp_path / "merged/model.safetensors"), expected)
    lines = [line for line in merged.stderr.splitlines() if "warning" in line]
    assert len(lines) == 1 and f"'{path}': left out is " in lines[0] and "--root takes the tensors below a key" in lines[0]
    optimizer = OPTIMIZER.get(layout, "optimizer")
    assert f"'{optimizer}' (15 tensors, " in lines[0]

    for form, options in {"full": [], "sharded": ["--ranks", 2], "local": ["--ranks", 2]}.items():
        saved = accel("save", path, tmp_path / form, "--type", form, *options)
        assert f"'{optimizer}' (15 tensors, " in saved.stderr
        accel("diff", tmp_path / form, tmp_path / "merged/model.safetensors")
    assert_same(torch.load(tmp_path / "full/pytorch_model_fsdp.bin", weights_only=True), expected)

    torch.jit.script(Net()).save(tmp_path / "net.pt")
    accel("load", path, "--into", tmp_path / "net.pt", "--out", tmp_path / "loaded.pt")
    assert_same(torch.jit.load(tmp_path / "loaded.pt").state_dict(), expected)
    accel("diff", path, tmp_path / "merged/model.safetensors")


def test_the_optimizer_is_taken_if_it_is_named(accel, trained, checkpoint, tmp_path):
    layout, path = checkpoint
    root = OPTIMIZER.get(layout, "optimizer") + (".0" if layout == "Lightning" else "")
    accel("merge-weights", path, tmp_path / "out", "--root", root)
    tensors = safetensors.torch.load_file(tmp_path / "out/optimizer.safetensors")
    state = trained[1].state_dict()["state"]
    names = [name for name, _ in trained[0].named_parameters()] if path.is_dir() else range(len(state))
    assert_same(tensors, {f"state.{name}.{key}": value for name, values in zip(names, state.values()) for key, value in values.items()})
    assert "param_groups" in (tmp_path / "out/optimizer.json").read_text()
    assert not (tmp_path / "out/model.safetensors").exists()


def test_inspect_says_which_part_is_the_weights(accel, trained, checkpoint):
    layout, path = checkpoint
    found = json.loads(accel("inspect", path, "--json").stdout)["checkpoints"][0]
    optimizer = OPTIMIZER.get(layout, "optimizer")
    assert {part["name"]: part["tensors"] for part in found["beside"]}[optimizer] == 15
    root = f" under '{found['roots'][0]}'" if found["roots"] else ""
    assert f"  weights{root}; beside them " in accel("inspect", path).stdout


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_has_the_names_of_its_state_dict(accel, tmp_path, zipped):
    model = CausalLM()
    optimizer = torch.optim.AdamW(model.parameters())
    model.lm_head(torch.ones(4)).sum().backward()
    optimizer.step()
    for name, state in {"alone": model, "run": {"model": model, "optimizer": optimizer.state_dict(), "epoch": 1}}.items():
        torch.save(state, tmp_path / f"{name}.pt", _use_new_zipfile_serialization=zipped)
        accel("merge-weights", f"{name}.pt", name)
        assert_same(safetensors.torch.load_file(tmp_path / name / "model.safetensors"), model.state_dict())


def test_weights_beside_the_model_are_not_left_out_unasked(accel, trained, tmp_path):
    head = torch.nn.Linear(4, 7).state_dict()
    torch.save({"model": trained[0].state_dict(), "head": head}, tmp_path / "two.pt")
    error = accel("merge-weights", "two.pt", "out", code=2).stderr
    assert "holds several sets of weights: 'model', 'head'" in error and "--root head" in error
    accel("merge-weights", "two.pt", "out", "--root", "head")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), head)


@pytest.mark.parametrize("form", ["dcp", "torch"])
def test_several_sets_of_weights_are_an_error(accel, trained, tmp_path, form):
    """An exponential moving average has the names of the model."""
    model, optimizer = trained
    average = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    state = {"model": model.state_dict(), "ema": average, "optimizer": optimizer_by_name(model, optimizer)}
    path = tmp_path / ("ckpt" if form == "dcp" else "last.pt")
    dcp.save(state, checkpoint_id=path, no_dist=True) if form == "dcp" else torch.save(state, path)
    torch.jit.script(Net()).save(tmp_path / "net.pt")
    commands = {"merge-weights": ["out"], "save": ["out", "--type", "full"], "load": ["--into", "net.pt", "--out", "out.pt"]}
    for command, arguments in commands.items():
        error = accel(command, path, *arguments, code=2).stderr
        assert "holds several sets of weights: 'model', 'ema'" in error and "--root ema" in error
    accel("merge-weights", path, "out", "--root", "ema")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), average)
    accel("load", path, "--into", "net.pt", "--out", "out.pt", "--root", "ema")
    assert_same(torch.jit.load(tmp_path / "out.pt").state_dict(), average)
    accel("save", path, "saved", "--type", "full", "--root", "model")
    assert_same(torch.load(tmp_path / "saved/pytorch_model_fsdp.bin", weights_only=True), model.state_dict())


def test_flat_names_of_an_optimizer_are_no_weights(accel, trained, tmp_path):
    """Without planner_data a sharded checkpoint has flat names alone, as safetensors have."""
    model, optimizer = trained
    flat = {f"optimizer.{name}": value for name, value in optimizer_by_name(model, optimizer, flat=True).items()
            if isinstance(value, torch.Tensor)}  # fmt: skip
    safetensors.torch.save_file({**model.state_dict(), **flat}, tmp_path / "all.safetensors")
    accel("merge-weights", tmp_path / "all.safetensors", tmp_path / "out")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), model.state_dict())
    # What was merged of an optimizer stays an optimizer's.
    dcp.save({"optimizer": optimizer_by_name(model, optimizer)}, checkpoint_id=tmp_path / "optimizer", no_dist=True)
    accel("merge-weights", tmp_path / "optimizer", tmp_path / "state")
    accel("merge-weights", tmp_path / "state/optimizer.safetensors", tmp_path / "again")
    assert (tmp_path / "again/optimizer.safetensors").exists()
