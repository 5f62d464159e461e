"""Checkpoints that hold more than weights, written by torch in the layouts of other programs: the weights alone are taken."""

import collections
import json

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckpt_peers import assert_same
import transformers
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
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
    "deep": lambda m, o: {"trainer": {"state": {"model": m.state_dict(), "optimizers": [o.state_dict()]}}, "epoch": 1},
}
OPTIMIZER = {"AppState": "app.optim", "VeOmni": "state.optimizer", "Lightning": "optimizer_states", "recipe": "optimizer_state_dict",
             "unknown key": "opt", "deep": "trainer.state.optimizers"}  # fmt: skip


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
    root = OPTIMIZER.get(layout, "optimizer") + (".0" if layout in ("Lightning", "deep") else "")
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


def moments(model, optimizer):
    """The state of each parameter under the names that torch has: {"exp_avg": {parameter: tensor}}."""
    found = collections.defaultdict(dict)
    for name, kept in optimizer_by_name(model, optimizer)["state"].items():
        for key, value in kept.items():
            found[key][name] = value
    return found


def torch_dist(prefix, module=""):
    """The names of Megatron-Core's torch_dist: make_sharded_optimizer_tensor() in megatron/core/dist_checkpointing/optimizer.py
    and sharded_param_state_fs_model_space() in megatron/core/optimizer/distrib_optimizer.py, which also has the master weights;
    `chained_N.` is of ChainedOptimizer, and NeMo has the model below `module.`."""
    def write(model, optimizer):
        kept = moments(model, optimizer)
        kept["fp32_param"] = {name: value.detach() * 2 for name, value in model.named_parameters()}
        states = {f"{prefix}optimizer.state.{key}.{module}{name}": value for key in ("exp_avg", "exp_avg_sq", "fp32_param")
                  for name, value in kept[key].items()}
        return {module + name: value for name, value in model.state_dict().items()} | states
    return write


def buckets(model, optimizer):
    """As sharded_param_state_dp_reshardable() in megatron/core/optimizer/distrib_optimizer.py names a bucket."""
    start = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0."
    return model.state_dict() | {start + key: torch.randn(20) for key in ("param", "exp_avg", "exp_avg_sq")}


FLAT = {"Megatron": torch_dist(""), "chained": torch_dist("chained_0."), "NeMo": torch_dist("", "module."), "buckets": buckets}


@pytest.mark.parametrize("layout", FLAT)
def test_flat_names_of_megatron(accel, trained, tmp_path, layout):
    """Megatron-Core saves without planner_data, so that there are flat names alone."""
    state = FLAT[layout](*trained)
    dcp.save(state, checkpoint_id=tmp_path / "ckpt", planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
    weights = {name: value for name, value in state.items() if "optimizer." not in name}
    left_out = f"left out is '{'chained_0.' if layout == 'chained' else ''}optimizer' ({len(state) - len(weights)} tensors)"
    assert left_out in accel("merge-weights", "ckpt", "out").stderr
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), weights)
    assert left_out in accel("save", "ckpt", "full", "--type", "full").stderr
    assert_same(torch.load(tmp_path / "full/pytorch_model_fsdp.bin", weights_only=True), weights)
    found = json.loads(accel("inspect", "ckpt", "--json").stdout)["checkpoints"][0]
    assert [part["tensors"] for part in found["beside"]] == [len(state) - len(weights)]


@pytest.mark.parametrize("kind", ["torch", "transformers"])
def test_flat_names_of_adafactor(accel, tmp_path, kind):
    """The states have other shapes than the weights, and names of their own."""
    model = Net()
    make = {"torch": torch.optim.Adafactor, "transformers": transformers.optimization.Adafactor}[kind]
    optimizer = make(model.parameters(), lr=0.1, **({} if kind == "torch" else {"relative_step": False}))
    model(torch.arange(7)).square().sum().backward()
    optimizer.step()
    flat = {f"state.{name}.{key}": value for key, kept in moments(model, optimizer).items() for name, value in kept.items()
            if isinstance(value, torch.Tensor)}  # fmt: skip
    assert any(name.endswith(("row_var", "exp_avg_sq_row")) for name in flat)
    safetensors.torch.save_file(model.state_dict() | flat, tmp_path / "all.safetensors")
    accel("merge-weights", "all.safetensors", "out")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), model.state_dict())
    safetensors.torch.save_file(flat, tmp_path / "alone.safetensors")
    accel("merge-weights", "alone.safetensors", "alone")
    assert_same(safetensors.torch.load_file(tmp_path / "alone/optimizer.safetensors"), flat)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizers_own_state_dict_loads_again(accel, tmp_path, make):
    """Its state has the keys 0 to n - 1 and is a dict. SGD keeps nothing, so that its state is empty."""
    model = Net()
    optimizer = make(model.parameters(), lr=0.1)
    model(torch.arange(7)).square().sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.bin")
    accel("save", "optimizer.bin", "full", "--type", "full")
    written = ["full/optimizer.bin"]
    if make is not torch.optim.SGD:
        accel("merge-weights", "optimizer.bin", "merged", "--unsafe-serialization")
        written.append("merged/optimizer.bin")
    for path in written:
        loaded = torch.load(tmp_path / path, weights_only=True)
        again = make(model.parameters(), lr=0.5)
        again.load_state_dict(loaded)
        assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
        assert_same(*({f"{i}.{key}": value for i, kept in one.state_dict()["state"].items() for key, value in kept.items()}
                      for one in (again, optimizer)))
    torch.save({"experts": {0: torch.ones(2), 1: torch.zeros(2)}, "list": [torch.ones(2)]}, tmp_path / "dict.bin")
    accel("save", "dict.bin", "dict", "--type", "full")
    loaded = torch.load(tmp_path / "dict/pytorch_model_fsdp.bin", weights_only=True)
    assert list(loaded["experts"]) == [0, 1] and isinstance(loaded["list"], list)


class PickledByPython2(dict):
    """Python 2 pickles an OrderedDict as a call with a list of pairs, which are lists."""

    def __reduce__(self):
        return collections.OrderedDict, ([[name, value] for name, value in self.items()],)


def test_an_ordered_dict_of_python_2_has_its_entries(accel, trained, tmp_path):
    model, optimizer = trained
    state = PickledByPython2(model.state_dict())
    for name, value in {"alone": state, "run": {"state_dict": state, "optimizer": optimizer.state_dict()}}.items():
        torch.save(value, tmp_path / f"{name}.pth")
        accel("merge-weights", f"{name}.pth", name)
        assert_same(safetensors.torch.load_file(tmp_path / name / "model.safetensors"), model.state_dict())


def test_folders_of_zero_are_refused(accel, trained, tmp_path):
    """The files and keys of DeepSpeed: engine.py (_get_ckpt_name, _save_zero_checkpoint), stage3.py and
    checkpoint/constants.py. The parameters of ZeRO 3 are empty in the files of the model."""
    model, _ = trained
    shapes = [collections.OrderedDict((name, value.shape) for name, value in model.named_parameters())]
    empty = {name: value.new_empty(0) for name, value in model.named_parameters()}
    partition = {"optimizer_state_dict": {"zero_stage": 3, "partition_count": 2, "fp32_flat_groups": [torch.ones(9)]}}
    for stage, names in {1: ["mp_rank_00"], 3: ["zero_pp_rank_0_mp_rank_00", "zero_pp_rank_1_mp_rank_00"]}.items():
        folder = tmp_path / f"z{stage}/global_step2"
        folder.mkdir(parents=True)
        for name in names:
            module = model.state_dict() if stage == 1 else empty
            torch.save({"module": module, "param_shapes": shapes, "ds_version": "0.18"}, folder / f"{name}_model_states.pt")
        for rank in range(2):
            torch.save(partition, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        for command in (["merge-weights", f"z{stage}", "out"], ["save", folder, "out", "--type", "full"]):
            said = accel(*command, code=1).stderr
            assert "global_step2' is a checkpoint of DeepSpeed's ZeRO" in said and "zero_to_fp32.py" in said
        said = accel("merge-weights", folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt", "out", code=1).stderr
        assert "is in a file of one rank of DeepSpeed's ZeRO" in said
    said = accel("merge-weights", folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", "out", code=1).stderr
    assert "is empty here, since DeepSpeed's ZeRO 3 has its elements in the files of the ranks" in said
    # The weights of ZeRO 1 and 2 are whole in the file of the model.
    accel("merge-weights", tmp_path / "z1/global_step2/mp_rank_00_model_states.pt", "one")
    assert_same(safetensors.torch.load_file(tmp_path / "one/model.safetensors"), model.state_dict())
