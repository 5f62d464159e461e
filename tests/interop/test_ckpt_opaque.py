"""Element types that accel moves as bytes, and types that nobody knows."""

import json
import struct
import subprocess
import sys
import zipfile

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckpt_peers import assert_same

FP4 = torch.float4_e2m1fn_x2
# torch.save writes these, but DCP and safetensors do not have them.
ONLY_TORCH = [torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2]


def of_dtype(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return items.view(dtype).squeeze(-1)


def fp4_state():
    return {"packed": of_dtype((6, 5), FP4, 1), "turned": of_dtype((4, 3), FP4, 2).t(), "one": of_dtype((1,), FP4, 4),
            "scale": of_dtype((6, 2), torch.float8_e8m0fnu, 3), "plain": torch.arange(3.0), "empty": of_dtype((0, 4), FP4, 5)}


def load(path):
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    if path.suffix:
        return torch.load(path, weights_only=True)
    tensors = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in
               dcp.FileSystemReader(path).read_metadata().state_dict_metadata.items()}
    dcp.load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """float4 as torch.save, safetensors and DCP write it."""
    directory = tmp_path_factory.mktemp("float4")
    state = fp4_state()
    torch.save(state, directory / "m.pt")
    safetensors.torch.save_file({k: t.contiguous() for k, t in state.items()}, directory / "m.safetensors")
    dcp.save(state, checkpoint_id=directory / "dcp", no_dist=True)
    return {name: directory / name for name in ("m.pt", "m.safetensors", "dcp")}


@pytest.mark.parametrize("source", ["m.pt", "m.safetensors", "dcp"])
def test_float4_goes_through_every_command(accel, sources, tmp_path, source):
    path, state = sources[source], fp4_state()
    accel("verify", path)
    found = {t["name"]: t for t in json.loads(accel("--json", "inspect", path).stdout)["checkpoints"][0]["tensors"]}
    assert found["packed"]["dtype"] == "float4_e2m1fn_x2" and found["packed"]["shape"] == [6, 5] and found["packed"]["bytes"] == 30
    accel("merge-weights", path, tmp_path / "st", "--verify")
    accel("merge-weights", path, tmp_path / "bin", "--unsafe_serialization", "--dtype", "bf16")
    accel("save", path, tmp_path / "full", "--type", "full")
    accel("save", path, tmp_path / "sharded", "--type", "sharded", "--ranks", 2)
    accel("save", path, tmp_path / "local", "--type", "local", "--ranks", 2)
    assert_same(load(tmp_path / "st/model.safetensors"), state)
    assert_same(load(tmp_path / "bin/pytorch_model.bin"), {**state, "plain": state["plain"].bfloat16(), "scale": state["scale"].bfloat16()})
    assert_same(load(tmp_path / "full/pytorch_model_fsdp.bin"), state)
    for other in (*sources.values(), tmp_path / "sharded", tmp_path / "local", tmp_path / "full"):
        assert "same: 6 tensors" in accel("diff", path, other).stdout
        accel("verify", other)
    # The header is the one that the official library writes.
    safetensors.torch.save_file(load(tmp_path / "st/model.safetensors"), tmp_path / "again.safetensors", {"format": "pt"})
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "st/model.safetensors").read_bytes()


def test_a_difference_in_bytes_has_no_distance(accel, sources, tmp_path):
    state = fp4_state()
    state["packed"].view(torch.uint8)[2, 3] ^= 1
    torch.save(state, tmp_path / "other.pt")
    said = accel("diff", sources["m.pt"], tmp_path / "other.pt", "--rtol", 1, code=3).stdout
    assert "values: packed differs in 1 of 30 elements, first at [2, 3]" in said


def test_types_of_torch_alone(accel, tmp_path):
    state = {str(dtype).removeprefix("torch."): of_dtype((4, 2), dtype, i) for i, dtype in enumerate(ONLY_TORCH)}
    torch.save(state, tmp_path / "m.pt")
    accel("verify", tmp_path / "m.pt")
    accel("save", tmp_path / "m.pt", tmp_path / "full", "--type", "full")
    loaded = torch.load(tmp_path / "full/pytorch_model_fsdp.bin", weights_only=True)
    assert {name: t.dtype for name, t in loaded.items()} == {name: t.dtype for name, t in state.items()}
    for name, tensor in loaded.items():
        assert bytes(tensor.untyped_storage()) == bytes(state[name].untyped_storage())
    assert "which safetensors cannot hold" in accel("merge-weights", tmp_path / "m.pt", tmp_path / "st", code=1).stderr


def write_safetensors(path, entries):
    header, data = {}, b""
    for name, (dtype, shape, content) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_float6_of_safetensors(accel, tmp_path):
    """safetensors has it, torch does not."""
    write_safetensors(tmp_path / "m.safetensors", {"six": ("F6_E2M3", [3, 8], bytes(range(18))), "w": ("F32", [1], b"\0\0\x80?")})
    accel("verify", tmp_path / "m.safetensors")
    accel("merge-weights", tmp_path / "m.safetensors", tmp_path / "out")
    merged = (tmp_path / "out/model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", merged[:8])
    entry = json.loads(merged[8 : 8 + length])["six"]
    assert entry["dtype"] == "F6_E2M3" and entry["shape"] == [3, 8]
    begin, end = entry["data_offsets"]
    assert merged[8 + length + begin : 8 + length + end] == bytes(range(18))
    accel("diff", tmp_path / "m.safetensors", tmp_path / "out/model.safetensors")
    for kind in ("full", "sharded", "local"):
        said = accel("save", tmp_path / "m.safetensors", tmp_path / kind, "--type", kind, code=1).stderr
        assert "six' is float6_e2m3fn_x4, which torch does not have" in said


def unknown_in(kind, directory):
    """A file or a directory with a tensor `odd` of a type of a later torch or safetensors, and a tensor `w`."""
    if kind == "safetensors":
        write_safetensors(directory / "m.safetensors", {"odd": ("F99", [3], b"12345"), "w": ("F32", [1], b"\0\0\x80?")})
        return directory / "m.safetensors"
    state = {"odd": of_dtype((2,), FP4, 1), "w": torch.ones(1)}
    if kind == "pt":
        torch.save(state, directory / "known.pt")
        with zipfile.ZipFile(directory / "known.pt") as known, zipfile.ZipFile(directory / "m.pt", "w") as archive:
            for record in known.namelist():
                archive.writestr(record, known.read(record).replace(b"float4_e2m1fn_x2", b"float4_e9m9fn_x2"))
        return directory / "m.pt"
    dcp.save(state, checkpoint_id=directory / "dcp", no_dist=True)
    metadata = (directory / "dcp/.metadata").read_bytes()
    (directory / "dcp/.metadata").write_bytes(metadata.replace(b"float4_e2m1fn_x2", b"float4_e9m9fn_x2"))
    return directory / "dcp"


@pytest.mark.parametrize("kind", ["safetensors", "pt", "dcp"])
def test_a_type_that_nobody_knows_hides_nothing_else(accel, tmp_path, kind):
    path = unknown_in(kind, tmp_path)
    name = "F99" if kind == "safetensors" else "torch.float4_e9m9fn_x2"
    tensors = {t["name"]: t for t in json.loads(accel("--json", "inspect", path).stdout)["checkpoints"][0]["tensors"]}
    assert tensors["odd"]["dtype"] == "unknown" and tensors["odd"]["bytes"] is None and tensors["w"]["bytes"] == 4
    assert name in accel("verify", path, code=3).stdout
    for command in (["merge-weights", path, tmp_path / "all"], ["save", path, tmp_path / "all", "--type", "full"],
                    ["save", path, tmp_path / "all", "--type", "sharded", "--ranks", 2], ["diff", path, path]):
        said = accel(*command, code=1).stderr
        assert "odd" in said and name in said, said
    accel("merge-weights", path, tmp_path / "rest", "--exclude", "odd")
    assert_same(load(tmp_path / "rest/model.safetensors"), {"w": torch.ones(1)})
    accel("diff", path, tmp_path / "rest", "--exclude", "odd")


class Wrapped(torch.Tensor):
    """A tensor that wraps others, pickled as torchao's are."""

    @staticmethod
    def __new__(cls, like, **inner):
        return torch.Tensor._make_wrapper_subclass(cls, like.size(), dtype=torch.float32, device="cpu")

    def __init__(self, like, **inner):
        self.__dict__.update(inner)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        def plain(value):
            return value._tensor if isinstance(value, Wrapped) and hasattr(value, "_tensor") else value

        if func is torch.ops.aten.detach.default or func is torch.ops.aten.clone.default:
            return args[0]
        return func(*[plain(a) for a in args], **(kwargs or {}))


def test_float8_weights_of_accelerate_with_torchao(accel, tmp_path):
    """DCP says float32 of such a weight, and the item is a class around the float32 tensor."""
    w, b = torch.randn(16, 4), torch.randn(3)
    float8 = Wrapped(w, _tensor=w, _linear_mm_config=("config", 1), _dtype=torch.float8_e4m3fn, _precomputed_scale=torch.tensor(0.5))
    first = Wrapped(w, _tensor=w, _linear_mm_config=None, _dtype=torch.float8_e4m3fn, _precomputed_scale=None)
    dcp.save({"model": {"w": float8, "first": first, "b": b}}, checkpoint_id=tmp_path / "c", no_dist=True)
    item = next(i for k, i in dcp.FileSystemReader(tmp_path / "c").read_metadata().storage_data.items() if k.fqn == "model.w")
    data = (tmp_path / "c" / item.relative_path).read_bytes()[item.offset : item.offset + item.length]
    assert b"_rebuild_wrapper_subclass" in data
    accel("verify", tmp_path / "c")
    accel("merge-weights", tmp_path / "c", tmp_path / "out", "--keep-tied")
    assert_same(load(tmp_path / "out/model.safetensors"), {"w": w, "first": w, "b": b})
    torch.save({"w": float8, "b": b}, tmp_path / "m.pt")
    assert "same: 2 tensors" in accel("diff", tmp_path / "c", tmp_path / "m.pt", "--exclude", "first").stdout


def test_data_with_a_scale_is_refused_by_name(accel, tmp_path):
    """The values of such a tensor may be the product of both."""
    like = torch.ones(3)
    torch.save({"w": Wrapped(like, data_=like, scale=torch.tensor(7.0)), "v": like}, tmp_path / "m.pt")
    said = accel("merge-weights", tmp_path / "m.pt", tmp_path / "out", code=1).stderr
    assert "'w'" in said and "a tensor of the class test_ckpt_opaque.Wrapped" in said


def test_a_state_of_several_tensors_is_refused_by_name(accel, tmp_path):
    """In a parameter of 256 elements qmap has the size and the dtype of the whole, and is not it."""
    like = torch.randn(256)
    inner = {"codes": torch.zeros(256, dtype=torch.uint8), "scale": torch.ones(1), "qmap": torch.randn(256)}
    state = {"state": Wrapped(like, **inner), "two": Wrapped(like, a=torch.randn(256), b=torch.randn(256)), "w": torch.ones(2)}
    torch.save(state, tmp_path / "m.pt")
    accel("verify", tmp_path / "m.pt")
    for name in ("state", "two"):
        said = accel("merge-weights", tmp_path / "m.pt", tmp_path / "out", "--include", name, code=1).stderr
        assert f"'{name}'" in said and "a tensor of the class test_ckpt_opaque.Wrapped" in said
    accel("merge-weights", tmp_path / "m.pt", tmp_path / "out", "--include", "w")


def test_what_one_rank_has_of_a_dtensor_is_refused_as_that(accel, tmp_path):
    """The mistake of torch.save on rank 0 alone."""
    script = f"""
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
sharded = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
torch.save({{"model": {{"w": sharded}}}}, "{tmp_path}/m.pt")
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    said = accel("merge-weights", tmp_path / "m.pt", tmp_path / "out", code=1).stderr
    assert "tensor 'model.w' is what one rank has of a DTensor (full_tensor() gives the whole one)" in said
