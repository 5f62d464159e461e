"""AdamW with 8-bit moments against torchao's AdamW8bit on one process, bit for bit, and at other numbers of ranks, where torchao
cannot resume: its blocks are those of a shard."""

import os
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import test_optimizers as optimizers
import train_runs

pytestmark = pytest.mark.long

# torchao is beside the environment; see make_zoo in tools/dev.
sys.path.append(os.environ.get("ACCEL_ZOO_PACKAGES", ""))
torchao = pytest.importorskip("torchao.optim", reason="torchao is not installed")
from torchao.optim.quant_utils import create_dynamic_map  # noqa: E402
from torchao.optim.subclass_8bit import OptimState8bit  # noqa: E402

STEPS, BLOCK = 20, 256
MAPS = {"exp_avg": True, "exp_avg_sq": False}  # Whether the values have signs.
# `odd` does not fill its last block, and the last three and the embedding are small: they keep float32.
SIZES = {"big": (64, 96), "cube": (2, 48, 64), "odd": (4112,), "small": (24, 40), "bias": (7,)}


class Net(nn.Module):
    """Its loss is linear in the parameters, with whole numbers as coefficients that follow from the tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.big = nn.Parameter(torch.randn(SIZES["big"]))
        self.cube = nn.Parameter(torch.randn(SIZES["cube"]))
        self.odd = nn.Parameter(torch.randn(SIZES["odd"]))
        self.small = nn.Parameter(torch.randn(SIZES["small"]))
        self.bias = nn.Parameter(torch.randn(SIZES["bias"]))
        for name in SIZES:
            numel = getattr(self, name).numel()
            # Some blocks have large gradients and some have none.
            size = 2.0 ** (torch.arange(numel) // 100 % 9 - 4) * (torch.arange(numel) // 512 % 5 != 3)
            self.register_buffer(name + "_of", torch.randint(-4, 5, (256, numel)).float() * size)

    def forward(self, ids):
        loss = self.embed(ids % 16).sum()
        loss = loss + (self.big_of[ids.flatten()].sum(0) * self.big.flatten()).sum()
        loss = loss + (self.cube_of[ids.flatten()].sum(0) * self.cube.flatten()).sum()
        loss = loss + (self.odd_of[ids.flatten()].sum(0) * self.odd).sum()
        loss = loss + (self.small_of[ids.flatten()].sum(0) * self.small.flatten()).sum()
        loss = loss + (self.bias_of[ids.flatten()].sum(0) * self.bias).sum()
        return loss / 1024.0


@pytest.fixture(autouse=True)
def eager():
    """Compiled code would round other numbers than torch's operations do."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.fixture
def net(tmp_path):
    torch.manual_seed(0)
    model = Net()
    torch.jit.script(model).save(str(tmp_path / "net.pt"))
    return model


def make_peer(model):
    named = dict(model.named_parameters())
    groups = [{"params": [p for n, p in named.items() if "bias" not in n], "weight_decay": 0.1}, {"params": [named["bias"]], "weight_decay": 0.0}]
    return torchao.AdamW8bit(groups, lr=0.01, betas=(0.9, 0.95))


def config_of(tmp_path, processes, steps, **more):
    return train_runs.config(tmp_path, processes, **{
        "model": {"path": str(tmp_path / "net.pt"), "loss": "model", "inputs": ["input_ids"]}, "data.batch_size": optimizers.BATCH,
        "data.train.sequence_length": optimizers.LENGTH, "max_steps": steps, "max_grad_norm": None,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Embedding", "lr_scheduler": {"type": "constant"},
        "optimizer": {"type": "adamw8bit", "lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1, "no_decay": ["bias"]},
        "checkpoint": {"every": 10, "resume": "auto"}, **more})


def expected_state(model, optimizer):
    """The state under accel's names: the attributes of torchao's tensors lie below the names of the moments."""
    expected = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            path = f"optimizer.state.{name}.{key}"
            expected |= {path + ".codes": value.codes, path + ".scale": value.scale} if isinstance(value, OptimState8bit) else {path: value}
    return expected


def require_equal(last, accel, model, optimizer, where):
    accel("merge-weights", last, where)
    ours = load_file(where / "model.safetensors")
    for name, parameter in model.named_parameters():
        optimizers.same(ours[name], parameter.detach(), True, name)
    stored = {key: value for key, value in optimizers.read_with_dcp(last / "optimizer_0").items() if ".state." in key}
    expected = expected_state(model, optimizer)
    assert set(stored) == set(expected)
    for key, value in expected.items():
        assert stored[key].dtype == value.dtype, key
        optimizers.same(stored[key], value, True, key)


def restore(model, optimizer, state):
    """Gives torchao's optimizer the state of a checkpoint of accel: {name: {"exp_avg": {"codes", "scale"} or a tensor, ...}}."""
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            key: OptimState8bit(value["codes"], value["scale"], torch.tensor(create_dynamic_map(MAPS[key])), MAPS[key])
            if isinstance(value, dict) else value for key, value in state[name].items()}


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_weights_codes_and_scales_are_those_of_torchao(accel, net, tmp_path, processes):
    said = accel("launch", config_of(tmp_path, processes, STEPS)).stderr
    optimizer = make_peer(net)
    optimizers.train(net, [optimizer], optimizers.batches(processes), processes, STEPS)
    assert {name for name, p in net.named_parameters() if isinstance(optimizer.state[p]["exp_avg"], OptimState8bit)} == {"big", "cube"}
    assert len(optimizer.state[net.big]["exp_avg"].codes.unique()) > 100
    require_equal(tmp_path / f"out/checkpoints/checkpoint_{STEPS}", accel, net, optimizer, tmp_path / "merged")
    large = net.big.numel() + net.cube.numel()
    small = sum(p.numel() for p in net.parameters()) - large
    total = 8 * (large + small) + 2 * (large + large // BLOCK * 4) + 2 * small * 4
    assert f"optimizer state take {total / 1000:.0f} kB in total" in said


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 1), (2, 4), (4, 2)])
def test_a_run_goes_on_at_another_world_size_and_in_python(accel, net, tmp_path, before, after):
    accel("launch", config_of(tmp_path, before, 10))
    first = tmp_path / "out/checkpoints/checkpoint_10"
    accel("merge-weights", first, tmp_path / "first")
    net.load_state_dict(load_file(tmp_path / "first/model.safetensors"), strict=False)
    stored = optimizers.read_with_dcp(first / "optimizer_0")
    state = {name: {} for name, _ in net.named_parameters()}
    for name in state:
        for key in (key for key in stored if key.startswith(f"optimizer.state.{name}.")):
            moment, *part = key.removeprefix(f"optimizer.state.{name}.").split(".")
            if part:
                state[name].setdefault(moment, {})[part[0]] = stored[key]
            else:
                state[name][moment] = stored[key]
    optimizer = make_peer(net)
    restore(net, optimizer, state)
    data = optimizers.batches(after)
    assert 10 * before % after == 0
    for _ in range(10 * before // after):
        next(data)
    optimizers.train(net, [optimizer], data, after, 10)
    assert "resumed from" in accel("launch", config_of(tmp_path, after, STEPS)).stderr
    require_equal(tmp_path / f"out/checkpoints/checkpoint_{STEPS}", accel, net, optimizer, tmp_path / "merged")


def test_a_full_file_goes_on_here_and_in_python(accel, net, tmp_path):
    accel("launch", config_of(tmp_path, 3, 10, **{"fsdp_config.state_dict_type": "FULL_STATE_DICT"}))
    first = tmp_path / "out/checkpoints/checkpoint_10"
    stored = torch.load(first / "optimizer.bin", weights_only=True)
    assert {key: value.shape for key, value in stored["state"]["cube"]["exp_avg"].items()} == {"codes": (2, 48, 64), "scale": (24,)}
    accel("merge-weights", first, tmp_path / "first")
    net.load_state_dict(load_file(tmp_path / "first/model.safetensors"), strict=False)
    optimizer = make_peer(net)
    restore(net, optimizer, stored["state"])
    data = optimizers.batches(1)
    for _ in range(30):
        next(data)
    optimizers.train(net, [optimizer], data, 1, 10)
    accel("launch", config_of(tmp_path, 1, STEPS))
    require_equal(tmp_path / f"out/checkpoints/checkpoint_{STEPS}", accel, net, optimizer, tmp_path / "merged")


def test_the_state_of_adamw_is_not_that_of_8_bits(accel, net, tmp_path):
    accel("launch", config_of(tmp_path, 1, 10, optimizer={"type": "adamw", "lr": 0.01}))
    said = accel("launch", config_of(tmp_path, 1, STEPS), code=6).stderr
    assert "training.optimizer.type was" in said
