"""Writes the checkpoint zoo: one checkpoint of every kind that the Python packages write, and the tensors it must hold.

    python zoo_write.py DIRECTORY

It runs under any torch version and writes `DIRECTORY/KIND/` and `DIRECTORY/KIND.expected.pt`, a flat {name: tensor}.
"""

import contextlib
import faulthandler
import os
import pathlib
import signal
import sys
import traceback

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from zoo_state import NOT_IN_SAFETENSORS, every_dtype, net, odd_layouts, odd_sizes, tensor_of

WORLD_SIZE = 4
TIMEOUT_S = 200
MODEL = "pytorch_model_fsdp_0"
OPTIMIZER = "optimizer_0"


class Zoo:
    """The directory of the zoo, and the rank that writes, which is None outside of a process group."""

    def __init__(self, directory: pathlib.Path, rank: int | None = None) -> None:
        self.directory = directory
        self.rank = rank

    def path(self, kind: str, name: str = "") -> pathlib.Path:
        path = self.directory / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def expect(self, kind: str, state: dict[str, torch.Tensor]) -> None:
        if not self.rank:
            plain = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
            torch.save(plain, self.directory / f"{kind}.expected.pt")

    def save(self, kind: str, state: dict, expected: dict[str, torch.Tensor], collectives: bool = True, **options) -> None:
        """Saves `state` as DCP under the root key `model`, as Accelerate does."""
        self.save_nested(kind, {"model": state}, expected, collectives, **options)

    def save_nested(self, kind: str, state: dict, expected: dict, collectives: bool = True, **options) -> None:
        writer = dcp.FileSystemWriter(self.path(kind, MODEL), **options)
        dcp.save(state, storage_writer=writer, use_collectives=collectives)
        self.expect(kind, expected)


def placed(state: dict[str, torch.Tensor], mesh, placements) -> dict:
    from torch.distributed.tensor import distribute_tensor

    return {name: distribute_tensor(tensor, mesh, placements, src_data_rank=None) for name, tensor in state.items()}


def write_dcp(zoo: Zoo) -> None:
    from torch.distributed.checkpoint._extension import ZStandard
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    line = init_device_mesh("cpu", (WORLD_SIZE,))
    square = init_device_mesh("cpu", (2, 2))
    odd = odd_sizes()
    rows = placed(odd, line, [Shard(0)])
    zoo.save("dcp-rows", rows, odd)
    zoo.save("dcp-columns", placed(odd, line, [Shard(1)]), odd)
    zoo.save("dcp-replicated", placed(odd, line, [Replicate()]), odd)
    zoo.save("dcp-rows-rows", placed(odd, square, [Shard(0), Shard(0)]), odd)
    zoo.save("dcp-rows-columns", placed(odd, square, [Shard(0), Shard(1)]), odd)
    zoo.save("dcp-columns-rows", placed(odd, square, [Shard(1), Shard(0)]), odd)
    zoo.save("dcp-replicate-shard", placed(odd, square, [Replicate(), Shard(0)]), odd)
    zoo.save("dcp-shard-replicate", placed(odd, square, [Shard(1), Replicate()]), odd)
    zoo.save("dcp-dtypes", every_dtype(), every_dtype())
    zoo.save("dcp-sharded-dtypes", placed(every_dtype(), line, [Shard(0)]), every_dtype())
    zoo.save("dcp-layouts", odd_layouts(), odd_layouts())
    zoo.save("dcp-threads", rows, odd, thread_count=3)
    zoo.save("dcp-file-per-tensor", rows, odd, single_file_per_rank=False)
    zoo.save("dcp-no-collectives", rows, odd, collectives=False)
    zoo.save("dcp-zstd", rows | odd_layouts(), odd | odd_layouts(), _extensions=[ZStandard()])
    extras = {
        "model": rows, "step": 7, "note": "text", "nothing": None, "pair": (1, "two"), "list": [1, {"deep": [2.5, [3]]}],
        "optimizer": {"state": {0: {"exp_avg": tensor_of(70, (3, 3)), "step": torch.tensor(4.0)}}, "param_groups": [{"lr": 0.5}]},
        "rng": tensor_of(71, (16,), torch.uint8), "with.dot": {"a.b": tensor_of(72, (2,))},
    }  # fmt: skip
    zoo.save_nested("dcp-extras", extras, odd)


def write_parallel_plan(zoo: Zoo) -> None:
    """Writes a model under FSDP2 over tensor parallelism, which has strided shards."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = net(width=12)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parallelize_module(model, mesh["tp"], {"blocks.0": ColwiseParallel(), "blocks.1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    zoo.save("dcp-fsdp-tp", get_model_state_dict(model), expected)


def write_safetensors_dcp(zoo: Zoo) -> None:
    """Writes DCP's own safetensors form."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    line, square = init_device_mesh("cpu", (WORLD_SIZE,)), init_device_mesh("cpu", (2, 2))
    odd = odd_sizes()
    for kind, mesh, placements in (
        ("hf-dcp-rows", line, [Shard(0)]),
        ("hf-dcp-rows-columns", square, [Shard(0), Shard(1)]),
        ("hf-dcp-replicated", line, [Replicate()]),
    ):
        writer = HuggingFaceStorageWriter(str(zoo.path(kind, MODEL)), save_distributed=True)
        dcp.save(placed(odd, mesh, placements), storage_writer=writer)
        zoo.expect(kind, odd)


@contextlib.contextmanager
def under_accelerate(model: torch.nn.Module, version: int = 2):
    """Yields (plugin, accelerator, model, optimizer): a model under FSDP, its AdamW, and Accelerate set up for FSDP.

    Accelerate does not prepare FSDP on CPUs, but its functions that save and load work there.
    """
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type="SHARDED_STATE_DICT", cpu_ram_efficient_loading=False)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    assert accelerator.is_fsdp2 == (version == 2)
    if version == 2:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({type(model.blocks[0])}),
                                         use_orig_params=True, device_id=torch.device("cpu"))
    yield plugin, accelerator, model, torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    accelerator.free_memory()
    type(accelerator.state)._reset_state(reset_partial_state=True)


def set_state_type(plugin, state_type: str) -> None:
    plugin.state_dict_config = plugin.optim_state_dict_config = None  # The configs of the previous type would stay.
    plugin.set_state_dict_type(state_type)


def write_accelerate(zoo: Zoo) -> None:
    """Writes FSDP2 as Accelerate saves it: sharded with DCP, sharded as one .bin of DTensors per rank, and full."""
    from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer

    forms = [("sharded", "SHARDED_STATE_DICT", True), ("dtensor-bin", "SHARDED_STATE_DICT", False),
             ("full", "FULL_STATE_DICT", True)]  # fmt: skip
    for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, "-bf16")):
        expected = net(dtype).state_dict()
        with under_accelerate(net(dtype)) as (plugin, accelerator, model, optimizer):
            model(torch.arange(8)).float().square().sum().backward()
            optimizer.step()  # The learning rate is 0, so the weights do not change.
            for form, state_type, use_dcp in forms:
                kind = f"accelerate-{form}{suffix}"
                directory = zoo.path(kind, "x").parent
                set_state_type(plugin, state_type)
                save_fsdp_model(plugin, accelerator, model, directory, use_dcp=use_dcp)
                save_fsdp_optimizer(plugin, accelerator, optimizer, model, directory, use_dcp=use_dcp)
                zoo.expect(kind, expected)
            state = whole_optimizer_state(model, optimizer)
            if zoo.rank == 0:
                torch.save(state, zoo.directory / f"accelerate-sharded{suffix}.optimizer.pt")


def whole_optimizer_state(model: torch.nn.Module, optimizer) -> dict:
    """Returns {"tensors": {DCP's name: tensor}, "param_groups": ...} on rank 0, and {} on the other ranks."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    if not state:
        return {}
    tensors = {f"state.{fqn}.{key}": value for fqn, values in state["state"].items() for key, value in values.items()}
    return {"tensors": tensors, "param_groups": state["param_groups"]}


def write_files(zoo: Zoo) -> None:
    """Writes the files of a single process: the forms of torch.save, safetensors and TorchScript."""
    import collections

    import safetensors.torch

    model = net()
    state = model.state_dict()
    torch.save(state, zoo.path("bin-state-dict", "pytorch_model_fsdp.bin"))
    zoo.expect("bin-state-dict", state)
    shared = tensor_of(80, (4, 6))
    views = collections.OrderedDict(
        whole=shared, tied=shared, row=shared[1], columns=shared[:, 2:4], turned=shared.t(),
        parameter=torch.nn.Parameter(tensor_of(81, (3, 2))), frozen=torch.nn.Parameter(tensor_of(82, (2,)), requires_grad=False),
        **odd_layouts())  # fmt: skip
    torch.save(views, zoo.path("bin-views", "model.bin"))
    zoo.expect("bin-views", views)
    torch.save(every_dtype(), zoo.path("bin-dtypes", "model.bin"))
    zoo.expect("bin-dtypes", every_dtype())
    torch.save({"model": state, "epoch": 3, "args": {"lr": 0.1}}, zoo.path("bin-nested", "checkpoint.pt"), pickle_protocol=4)
    zoo.expect("bin-nested", state)

    named = {name: tensor for name, tensor in every_dtype().items() if tensor.dtype not in NOT_IN_SAFETENSORS}
    named |= {name: tensor.contiguous() for name, tensor in odd_layouts().items()}
    safetensors.torch.save_file(named, zoo.path("safetensors-file", "model.safetensors"), metadata={"format": "pt", "note": "x"})
    zoo.expect("safetensors-file", named)
    write_transformers(zoo)

    torch.jit.script(model).save(zoo.path("torchscript-scripted", "model.pt"))
    zoo.expect("torchscript-scripted", state)
    torch.jit.trace(model, torch.arange(4)).save(zoo.path("torchscript-traced", "model.pt"))
    zoo.expect("torchscript-traced", state)
    half = net(torch.bfloat16)
    torch.jit.script(half).save(zoo.path("torchscript-bf16", "model.pt"))
    zoo.expect("torchscript-bf16", half.state_dict())


def llama():
    """Returns a small random Llama whose output layer is tied to its embedding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=96, max_position_embeddings=64, tie_word_embeddings=True)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def write_transformers(zoo: Zoo) -> None:
    model = llama()
    path = zoo.path("safetensors-index", "x").parent
    model.save_pretrained(path, max_shard_size="20KB")
    assert (path / "model.safetensors.index.json").exists()
    zoo.expect("safetensors-index", {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"})


def begin_rank(rank: int, directory: pathlib.Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), LOCAL_WORLD_SIZE=str(WORLD_SIZE))
    torch.set_num_threads(1)
    os.fsync = lambda file: None  # fsync takes much of the time, and a test needs no durability.
    dist.init_process_group("gloo", init_method=f"file://{directory}/.store", rank=rank, world_size=WORLD_SIZE)


def write_on_rank(rank: int, directory: pathlib.Path) -> None:
    zoo = Zoo(directory, rank)
    for write in (write_dcp, write_parallel_plan, write_safetensors_dcp, write_accelerate):
        write(zoo)


def on_ranks(body, directory: pathlib.Path) -> bool:
    """Forks ranks, so that torch is imported once. Each runs body(rank, directory). Returns whether all succeed."""
    (directory / ".store").unlink(missing_ok=True)
    children = set()
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if child == 0:
            status = 1
            faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
            try:
                begin_rank(rank, directory)
                body(rank, directory)
                dist.barrier()
                dist.destroy_process_group()
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)
        children.add(child)
    well = True
    while children:
        child, status = os.wait()
        children.discard(child)
        if status != 0 and well:
            well = False
            for other in children:  # The others would wait for the failed rank.
                os.kill(other, signal.SIGTERM)
    (directory / ".store").unlink(missing_ok=True)
    return well


def main() -> None:
    directory = pathlib.Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    # The ranks are forked before this process computes anything, because threads do not survive a fork.
    if not on_ranks(write_on_rank, directory):
        sys.exit("a rank failed")
    write_files(Zoo(directory))


if __name__ == "__main__":
    main()
