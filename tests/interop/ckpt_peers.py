"""Shared by the checkpoint tests: state dicts of every kind, and runs of torch's own writers on several ranks."""

import collections
import os
import pathlib
import subprocess
import sys

import torch

WORLD_SIZE = 2


def tensor_of(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns random values, which are finite in every dtype and the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Asserts that both have the same names, dtypes, shapes and bits."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert bits(found[name]) == bits(tensor), name


def full_state(kind: str) -> dict[str, torch.Tensor]:
    """Returns the full, unsharded state dict of a checkpoint of this `kind`."""
    state = collections.OrderedDict()
    if kind in ("rows", "columns"):
        state["wide"] = tensor_of(1, (6, 40), torch.float32)
        state["uneven.weight"] = tensor_of(2, (5, 7), torch.float32)
        state["half"] = tensor_of(3, (9, 16), torch.bfloat16)
        state["cube"] = tensor_of(4, (3, 4, 5), torch.float16)
        state["one_row"] = tensor_of(5, (1, 3), torch.float32)
    if kind == "large":
        state["big"] = tensor_of(6, (1031, 2053), torch.float32)
        state["small"] = tensor_of(7, (3,), torch.float32)
    if kind == "replicated":
        for i, dtype in enumerate(REPLICATED_DTYPES):
            state[f"of.{str(dtype).removeprefix('torch.')}"] = tensor_of(10 + i, (3, 5), dtype)
        state["scalar"] = torch.tensor(1.5)
        state["empty"] = torch.zeros(0, 3)
        state["transposed"] = tensor_of(8, (4, 6), torch.float32).t()
        state["part_of_more"] = tensor_of(9, (10, 10), torch.float32)[2:5, 3:7]
    if kind == "tied":
        state["wte.weight"] = tensor_of(20, (12, 8), torch.float32)
        state["h.0.ln.weight"] = torch.ones(8)
        state["h.1.ln.weight"] = torch.ones(8)
        state["h.0.copy.weight"] = tensor_of(21, (4, 4), torch.float32)
        state["h.1.copy.weight"] = state["h.0.copy.weight"].clone()
        state["lm_head.weight"] = state["wte.weight"].clone()
    return state


REPLICATED_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


class Net(torch.nn.Module):
    """A small model with odd sizes, for fully_shard."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))
        self.head = torch.nn.Linear(6, 5, bias=False)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


KINDS = ["rows", "columns", "large", "replicated", "tied", "net", "net_bf16"]


def save_on_ranks(directory: pathlib.Path) -> None:
    """Runs this file on WORLD_SIZE gloo ranks, which save a checkpoint of each kind as `directory`/KIND."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}"]
    result = subprocess.run(
        [*command, __file__, str(directory)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr


def expected_state(kind: str) -> dict[str, torch.Tensor]:
    """Returns the model's state dict in a checkpoint of this `kind`."""
    if kind.startswith("net"):
        return net(torch.bfloat16 if kind == "net_bf16" else torch.float32).state_dict()
    return full_state(kind)


def _sharded_state(kind: str) -> dict:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    placement = {"rows": Shard(0), "large": Shard(0), "columns": Shard(1), "tied": Shard(0)}.get(kind, Replicate())
    if kind == "replicated":
        return full_state(kind)
    return {name: distribute_tensor(tensor, mesh, [placement]) for name, tensor in full_state(kind).items()}


def _save_net(kind: str, directory: pathlib.Path) -> None:
    """Saves as Accelerate's save_fsdp_model and save_fsdp_optimizer do for FSDP2 with SHARDED_STATE_DICT."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard

    model = net(torch.bfloat16 if kind == "net_bf16" else torch.float32)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=directory / "pytorch_model_fsdp_0")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.arange(8)).float().sum().backward()
    optimizer.step()
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=directory / "optimizer_0")


def main() -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    import ranks_end

    dist.init_process_group("gloo")
    for kind in KINDS:
        directory = pathlib.Path(sys.argv[1]) / kind
        if kind.startswith("net"):
            _save_net(kind, directory)
        else:
            dcp.save({"model": _sharded_state(kind)}, checkpoint_id=directory / "pytorch_model_fsdp_0")
    ranks_end.leave()


if __name__ == "__main__":
    main()
