"""The readers of checkpoints read what torch, safetensors and transformers write."""

import collections
import json
import os
import pathlib
import subprocess
import sys

import ckpt_peers
import pytest
import safetensors.torch
import torch
from ckpt_peers import assert_same, tensor_of

ALL_DTYPES = [*ckpt_peers.REPLICATED_DTYPES, torch.complex128, torch.complex32]


@pytest.fixture
def dump(accel_path, tmp_path):
    """dump(PATH) returns what accel reads: `.kind`, `.tensors` by name, `.entries`, `.objects`."""
    tool = accel_path.parents[2] / "tests/unit/ckpt/checkpoint-dump-tool"
    assert tool.exists(), f"{tool} is not built; run tools/dev build"
    calls = iter(range(1000))

    def run(path, want="any", code=0):
        out = tmp_path / f"dump_{next(calls)}"
        result = subprocess.run([tool, path, out, want], capture_output=True, text=True, timeout=120)
        assert result.returncode == code, result.stderr
        if code != 0:
            return result.stderr
        document = json.loads(result.stdout)
        tensors = {}
        for i, entry in enumerate(document["tensors"]):
            if "error" not in entry:
                dtype = getattr(torch, entry["dtype"])
                data = bytearray((out / str(i)).read_bytes())
                flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
                tensors[entry["name"]] = flat.view(dtype).reshape(entry["shape"])
        entries = {entry["name"]: entry for entry in document["tensors"]}
        return Dump(document["kind"], document["path"], tensors, entries, document["objects"])

    return run


Dump = collections.namedtuple("Dump", "kind path tensors entries objects")


def all_dtypes():
    return {f"of.{str(dtype).removeprefix('torch.')}": tensor_of(i, (3, 5), dtype) for i, dtype in enumerate(ALL_DTYPES)}


# DCP.


def test_dcp_over_two_ranks(dump, torch_checkpoints):
    for kind in ("rows", "columns", "replicated", "net"):
        found = dump(torch_checkpoints / kind, "model")
        assert found.kind == "dcp"
        assert_same({name.removeprefix("model."): t for name, t in found.tensors.items()}, ckpt_peers.expected_state(kind))
    assert found.entries["model.embed.weight"]["path"] == ["model", "embed.weight"]


def test_dcp_with_zstd_streams(dump, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._extension import ZStandard

    state = {"model": {**all_dtypes(), "big": tensor_of(1, (700, 301), torch.float32), "t": tensor_of(2, (90, 70), torch.float32).t(),
                       "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}, "step": 7}
    writer = dcp.FileSystemWriter(tmp_path / "c", _extensions=[ZStandard()])
    dcp.save(state, storage_writer=writer, no_dist=True)
    found = dump(tmp_path / "c")
    assert_same(found.tensors, {f"model.{name}": tensor for name, tensor in state["model"].items()})
    assert found.objects == {"step": "7"}


def test_dcp_with_an_unknown_transform(dump, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._extension import ZStandard

    class Secret(ZStandard):
        def get_descriptor(self):
            return "stream.secret/3"

    dcp.save({"w": torch.ones(2)}, storage_writer=dcp.FileSystemWriter(tmp_path / "c", _extensions=[Secret()]), no_dist=True)
    assert "stream.secret/3" in dump(tmp_path / "c").entries["w"]["error"]


def test_dcp_in_safetensors(dump, tmp_path):
    run_on_ranks(SAVE_DCP_SAFETENSORS, tmp_path)
    state = ckpt_peers.full_state("rows")
    for directory in ("sharded", "both/sharded"):
        found = dump(tmp_path / directory)
        assert found.kind == "dcp-safetensors"
        assert_same(found.tensors, state)
        assert found.entries["wide"]["pieces"] == 2
    # accel reads the whole set if it gets the path of one of its files.
    assert_same(dump(tmp_path / "sharded/shard-00001-model-00001-of-00001.safetensors").tensors, state)
    found = dump(tmp_path / "both")
    assert found.kind == "safetensors-sharded"
    assert_same(found.tensors, state)


SAVE_DCP_SAFETENSORS = """
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.tensor import Shard, distribute_tensor
state = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in ckpt_peers.full_state("rows").items()}
import torch.distributed.checkpoint as dcp
dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(out / "sharded"), save_distributed=True))
dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(out / "both"), save_distributed=True, enable_consolidation=True))
"""


# safetensors.


def test_safetensors(dump, tmp_path):
    state = {name: t for name, t in all_dtypes().items() if "complex32" not in name and "complex128" not in name}
    state["empty"] = torch.zeros(2, 0)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    assert_same(dump(tmp_path / "model.safetensors").tensors, state)
    found = dump(tmp_path, "model")
    assert found.kind == "safetensors"
    assert_same(found.tensors, state)


def test_safetensors_in_several_files(dump, tmp_path):
    a, b = {"x": torch.ones(3), "y": torch.zeros(2, 2)}, {"z": torch.arange(4)}
    directory = tmp_path / "m"
    directory.mkdir()
    safetensors.torch.save_file(a, directory / "model-00001-of-00002.safetensors")
    safetensors.torch.save_file(b, directory / "model-00002-of-00002.safetensors")
    found = dump(directory)
    assert found.kind == "safetensors-sharded"
    assert_same(found.tensors, {**a, **b})

    index = {"metadata": {}, "weight_map": {**dict.fromkeys(a, "model-00001-of-00002.safetensors"), "z": "model-00002-of-00002.safetensors"}}
    path = directory / "model.safetensors.index.json"

    def rewritten(**changes):
        path.write_text(json.dumps({**index, "weight_map": {k: v for k, v in {**index["weight_map"], **changes}.items() if v}}))
        return directory

    assert_same(dump(rewritten()).tensors, {**a, **b})
    assert_same(dump(path).tensors, {**a, **b})
    assert "it does not list 'y'" in dump(rewritten(y=None), code=5)
    assert "'w' is in 'model-00001-of-00002.safetensors', which has no such tensor" in dump(
        rewritten(w="model-00001-of-00002.safetensors"), code=5)
    assert "is not there" in dump(rewritten(w="model-3.safetensors"), code=4)
    assert "which is not in it" in dump(rewritten(w="../x.safetensors"), code=5)
    path.write_text("[]")
    assert "no weight_map" in dump(directory, code=5)


def test_safetensors_with_one_name_twice(dump, tmp_path):
    safetensors.torch.save_file({"x": torch.ones(3)}, tmp_path / "a.safetensors")
    safetensors.torch.save_file({"x": torch.ones(3)}, tmp_path / "b.safetensors")
    assert "'x' is both in a.safetensors and in b.safetensors" in dump(tmp_path, code=1)


# torch.save.


def test_torch_save_of_every_dtype_and_layout(dump, tmp_path):
    base = tensor_of(1, (8, 10), torch.float32)
    state = {
        **all_dtypes(),
        "transposed": base.t(),
        "part": base[2:5, 3:9:2],
        "expanded": torch.arange(4.0).expand(300, 4),
        "shared": base,
        "flipped_dims": tensor_of(3, (2, 3, 4), torch.bfloat16).permute(2, 0, 1),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "buffer": torch.nn.Buffer(torch.ones(2)),
    }
    torch.save(state, tmp_path / "m.bin")
    found = dump(tmp_path / "m.bin")
    assert found.kind == "torch"
    assert_same(found.tensors, state)
    assert list(found.tensors) == list(state)


def test_torch_save_of_nested_values(dump, tmp_path):
    optimizer = torch.optim.AdamW(ckpt_peers.net().parameters(), lr=0.25)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {"model": ckpt_peers.net().state_dict(), "optimizer": optimizer.state_dict(), "pair": (torch.zeros(2), "x"), "step": 3}
    torch.save(state, tmp_path / "m.bin")
    found = dump(tmp_path / "m.bin")
    expected = {f"model.{k}": v for k, v in state["model"].items()}
    for i, entries in state["optimizer"]["state"].items():
        expected.update({f"optimizer.state.{i}.{k}": v for k, v in entries.items()})
    assert_same(found.tensors, {**expected, "pair.0": torch.zeros(2)})
    assert found.entries["optimizer.state.0.exp_avg"]["path"] == ["optimizer", "state", 0, "exp_avg"]
    assert found.objects["optimizer.param_groups.0.lr"] == "0.25"
    assert found.objects["step"] == "3"


def test_torch_save_of_a_whole_module(dump, tmp_path):
    torch.save(ckpt_peers.net(), tmp_path / "m.pt")
    assert_same(dump(tmp_path / "m.pt").tensors, ckpt_peers.net().state_dict())


def test_what_is_more_than_its_storage_is_refused_by_name(dump, tmp_path):
    complex_tensor = tensor_of(1, (3,), torch.complex64)
    state = {
        "plain": torch.ones(2),
        "conj": complex_tensor.conj(),
        "neg": complex_tensor.clone().conj().imag,
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.qint8),
        "meta": torch.empty(3, device="meta"),
    }
    torch.save(state, tmp_path / "m.bin")
    found = dump(tmp_path / "m.bin")
    assert_same(found.tensors, {"plain": torch.ones(2)})
    for name, words in {"conj": "conjugated", "neg": "negated", "sparse": "sparse", "csr": "sparse", "quantized": "quantized",
                        "meta": "meta device"}.items():
        assert words in found.entries[name]["error"] and f"'{name}'" in found.entries[name]["error"]
        assert found.entries[name]["shape"] == list(state[name].shape)


def test_what_cannot_be_read_is_refused_by_name(dump, tmp_path):
    import zipfile

    torch.save({"w": torch.ones(2)}, tmp_path / "m.bin")
    with zipfile.ZipFile(tmp_path / "m.bin") as source, zipfile.ZipFile(tmp_path / "big.bin", "w") as target:
        for name in source.namelist():
            target.writestr(name, b"big" if name.endswith("byteorder") else source.read(name))
    assert "big-endian" in dump(tmp_path / "big.bin", code=1)


def test_transformers_bin_files(dump, tmp_path):
    state = {"a.weight": tensor_of(1, (4, 4), torch.float32), "b.weight": tensor_of(2, (4,), torch.bfloat16)}
    torch.save({"a.weight": state["a.weight"]}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b.weight": state["b.weight"]}, tmp_path / "pytorch_model-00002-of-00002.bin")
    index = {"metadata": {"total_size": 72}, "weight_map": {"a.weight": "pytorch_model-00001-of-00002.bin", "b.weight": "pytorch_model-00002-of-00002.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found = dump(tmp_path)
    assert found.kind == "torch-sharded"
    assert_same(found.tensors, state)
    index["weight_map"]["b.weight"] = "pytorch_model-00001-of-00002.bin"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert "which has no such tensor" in dump(tmp_path, code=5)


# TorchScript.


class WithAttributes(torch.nn.Module):
    """A module with parameters, persistent and non-persistent buffers, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.plain = torch.full((2,), 7.0)

    def forward(self, x):
        return self.inner(x) * self.scale + self.steps + self.plain.sum() + self.scratch.sum()


def test_torchscript(dump, tmp_path):
    for name, module in {"net": ckpt_peers.net(), "attributes": WithAttributes(), "half": ckpt_peers.net(torch.bfloat16)}.items():
        scripted = torch.jit.script(module)
        scripted.save(tmp_path / f"{name}.pt")
        found = dump(tmp_path / f"{name}.pt")
        assert found.kind == "torchscript"
        # TorchScript does not mark non-persistent buffers; torch itself returns them in state_dict().
        assert_same(found.tensors, torch.jit.load(tmp_path / f"{name}.pt").state_dict())
    assert "plain" not in dump(tmp_path / "attributes.pt").tensors


def test_torchscript_traced(dump, tmp_path):
    module = WithAttributes().eval()
    torch.jit.trace(module, torch.ones(2, 3)).save(tmp_path / "m.pt")
    assert_same(dump(tmp_path / "m.pt").tensors, torch.jit.load(tmp_path / "m.pt").state_dict())


# One file per rank.


def local_checkpoint(directory, state, world_size, stem="pytorch_model_fsdp"):
    """Writes a local checkpoint as docs/formats.md describes it."""
    directory.mkdir(exist_ok=True)
    for rank in range(world_size):
        shares, entries = {}, {}
        for name, tensor in state.items():
            begin, end = tensor.numel() * rank // world_size, tensor.numel() * (rank + 1) // world_size
            shares[name] = tensor.reshape(-1)[begin:end].clone()
            entries[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "begin": begin, "end": end}
        torch.save(shares, directory / f"{stem}_rank{rank}.bin")
        description = {"version": 1, "rank": rank, "world_size": world_size, "tensors": entries}
        (directory / f"{stem}_rank{rank}.json").write_text(json.dumps(description))


def test_local(dump, tmp_path):
    state = {**all_dtypes(), "cube": tensor_of(1, (3, 4, 5), torch.float32), "scalar": torch.tensor(1.5), "empty": torch.zeros(0)}
    local_checkpoint(tmp_path / "c", state, 3)
    for path in (tmp_path / "c", tmp_path / "c/pytorch_model_fsdp_rank2.bin"):
        found = dump(path, "model")
        assert found.kind == "local"
        assert_same(found.tensors, state)
    (tmp_path / "c/pytorch_model_fsdp_rank1.bin").unlink()
    assert "rank 1 of 3 is missing" in dump(tmp_path / "c", code=4)


def test_local_that_contradicts_itself(dump, tmp_path):
    state = {"w": tensor_of(1, (4, 4), torch.float32)}

    def broken(change):
        local_checkpoint(tmp_path / "c", state, 2)
        path = tmp_path / "c/pytorch_model_fsdp_rank1.json"
        description = json.loads(path.read_text())
        change(description)
        path.write_text(json.dumps(description))
        return dump(tmp_path / "c", code=5)

    def entry(**values):
        return lambda d: d["tensors"]["w"].update(values)

    assert "says rank 0 of 2, but rank 1 of 2" in broken(lambda d: d.update(rank=0))
    assert "says rank 1 of 3, but rank 1 of 2" in broken(lambda d: d.update(world_size=3))
    assert "its version is 2" in broken(lambda d: d.update(version=2))
    assert "overlap" in broken(entry(begin=7, end=15))
    assert "says 7 elements" in broken(entry(begin=9, end=16))
    assert "elements 8 to 17 of shape [4, 4]" in broken(entry(end=17))
    assert "does not list it" in broken(lambda d: d["tensors"].clear())
    assert "dtype is \"float33\"" in broken(entry(dtype="float33"))
    assert "overflows" in broken(entry(shape=[2**62, 2**62]))


def test_dtensors_of_each_rank(dump, tmp_path):
    run_on_ranks(SAVE_DTENSORS, tmp_path)
    expected = torch.load(tmp_path / "expected.zip", weights_only=True)
    found = dump(tmp_path, "model")
    assert found.kind == "dtensor"
    assert_same(found.tensors, expected)
    assert found.entries["replicated"]["copies"] == 1
    assert found.entries["plain"]["copies"] == 1
    assert found.entries["rows"]["copies"] == 0
    (tmp_path / "pytorch_model_fsdp_0_rank1.bin").unlink()
    assert "rank 1 of 2 is missing" in dump(tmp_path / "pytorch_model_fsdp_0_rank0.bin", code=4)


SAVE_DTENSORS = """
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
full = {**ckpt_peers.full_state("rows"), "plain": torch.arange(5.0), "scalar": torch.tensor(4.5)}
full["rows"], full["columns"], full["replicated"] = torch.arange(21.0).reshape(7, 3), torch.arange(21.0).reshape(3, 7), torch.arange(6.0)
placements = {"columns": Shard(1), "replicated": Replicate(), "scalar": Replicate()}
state = {name: tensor if name == "plain" else distribute_tensor(tensor, mesh, [placements.get(name, Shard(0))]) for name, tensor in full.items()}
torch.save(state, out / f"pytorch_model_fsdp_0_rank{rank}.bin")
if rank == 0:
    torch.save(full, out / "expected.zip")
"""


@pytest.mark.long
def test_the_files_of_verl(accel, dump, tmp_path):
    """verl writes model, optimizer and extra state of each rank side by side, under names of its own."""
    run_on_ranks(SAVE_AS_VERL, tmp_path)
    expected = torch.load(tmp_path / "expected.zip", weights_only=True)
    found = dump(tmp_path, "model")
    assert found.kind == "dtensor"
    assert_same(found.tensors, expected)
    assert_same(dump(tmp_path / "model_world_size_2_rank_1.pt").tensors, expected)
    accel("verify", tmp_path)
    accel("merge-weights", tmp_path, tmp_path / "merged")
    merged = safetensors.torch.load_file(tmp_path / "merged/model.safetensors")
    assert merged.keys() == expected.keys() and all(torch.equal(merged[name], expected[name]) for name in merged)
    (tmp_path / "model_world_size_2_rank_1.pt").unlink()
    said = accel("merge-weights", tmp_path, tmp_path / "again", code=4).stderr
    assert "has no model_world_size_2_rank_1.pt: the file of rank 1 of 2 is missing" in said
    assert not (tmp_path / "again").exists()


SAVE_AS_VERL = """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
if rank == 0:
    torch.save(model.state_dict(), out / "expected.zip")
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
ending = f"world_size_2_rank_{rank}.pt"
torch.save(model.state_dict(), out / f"model_{ending}")
model.train()(torch.ones(4, 7)).sum().backward()
optimizer.step()
torch.save(optimizer.state_dict(), out / f"optim_{ending}")
torch.save({"lr_scheduler": {"last_epoch": rank}, "rng": {"cpu": torch.get_rng_state()}}, out / f"extra_state_{ending}")
"""


def test_plain_tensors_of_each_rank_are_not_taken_for_a_set(dump, tmp_path):
    """Tensor parallelism has another part of a tensor in each of these files, under one name and of one shape."""
    for rank in range(2):
        torch.save({"weight": torch.full((2, 3), float(rank))}, tmp_path / f"mp_rank_0{rank}_model_states.pt")
    for rank in range(2):
        found = dump(tmp_path / f"mp_rank_0{rank}_model_states.pt")
        assert found.kind == "torch"
        assert torch.equal(found.tensors["weight"], torch.full((2, 3), float(rank)))
    assert "holds 2 checkpoints" in dump(tmp_path, "model", code=2)


def test_a_torn_file_with_a_rank_in_its_name_hides_nothing(accel, tmp_path):
    safetensors.torch.save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    torch.save({"seen": torch.ones(100)}, tmp_path / "stats_rank_0.pt")
    whole = (tmp_path / "stats_rank_0.pt").read_bytes()
    (tmp_path / "stats_rank_0.pt").write_bytes(whole[:len(whole) // 2])
    said = accel("verify", tmp_path, code=3).stdout
    assert "stats_rank_0.pt" in said and "model.safetensors" in said


@pytest.mark.long
def test_dtensors_on_meshes_of_two_dimensions(dump, tmp_path):
    """The files are written rank by rank with torch's own placement code, on a fake process group."""
    code = pathlib.Path(__file__).with_name("dtensor_files.py")
    result = subprocess.run([sys.executable, code, tmp_path], capture_output=True, text=True, timeout=240,
                            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 0, result.stderr
    expected = torch.load(tmp_path / "expected.zip", weights_only=True)
    found = dump(tmp_path, "model")
    assert_same(found.tensors, expected)
    assert found.entries["everywhere"]["copies"] == 5


def run_on_ranks(code, out):
    """Runs `code` on two Gloo ranks. The code can use `rank`, `mesh`, `out` and ckpt_peers."""
    script = out / "on_ranks.py"
    script.write_text(
        "import pathlib, sys, torch\n"
        f"sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        "import ckpt_peers, ranks_end\n"
        "import torch.distributed as dist\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "dist.init_process_group('gloo')\n"
        f"rank, out = dist.get_rank(), pathlib.Path({str(out)!r})\n"
        "mesh = init_device_mesh('cpu', (2,))\n" + code + "\nranks_end.leave()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    result = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                            capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
