"""A test of several machines is never skipped in silence where CI runs it."""

import machines
import pytest


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_missing_namespaces_are_a_failure_in_ci(monkeypatch, tmp_path, ci, outcome):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(outcome, match="network namespaces cannot be made here: the program ip is not installed"):
        machines.need_namespaces()
