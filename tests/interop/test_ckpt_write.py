"""torch reads the checkpoints that accel's writer writes."""

import io
import subprocess

import ckpt_peers
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import _load_state_dict

# The tensors of dcp_writer_tool.cpp. Element i of a tensor with seed s is (s + i) % 100.
TENSORS = [
    ("wte.weight", torch.float32, (11, 6)), ("h.0.attn.weight", torch.float32, (5, 3, 4)), ("h.0.norm", torch.int64, (7,)),
    ("scalar", torch.float32, ()), ("empty", torch.float32, (0, 3)), ("one_row", torch.int32, (1, 9)),
    ("bytes", torch.uint8, (3, 33)), ("wide", torch.uint16, (2, 17)), ("four", torch.float64, (2, 3, 2, 3)),
    ("fp8", torch.float8_e4m3fn, (4, 5)), ("flags", torch.bool, (3, 3)), ("half", torch.bfloat16, (6, 5)),
]  # fmt: skip


def expected_model() -> dict[str, torch.Tensor]:
    state = {}
    for seed, (name, dtype, shape) in enumerate(TENSORS, start=1):
        values = (torch.arange(torch.Size(shape).numel()) + seed) % 100
        if dtype == torch.float8_e4m3fn:
            tensor = values.to(torch.uint8).view(dtype)
        else:
            tensor = (values % 2 if dtype == torch.bool else values).to(dtype)
        state[name] = tensor.reshape(shape)
    return state


@pytest.fixture(scope="module", params=[1, 2, 3, 8])
def written(request, accel_path, tmp_path_factory):
    """A checkpoint of accel's writer on one to eight ranks."""
    tool = accel_path.parents[2] / "tests/unit/ckpt/dcp-writer-tool"
    assert tool.exists(), f"{tool} is not built; run tools/dev build"
    directory = tmp_path_factory.mktemp("written")
    subprocess.run([tool, directory / "c", str(request.param)], check=True, timeout=60)
    return directory / "c"


def test_torch_loads_into_a_state_dict(written):
    expected = expected_model()
    state = {"model": {name: torch.full_like(tensor, 0) for name, tensor in expected.items()}}
    dcp.load(state, checkpoint_id=written, no_dist=True)
    ckpt_peers.assert_same(state["model"], expected)


def test_torch_rebuilds_the_nested_state_dict(written):
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(written), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert sorted(state) == ["model", "optimizer"]
    ckpt_peers.assert_same(state["model"], expected_model())
    assert state["optimizer"]["param_groups"] == [
        {
            "lr": 0.001,
            "betas": (0.9, 0.95),
            "params": ["wte.weight", "h.0.norm"],
            "foreach": None,
            "maximize": False,
            "large": 2**40,
            "nested": {"a": 1, 2: ["b"]},
        }
    ]


def test_metadata_is_complete(written):
    metadata = dcp.FileSystemReader(written).read_metadata()
    assert metadata.version == "1.0.0"
    assert metadata.storage_meta.modules == []
    assert metadata.planner_data["model.h.0.norm"] == ("model", "h.0.norm")
    wte = metadata.state_dict_metadata["model.wte.weight"]
    assert wte.size == torch.Size([11, 6])
    assert wte.properties.dtype == torch.float32
    assert wte.properties.memory_format == torch.contiguous_format


def test_every_item_is_a_torch_save_archive(written):
    for index, info in dcp.FileSystemReader(written).read_metadata().storage_data.items():
        with open(written / info.relative_path, "rb") as file:
            file.seek(info.offset)
            item = torch.load(io.BytesIO(file.read(info.length)), weights_only=True)
        if index.fqn.startswith("model."):
            assert isinstance(item, torch.Tensor), index.fqn


def test_merged_by_us(accel, written, tmp_path):
    accel("merge-weights", written, tmp_path / "out")  # It merges the root key `model`, not `optimizer`.
    ckpt_peers.assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected_model())

