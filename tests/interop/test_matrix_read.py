"""Every kind of checkpoint in the zoo, read by our commands: each tensor bit for bit."""

import json

import pytest
import safetensors.torch
from matrix import READS
from zoo_kinds import KINDS, Kind
from zoo_state import difference, short_name

INSPECTED = [kind for kind in KINDS if not kind.name.startswith(("accelerate-dtensor", "hf-dcp", "dcp-no-coll", "safetensors-index"))]
MERGED = [kind for kind in INSPECTED if kind.name.startswith(("dcp", "accelerate-sharded")) and kind.in_safetensors
          and kind.name not in ("dcp-zstd", "dcp-extras")]


@pytest.fixture
def here(request, cell):
    """here(KIND, COLUMN): the test fills that cell of the table."""

    def place(kind: Kind, column: str) -> None:
        cell(READS, kind.title, column, request.node.callspec.params["zoo"])

    return place


def strip_root(name: str) -> str:
    return name.removeprefix("model.")


@pytest.mark.parametrize("kind", INSPECTED, ids=str)
def test_inspect(accel, zoo, here, kind):
    here(kind, "inspect")
    (found,) = json.loads(accel("inspect", zoo.path(kind), "--json").stdout)["checkpoints"]
    tensors = {strip_root(entry["name"]): entry for entry in found["tensors"]}
    for name, tensor in zoo.expected(kind).items():
        entry = tensors[name]
        assert (entry["dtype"], entry["shape"]) == (short_name(tensor.dtype), list(tensor.shape)), name


@pytest.mark.parametrize("kind", MERGED, ids=str)
def test_merge(accel, zoo, here, kind, tmp_path):
    here(kind, "merge")
    accel("merge-weights", zoo.path(kind), tmp_path / "out", "--keep-tied")
    found = safetensors.torch.load_file(tmp_path / "out/model.safetensors")
    assert difference(found, zoo.expected(kind)) == ""
