"""Local rank 0 has the launcher's standard input, and a launcher on a terminal is a job of the shell like any other."""

import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from launching import wait_for

READER = "import sys; print([line.rstrip() for line in sys.stdin], flush=True)"
DEBUGGED = """
import os, pathlib, time
if os.environ["RANK"] == "0":
    secret = 6 * 7
    breakpoint()
    print("went on with", secret)
else:
    # This rank runs as long as rank 0.
    pathlib.Path("other").write_text(str(os.getpid()))
    while not pathlib.Path("done").exists(): time.sleep(0.01)
pathlib.Path("done").touch()
"""


# Rank 0 reads its standard input to the end, and notes what it has read.
NOTED = """
import pathlib, sys
read = [line.rstrip() for line in sys.stdin]
pathlib.Path("read.new").write_text(str(read))
pathlib.Path("read.new").rename("read")
"""


def ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class Shell:
    """bash with job control on a terminal of its own."""

    def __init__(self, directory, accel_path):
        self.text, self.pid = "", 0
        environment = {**os.environ, "PS1": "shell> ", "NO_COLOR": "1", "ACCEL": str(accel_path), "PYTHON": sys.executable}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--norc", "--noediting", "-i"], environment)
        self.expect("shell> ")

    def send(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, timeout=60):
        """Reads until `pattern` appears. Returns what came up to its end."""
        deadline = time.monotonic() + timeout
        while not (match := re.search(pattern, self.text)):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            assert ready, f"'{pattern}' does not appear within {timeout} s: {self.text!r}"
            self.text += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")
        seen, self.text = self.text[:match.end()], self.text[match.end():]
        return seen

    def read_for(self, seconds):
        """Reads until nothing has come for so long."""
        while select.select([self.fd], [], [], seconds)[0]:
            self.text += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")

    def launch(self, more="", ranks=2):
        """Runs program.py; `more` is the rest of the command line."""
        self.send(f"$ACCEL launch --cpu --num-processes {ranks} -- $PYTHON program.py {more}\n")

    def close(self):
        os.close(self.fd)  # The terminal hangs up.
        for _ in range(500):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(tmp_path, accel_path):
    terminal = Shell(tmp_path, accel_path)
    yield terminal
    terminal.close()


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(DEBUGGED)
    return tmp_path


def processes(directory):
    """The other rank, its launcher and rank 0, once the other rank runs."""
    wait_for(lambda: (directory / "other").exists() and (directory / "other").read_text(), 60)
    other = int((directory / "other").read_text())
    launcher = int(pathlib.Path(f"/proc/{other}/stat").read_text().rsplit(")", 1)[1].split()[1])
    children = map(int, pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split())
    return [launcher, *children]


def test_a_pipe_reaches_rank_0_alone(accel_path, tmp_path):
    script = ("import os, sys; text = sys.stdin.read(); open(os.environ['RANK'], 'w').write(text)")
    command = [accel_path, "launch", "--cpu", "--num-processes", "3", "--", sys.executable, "-c", script]
    subprocess.run(command, cwd=tmp_path, input="one\ntwo\n", text=True, check=True, timeout=60)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["one\ntwo\n", "", ""]


def test_the_launcher_itself_reads_nothing(accel_path, tmp_path):
    """A loop of a shell gives each of its commands the same input."""
    script = 'while read -r line; do "$ACCEL" launch --cpu -- echo "$line"; done'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, input="one\ntwo\n", text=True, capture_output=True, timeout=60,
                          env={**os.environ, "ACCEL": str(accel_path)})
    assert done.stdout == "one\ntwo\n"


@pytest.mark.parametrize("closed", ["<&-", "</dev/null"])
def test_without_input(accel_path, tmp_path, closed):
    command = f"'{accel_path}' launch --cpu --num-processes 2 -- '{sys.executable}' -c '{READER}' {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_debugger_works_on_a_terminal(shell, program):
    shell.launch()
    shell.expect(r"\(Pdb\) ")
    shell.send("p secret + 1\n")
    assert "\n43\n(Pdb) " in shell.expect(r"43\n\(Pdb\) ")
    shell.send("c\n")
    assert "went on with 42\n" in shell.expect(r"shell> ")
    shell.send("echo code $?\n")
    shell.expect(r"code 0\n")


def test_ctrl_c_at_a_prompt_ends_the_run(shell, program):
    shell.send("stty -a | grep -o -- -*echo\\\\b >modes.before\n")
    shell.expect("shell> ")
    # The list is bash's own, and prints the code before bash itself can get a ^C, which would set $? to 130, too.
    shell.launch("; echo code $?")
    shell.expect(r"\(Pdb\) ")
    pids = processes(program)
    shell.send("\x03")
    shell.expect(r"SIGINT: passed on to the workers")
    # pdb itself goes on after an interrupt, so a second one is needed. Within a tenth of a second it counts as the first.
    while "a second signal: killing the workers" not in shell.text:
        shell.send("\x03")
        shell.read_for(1)
    shell.expect(r"interrupted by SIGINT\n")
    shell.expect(r"code 130\n")
    shell.expect("shell> ")
    shell.send("stty -a | grep -o -- -*echo\\\\b >modes.after\n")
    shell.expect("shell> ")
    wait_for(lambda: all(map(ended, pids)))
    assert (program / "modes.after").read_text() == (program / "modes.before").read_text() != ""


def test_ctrl_z_stops_all_ranks_and_fg_goes_on(shell, program):
    shell.launch()
    shell.expect(r"\(Pdb\) ")
    launcher, *children = processes(program)
    shell.send("\x1a")
    shell.expect(r"Stopped[^\n]*\n")
    shell.expect(r"shell> ")
    other = int((program / "other").read_text())
    ranks = [pid for pid in children if "accel-guardian" not in pathlib.Path(f"/proc/{pid}/comm").read_text()]
    assert len(ranks) == 2 and other in ranks
    wait_for(lambda: [state(pid) for pid in (launcher, *ranks)] == ["T"] * 3)
    shell.send("echo typed to the shell\n")
    shell.expect(r"\ntyped to the shell\n")
    shell.send("fg\n")
    shell.expect(r"fg\n[^\n]*\n")
    shell.send("p secret + 2\n")
    shell.expect(r"44\n\(Pdb\) ")
    shell.send("c\n")
    shell.expect(r"went on with 42\n")


def test_a_job_in_the_background_leaves_the_terminal_to_the_shell(shell, tmp_path):
    (tmp_path / "program.py").write_text(NOTED)
    shell.launch("&", ranks=1)
    shell.expect(r"shell> ")
    shell.send("echo typed to the shell\n")
    shell.expect(r"\ntyped to the shell\n")
    shell.send("wait; echo code $?\n")
    shell.expect(r"code 0\n")
    assert (tmp_path / "read").read_text() == "[]"


def test_a_job_that_goes_on_in_the_background_leaves_the_terminal_to_the_shell(shell, tmp_path):
    (tmp_path / "program.py").write_text(f"print('reads', flush=True)\n{NOTED}")
    shell.launch(ranks=1)
    shell.expect(r"\nreads\n")
    shell.send("\x1a")
    shell.expect(r"Stopped[^\n]*\n")
    shell.expect(r"shell> ")
    for _ in range(2):
        shell.send("bg\n")
        shell.expect(r"rank 0 reads the terminal and stays stopped; `fg` continues it\n")
        shell.send("jobs\n")
        while "Stopped" not in shell.expect(r"\[1\][^\n]*\n"):
            shell.send("jobs\n")
        shell.send("echo typed to the shell\n")
        shell.expect(r"(\n|shell> )typed to the shell\n")  # The prompt may come behind the line that is typed.
    shell.send("fg\n")
    shell.expect(r"fg\n[^\n]*\n")
    shell.send("typed to rank 0\n\x04")
    shell.expect(r"shell> ")
    assert (tmp_path / "read").read_text() == "['typed to rank 0']"


def test_a_job_without_a_reader_goes_on_in_the_background(shell, tmp_path):
    """Rank 0 has ended, and rank 1 does not read the terminal."""
    (tmp_path / "program.py").write_text("""
import os, pathlib, time
if os.environ["RANK"] == "1":
    pathlib.Path("other").write_text(str(os.getpid()))
    while not pathlib.Path("goes on").exists(): time.sleep(0.01)
""")
    shell.launch()
    wait_for(lambda: (tmp_path / "other").exists() and (tmp_path / "other").read_text(), 60)
    other = int((tmp_path / "other").read_text())
    launcher = int(pathlib.Path(f"/proc/{other}/stat").read_text().rsplit(")", 1)[1].split()[1])
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children")
    wait_for(lambda: len(children.read_text().split()) == 2)  # The guardian and rank 1.
    shell.send("\x1a")
    shell.expect(r"Stopped[^\n]*\n")
    shell.send("bg\n")
    shell.expect(r"bg\n[^\n]*\n")
    (tmp_path / "goes on").touch()
    shell.send("wait; echo code $?\n")
    assert "stays stopped" not in shell.expect(r"code 0\n")


def test_a_suspended_run_is_ended_by_its_shell(shell, program):
    """bash continues a stopped job after it has sent SIGTERM."""
    shell.launch()
    shell.expect(r"\(Pdb\) ")
    pids = processes(program)
    shell.send("\x1a")
    shell.expect(r"Stopped[^\n]*\n")
    shell.send("kill %1\n")
    shell.expect(r"terminated by SIGTERM")
    wait_for(lambda: all(map(ended, pids)))
