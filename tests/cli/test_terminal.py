"""On a terminal, help, messages and tables fit its width and verdicts have a colour; in a pipe nothing of that."""

import pathlib
import re
import shutil

import pytest

INPUTS = pathlib.Path(__file__).parent / "inputs"
GREEN, YELLOW, RED, END = "\x1b[1;32m", "\x1b[1;33m", "\x1b[1;31m", "\x1b[m"
COLORS = {"NO_COLOR": ""}


@pytest.fixture
def inputs(tmp_path):
    """The inputs of the golden tests, in the current directory of the commands."""
    shutil.copytree(INPUTS, tmp_path, dirs_exist_ok=True)


def unbroken(text):
    """The words of a text, whatever blanks and ends of lines stand between them."""
    return text.split()


@pytest.mark.parametrize("arguments", [[], ["help"], ["help", "launch"], ["merge-weights", "--help"]], ids=str)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_is_as_wide_as_the_terminal(accel, on_terminal, arguments, columns):
    shown, plain = on_terminal(columns, *arguments), accel(*arguments, code=None).stdout
    # A word that is longer than a line stays whole.
    assert [line for line in shown.splitlines() if len(line) > columns and len(line.split()) > 1] == []
    assert shown.split() == plain.split()
    assert (shown == plain) == (max(map(len, plain.splitlines())) <= columns)


def test_messages_are_as_wide_as_the_terminal(accel, on_terminal, inputs):
    plain = accel("launch", "no_such_file_in_this_directory.yaml", "--num-processes", 2, code=2).stderr
    shown = on_terminal(50, "launch", "no_such_file_in_this_directory.yaml", "--num-processes", 2)
    assert len(plain.splitlines()[0]) > 50 and unbroken(shown) == unbroken(plain)
    assert max(len(line) for line in shown.splitlines() if len(line.split()) > 1) <= 50
    [first, second, *_] = shown.splitlines()
    assert first.startswith("accel: error: ") and second.startswith("       ")


PLAN = ("plan", "plan.yaml", "--world-size", "1,2", "--set", "fsdp_config.fsdp_auto_wrap_policy=SIZE_BASED_WRAP", "--set",
        "fsdp_config.fsdp_min_num_params=4000")


@pytest.mark.parametrize("columns", [75, 90, 200])
def test_tables_of_a_plan_fit_the_terminal(accel, on_terminal, inputs, columns):
    plain = accel(*PLAN).stdout
    shown = on_terminal(columns, *PLAN)
    tables = [line for line in shown.splitlines() if line.startswith("  ") and "," not in line]
    assert len(tables) > 10 and max(map(len, tables)) <= columns
    # No number is lost.
    sizes = re.compile(r"[\d.]+ (?:B|kB|MB)\b")
    assert sorted(sizes.findall(shown)) == sorted(sizes.findall(plain))
    assert (shown == plain) == (max(map(len, plain.splitlines())) <= columns)


def test_verdicts_have_a_colour(accel, on_terminal, inputs, tmp_path):
    good, changed = tmp_path / "good.safetensors", tmp_path / "changed.safetensors"
    header = b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    good.write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    changed.write_bytes(len(header).to_bytes(8, "little") + header + b"ac")
    cases = [(("diff", good, good), "same", GREEN), (("diff", good, changed), "different", RED),
             (("verify", good), "ok", GREEN), (("check", "good.yaml"), "valid", None)]
    for arguments, word, color in cases:
        plain = accel(*arguments, code=None).stdout
        assert word in plain and "\x1b" not in plain
        assert accel("--color", "always", *arguments, code=None).stdout != plain
        for shown in (on_terminal(200, *arguments, env=COLORS), accel("--color=always", *arguments, code=None).stdout):
            assert f"{color or (YELLOW if ', with ' in plain else GREEN)}{word}{END}" in shown
            assert re.sub(r"\x1b\[[\d;]*m", "", shown) == plain
        for quiet in ({"NO_COLOR": "1"}, {**COLORS, "TERM": "dumb"}):
            assert "\x1b" not in on_terminal(200, *arguments, env=quiet)
        assert "\x1b" not in on_terminal(200, "--color=never", *arguments, env=COLORS)
    good.write_bytes(good.read_bytes()[:-1])
    damaged = on_terminal(200, "verify", good, env=COLORS)
    assert RED in damaged and END in damaged
