"""On a terminal, a status stands below what ranks print; what stays on the screen is what a pipe gets."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time

import pytest

import train_runs
from launching import wait_for
from screen import Screen

COLUMNS = 400  # No line of a run is wider.
A_TERMINAL = {"TERM": "xterm", "CI": "", "NO_COLOR": "1"}


class OnTerminal:
    """`accel launch ARGUMENTS` on a terminal. `text` is what it has written so far."""

    def __init__(self, accel_path, tmp_path, *arguments, env=None, columns=COLUMNS):
        self.reader, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # In a process group of its own: that of the tests may be orphaned, and in such a one the kernel ignores SIGTSTP.
        self.process = subprocess.Popen([accel_path, "launch", *map(str, arguments)], cwd=tmp_path, stdin=subprocess.DEVNULL,
                                        stdout=theirs, stderr=theirs, env={**os.environ, **A_TERMINAL, **(env or {})}, process_group=0)
        os.close(theirs)
        self.columns, self.data = columns, b""

    @property
    def text(self):
        return self.data.decode(errors="replace")

    def read(self):
        """Whether there was something to read."""
        try:
            self.data += (data := os.read(self.reader, 65536))
            return bool(data)
        except OSError:  # The terminal has no other side any more.
            return False

    def read_until(self, is_there):
        while not is_there(self.text):
            assert self.read(), f"it ended early: {self.text}"

    def finish(self):
        """Waits for its end, and returns the exit code and the lines on the screen."""
        while self.read():
            pass
        os.close(self.reader)
        return self.process.wait(timeout=60), Screen(self.columns).feed(self.text).shown()


@pytest.fixture
def training(tmp_path):
    """training(**keys) returns the configuration of a training."""
    train_runs.export(tmp_path / "gpt.pt")
    return lambda **keys: train_runs.config(tmp_path, 2, **keys)


def drawn(text):
    """The steps at which a bar was drawn."""
    return [int(step) for step in re.findall(r"\[#*\.*\] step (\d+) of ", text)]


def without_times(lines):
    """Lines without what differs from run to run: seconds, rates and the time that is left."""
    return [re.sub(r"[\d.]+ (m?s\b|tokens/s|samples/s|[kMG]?B/s)|\d+m \d\ds|\(\d+%\)| left", "#", line) for line in lines]


def without_parts(lines):
    """The same without the lines of parts of the time, which are left out if they took none."""
    return [line for line in without_times(lines) if " on rank 0: " not in line]


@pytest.mark.long
def test_the_status_moves_and_leaves_nothing(accel, accel_path, tmp_path, training):
    config = training(max_steps=1000, log_every=200)
    run = OnTerminal(accel_path, tmp_path, config)
    code, screen = run.finish()
    assert code == 0
    steps = drawn(run.text)
    # More often than a record is written, which is five times.
    assert len(set(steps)) > 1 and steps == sorted(steps) and set(steps) <= set(range(1001)), steps
    assert "\r\nloss ▁" in run.text or "\r\nloss █" in run.text
    assert not any("#" in line for line in screen), screen
    plain = accel("launch", config, "--set", f"training.output_dir={tmp_path / 'other'}", env={"CI": ""})
    assert plain.stdout == "" and "\x1b" not in plain.stderr
    assert without_parts(screen) == without_parts(plain.stderr.replace("other/", "out/").splitlines())


def test_lines_of_ranks_stand_above_it_whole(accel_path, tmp_path, training):
    run = OnTerminal(accel_path, tmp_path, training(max_steps=100_000, **{"checkpoint.every": 100_000}))
    run.read_until(lambda text: len(drawn(text)) > 3 and text.count("/100000  loss ") > 3)
    # Between a line and the next, the status is removed, or nothing of it was there.
    text = run.text[:run.text.rindex("\r\n") + 2]
    screen = Screen(COLUMNS).feed(text).shown()
    lines = [line for line in screen if "/100000  loss " in line]
    steps = [int(re.match(r"step +(\d+)/", line)[1]) for line in lines]
    assert steps == list(range(1, len(steps) + 1)), screen
    run.process.send_signal(signal.SIGINT)
    code, screen = run.finish()
    assert code == 7 and drawn("\n".join(screen)) == [], screen
    assert "goes on from it" in screen[-1], screen


def test_a_run_that_dies_leaves_no_status(accel_path, tmp_path, training):
    run = OnTerminal(accel_path, tmp_path, training(max_steps=100_000))
    run.read_until(lambda text: len(drawn(text)) > 1)
    os.kill(train_runs.worker_of(1, run.process.pid), signal.SIGKILL)
    code, screen = run.finish()
    assert code == 6 and drawn("\n".join(screen)) == [], screen
    assert any("rank 1 of 2 failed: killed by SIGKILL" in line for line in screen), screen


def state_of(pid):
    return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]


def test_a_stopped_run_leaves_the_terminal_to_the_shell(accel_path, tmp_path, training):
    run = OnTerminal(accel_path, tmp_path, training(max_steps=100_000))
    run.read_until(lambda text: len(drawn(text)) > 1)
    run.process.send_signal(signal.SIGTSTP)
    wait_for(lambda: state_of(run.process.pid) == "T", 30)
    os.set_blocking(run.reader, False)
    while run.read():
        pass
    os.set_blocking(run.reader, True)
    before = len(drawn(run.text))
    assert drawn("\n".join(Screen(COLUMNS).feed(run.text).shown())) == []
    run.process.send_signal(signal.SIGCONT)
    run.read_until(lambda text: len(drawn(text)) > before)
    run.process.kill()
    run.finish()


def test_a_second_signal_leaves_no_status(accel_path, tmp_path, training):
    """The ranks cannot save, because one of them is stopped."""
    run = OnTerminal(accel_path, tmp_path, training(max_steps=100_000, **{"checkpoint.every": 100_000}))
    run.read_until(lambda text: len(drawn(text)) > 1)
    rank = train_runs.worker_of(1, run.process.pid)
    os.kill(rank, signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    run.read_until(lambda text: "SIGTERM" in text)
    os.kill(rank, signal.SIGSTOP)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGTERM)
    code, screen = run.finish()
    assert code == 143 and drawn("\n".join(screen)) == [], screen


@pytest.mark.long(but="()-{'CI': 'true'}")
@pytest.mark.parametrize("arguments, env", [((), {"CI": "true"}), ((), {"TERM": "dumb"}), ((), {"TERM": ""}),
                                            (("--no-progress",), {}), (("--quiet",), {})], ids=str)
def test_where_nothing_is_drawn(accel_path, tmp_path, training, arguments, env):
    run = OnTerminal(accel_path, tmp_path, training(), *arguments, env=env)
    code, _ = run.finish()
    assert code == 0 and "\x1b" not in run.text


@pytest.mark.long
@pytest.mark.parametrize("job, is_drawn", [("& wait", False), ("", True)], ids=["background", "foreground"])
def test_a_job_in_the_background_leaves_the_terminal_to_others(accel_path, tmp_path, training, job, is_drawn):
    pid, terminal = pty.fork()
    if pid == 0:
        script = f"set -m; {accel_path} launch {training(max_steps=1000, log_every=200)} {job}"
        os.execvpe("bash", ["bash", "--norc", "-c", script], {**os.environ, **A_TERMINAL})
    text = b""
    while True:
        try:
            text += os.read(terminal, 65536)
        except OSError:  # Both have ended.
            break
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"step 1000/1000" in text and (drawn(text.decode()) != []) == is_drawn, text


def test_a_program_has_no_status(accel_path, tmp_path):
    run = OnTerminal(accel_path, tmp_path, "--cpu", "--main_process_port", "0", "--", "bash", "-c", "echo a; sleep 1; echo b >&2")
    assert run.finish() == (0, ["a", "b"]) and run.text == "a\r\nb\r\n"


@pytest.mark.long
def test_a_narrow_terminal_has_no_remains(accel_path, tmp_path, training):
    run = OnTerminal(accel_path, tmp_path, training(max_steps=1000, log_every=200), columns=30)
    code, screen = run.finish()
    assert code == 0 and "\x1b[" in run.text
    assert not any("[#" in line or "...." in line for line in screen), screen


def test_lines_of_ranks_do_not_break_inside_a_word(accel_path, tmp_path, training):
    run = OnTerminal(accel_path, tmp_path, training(), "--tee", "3", columns=60)
    code, screen = run.finish()
    logged = [(tmp_path / f"out/logs/attempt_0/rank_{rank}/stderr.log").read_text().split() for rank in (0, 1)]
    shown = [[word for line in screen if line.startswith(f"[rank{rank}] ") for word in line.split()[1:]] for rank in (0, 1)]
    assert code == 0 and max(map(len, screen)) <= 60 and "optimizer" in logged[0] and logged == shown


def test_a_quiet_training_says_only_what_is_wrong(accel, accel_path, tmp_path, training):
    config = training()
    said = accel("--quiet", "launch", config)
    assert (said.stdout, said.stderr) == ("", "")
    assert "step 20/20  loss " in (tmp_path / "out/logs/attempt_0/rank_0/stderr.log").read_text()
    failed = accel("launch", "--quiet", config, "--set", "training.optimizer.lr=1e30", "--set",
                   f"training.output_dir={tmp_path / 'other'}", code=6)
    assert failed.stdout == "" and failed.stderr.startswith("accel: error: rank ") and "the loss is" in failed.stderr


def test_a_quiet_program_says_only_what_is_wrong(accel, tmp_path):
    program = "echo result; echo wrong >&2"
    said = accel("launch", "--quiet", "--cpu", "--num-processes", 2, "--main_process_port", 0, "--log-dir", "logs", "--", "bash",
                 "-c", program)
    assert said.stdout == "" and sorted(said.stderr.splitlines()) == ["[rank1] wrong", "wrong"]
    assert (tmp_path / "logs/attempt_0/rank_0/stdout.log").read_text() == "result\n"
