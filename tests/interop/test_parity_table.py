"""A part of the parity table, on 2 ranks. docs/parity-table.md has the full table."""

import dataclasses
import json

import parity_table
import pytest

pytestmark = pytest.mark.long

# The first is scripted and has nested units, parameters read across units, and running statistics. The second is traced
# and has units for the embedding and the head.
MODELS = ["awkward, nothing in place", "Llama"]
VARIANTS = list(parity_table.VARIANTS)
RANKS = 2


@pytest.fixture(scope="module")
def found(accel_path, made_once):
    def make(directory):
        parity_table.write(directory, MODELS, [RANKS])
        cells = parity_table.run(directory, RANKS, MODELS, VARIANTS)
        (directory / "found.json").write_text(json.dumps([[*key, dataclasses.asdict(cell)] for key, cell in cells.items()]))

    cells = json.loads((made_once("parity", make) / "found.json").read_text())
    return {(model, variant): parity_table.Difference(**cell) for model, variant, cell in cells}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", MODELS)
def test_losses_equal_fully_shard(found, model, variant):
    difference = found[model, variant]
    assert difference.loss < parity_table.BOUND
    assert difference.norm < parity_table.NORM_BOUND
    assert difference.learned > 0.02  # The model learns.
    assert difference.clipped > 10 if variant == "clipping" else not difference.clipped
