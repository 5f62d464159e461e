"""The real packages load what merge-weights writes, bit for bit, under both torch versions."""

import pytest
from zoo_kinds import BY_NAME

# The zoo's checkpoints to convert: tensors of every dtype, odd layouts, a model with a buffer.
SOURCES = ["bin-dtypes", "dcp-zstd", "accelerate-sharded"]
# Checkpoints whose dtypes safetensors supports.
NAMED_SOURCES = ["safetensors-file", "dcp-zstd", "accelerate-sharded"]
# Checkpoints whose dtypes torch's reader of safetensors also supports.
PLAIN_SOURCES = ["dcp-zstd", "accelerate-sharded-bf16"]


@pytest.fixture(params=SOURCES)
def source(request, zoos):
    zoo, kind = zoos("2.11"), BY_NAME[request.param]
    return zoo.path(kind), zoo.expected_file(kind)


@pytest.fixture(params=NAMED_SOURCES)
def named_source(request, zoos):
    zoo, kind = zoos("2.11"), BY_NAME[request.param]
    return zoo.path(kind), zoo.expected_file(kind)


def test_bin(accel, source, judge, writes, tmp_path):
    writes("`merge-weights --unsafe-serialization`", "`torch.load`")
    path, expected = source
    accel("merge-weights", path, tmp_path / "out", "--unsafe-serialization")
    assert judge.problem("torch", tmp_path / "out/pytorch_model.bin", expected) == ""


@pytest.fixture(params=PLAIN_SOURCES)
def plain_source(request, zoos):
    zoo, kind = zoos("2.11"), BY_NAME[request.param]
    return zoo.path(kind), zoo.expected_file(kind)


def test_safetensors(accel, named_source, judge, writes, tmp_path):
    writes("`merge-weights`", "safetensors")
    path, expected = named_source
    accel("merge-weights", path, tmp_path / "out")
    assert judge.problem("safetensors", tmp_path / "out/model.safetensors", expected) == ""


def test_safetensors_for_dcp(accel, plain_source, judge, writes, tmp_path):
    writes("`merge-weights`", "`dcp.load`")
    path, expected = plain_source
    accel("merge-weights", path, tmp_path / "out")
    assert judge.problem("safetensors_dcp", tmp_path / "out", expected) == ""


def test_safetensors_index(accel, named_source, judge, writes, tmp_path):
    writes("`merge-weights --max-shard-size`", "safetensors")
    path, expected = named_source
    accel("merge-weights", path, tmp_path / "out", "--max-shard-size", "64B")
    assert judge.problem("safetensors_index", tmp_path / "out", expected) == ""


def test_safetensors_index_for_dcp(accel, plain_source, judge, writes, tmp_path):
    writes("`merge-weights --max-shard-size`", "`dcp.load`")
    path, expected = plain_source
    accel("merge-weights", path, tmp_path / "out", "--max-shard-size", "64B")
    assert judge.problem("safetensors_dcp", tmp_path / "out", expected) == ""
