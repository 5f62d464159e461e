"""The mutations of tests/sim take a while, and are run by hand. Here their places are looked up, which changes of the engine move."""

import importlib.util
import sys

import pytest
from test_includes import ROOT

# tests/soak has a module of the same name.
spec = importlib.util.spec_from_file_location("sim_mutations", ROOT / "tests/sim/mutations.py")
sim = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sim)


@pytest.mark.parametrize("mutation", sim.MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_of_a_mutation_is_there_once(mutation):
    assert (ROOT / "src/train" / mutation.file).read_text().count(mutation.old) == 1
