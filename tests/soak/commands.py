"""Runs commands under limits, and finds faults that no command may have."""

import dataclasses
import os
import pathlib
import pty
import re
import signal
import subprocess
import tempfile
import time

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 129, 130, 138, 140, 143}
# Texts of library errors that accel did not translate.
RAW = re.compile(r"std::|bad_alloc|basic_string|vector::|map::at|filesystem error|Assertion|terminate called|json\.exception")
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
MOST_BYTES = 2_000_000_000


@dataclasses.dataclass
class Result:
    code: int  # The exit code, or the negative number of the signal that ended it.
    out: bytes
    err: bytes
    seconds: float
    peak_bytes: int
    hung: bool

    @property
    def text(self) -> str:
        return self.err.decode(errors="replace")

    def misconduct(self, allowed=CODES) -> str | None:
        """Returns a fault that no command may have, or None."""
        if self.hung:
            return f"no end after {self.seconds:.0f} s"
        if self.code not in allowed:
            return f"exit code {self.code}"
        if self.peak_bytes > MOST_BYTES:
            return f"{self.peak_bytes} bytes of memory"
        if raw := RAW.search(self.text):
            return f"an untranslated error: {raw.group()}"
        for name, data in (("stdout", self.out), ("stderr", self.err)):
            if control := CONTROL.search(data):
                return f"{name} has the control character {control.group()!r}"
            try:
                data.decode()
            except UnicodeDecodeError as error:
                return f"{name} is not UTF-8: {error}"
        if self.code not in (0, 3) and b"error: " not in self.err and b'{"type":"error"' not in self.err:
            return f"exit code {self.code} without a message"
        return None


class Running:
    """A command in the background. `output` selects where its output goes: to files ("file"), to a terminal that nobody
    reads ("tty"), or to a full pipe ("pipe")."""

    def __init__(self, command, cwd, environment=None, preexec=None, output="file"):
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.ends = self.unread(output)
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=cwd, env={**os.environ, "NO_COLOR": "1", **(environment or {})},
            stdin=subprocess.DEVNULL, stdout=self.ends[0] if self.ends else self.out,
            stderr=self.ends[0] if self.ends else self.err, preexec_fn=preexec)
        self.pid = self.process.pid

    @staticmethod
    def unread(output):
        """Returns the writing end for the command and the reading end, which stays open. There are none for files."""
        if output == "file":
            return ()
        if output == "tty":
            reader, writer = pty.openpty()
            return writer, reader
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        return writer, reader

    def send(self, number) -> None:
        if self.process.returncode is None:
            os.kill(self.pid, number)

    def finish(self, limit_s) -> Result:
        deadline, pause, hung = time.monotonic() + limit_s, 0.0005, False
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline and not hung:
                hung = True
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        outputs = []
        for file in (self.out, self.err):
            file.seek(0)
            outputs.append(file.read(1 << 20))
            file.close()
        for end in self.ends:
            os.close(end)
        return Result(self.process.returncode, *outputs, time.monotonic() - self.begin, usage.ru_maxrss * 1024, hung)


def run(command, cwd, limit_s=20, environment=None, preexec=None) -> Result:
    return Running(command, cwd, environment, preexec).finish(limit_s)


def with_mark(mark: str) -> list[int]:
    """Returns the running processes that have `mark` (NAME=VALUE) in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def left_behind(mark: str, seconds=8.0) -> str | None:
    """Waits `seconds` for the processes with `mark` to end. Kills those that remain and names them, or returns None."""
    deadline = time.monotonic() + seconds
    while found := with_mark(mark):
        if time.monotonic() > deadline:
            names = []
            for pid in found:
                try:
                    names.append(pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            return f"left behind: {names}" if names else None
        time.sleep(0.02)
    return None
