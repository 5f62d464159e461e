"""The mutations of tests/sim take a while, and are run by hand. Here their places are looked up, which changes of the engine move."""

import sys

import pytest
from test_includes import ROOT

sys.path.insert(0, str(ROOT / "tests/sim"))
from mutations import MUTATIONS  # noqa: E402


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_of_a_mutation_is_there_once(mutation):
    assert (ROOT / "src/train" / mutation.file).read_text().count(mutation.old) == 1
