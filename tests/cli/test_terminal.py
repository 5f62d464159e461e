"""On a terminal, help is wrapped at its width; in a pipe it is not."""

import pytest


@pytest.mark.parametrize("arguments", [[], ["help"], ["help", "launch"], ["merge-weights", "--help"]], ids=str)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_is_as_wide_as_the_terminal(accel, on_terminal, arguments, columns):
    shown, plain = on_terminal(columns, *arguments), accel(*arguments, code=None).stdout
    # A word that is longer than a line stays whole.
    assert [line for line in shown.splitlines() if len(line) > columns and len(line.split()) > 1] == []
    assert shown.split() == plain.split()
    assert (shown == plain) == (max(map(len, plain.splitlines())) <= columns)
