"""On a terminal, help is wrapped at its width; in a pipe it is not."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

import pytest


@pytest.fixture
def on_terminal(accel_path, tmp_path):
    """on_terminal(COLUMNS, ARGS...) returns what accel prints to a terminal of that width."""

    def run(columns, *arguments):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([accel_path, *arguments], stdout=theirs, stderr=theirs, cwd=tmp_path)
        os.close(theirs)
        text = b""
        while True:
            try:
                text += os.read(ours, 65536)
            except OSError:  # The terminal has no other side any more.
                break
        os.close(ours)
        process.wait()
        return text.decode().replace("\r\n", "\n")

    return run


@pytest.mark.parametrize("arguments", [[], ["help"], ["help", "launch"], ["merge-weights", "--help"]], ids=str)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_is_as_wide_as_the_terminal(accel, on_terminal, arguments, columns):
    shown, plain = on_terminal(columns, *arguments), accel(*arguments, code=None).stdout
    # A word that is longer than a line stays whole.
    assert [line for line in shown.splitlines() if len(line) > columns and len(line.split()) > 1] == []
    assert shown.split() == plain.split()
    assert (shown == plain) == (max(map(len, plain.splitlines())) <= columns)
