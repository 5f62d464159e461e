"""Fixtures of the tests that run the built commands."""

import fcntl
import os
import pathlib
import pty
import shutil
import struct
import subprocess
import termios

import processors
import pytest

# The number of threads decides in which order sums are taken. Without this it would be that of the machine's cores, and ranks
# that are compared with each other or with one process would have different numbers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", ROOT / "build"))


def pytest_addoption(parser):
    parser.addoption("--long", choices=("no", "only"), help="leave out the tests with the mark `long`, or run them alone")


def pytest_ignore_collect(collection_path, config):
    """Without long tests, files that have no others are not even read: they import packages that only they need."""
    leaves_out = config.getoption("--long") == "no" and collection_path.suffix == ".py"
    return True if leaves_out and "\npytestmark = pytest.mark.long\n" in collection_path.read_text() else None


def is_long(item) -> bool:
    """`long` is a mark of all cases of a test, or with but="ID" of all but one."""
    case = item.callspec.id if hasattr(item, "callspec") else None
    return any("but" not in mark.kwargs or mark.kwargs["but"] != case for mark in item.iter_markers("long"))


def pytest_collection_modifyitems(config, items):
    if (wanted := config.getoption("--long")) is None:
        return
    cases = {}
    for item in items:
        for mark in item.iter_markers("long"):
            if "but" in mark.kwargs:
                cases.setdefault((item.path, item.originalname, mark.kwargs["but"]), set()).add(item.callspec.id)
    whole_files = not any("::" in argument for argument in config.args)
    if wrong := [key for key, ids in cases.items() if whole_files and key[2] not in ids]:
        raise pytest.UsageError(f"no test has the case that its mark `long` leaves out: {wrong}")
    left_out = [item for item in items if is_long(item) != (wanted == "only")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_long(item) == (wanted == "only")]


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(autouse=processors.COLD in os.environ)
def cold_page_cache():
    processors.empty_page_cache()


@pytest.fixture(scope="session")
def accel_path() -> pathlib.Path:
    path = BUILD / "src/cli/accel"
    assert path.exists(), f"{path} is not built; run tools/dev build"
    return path


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """made_once(NAME, MAKE) returns a directory that MAKE(directory) fills once for all processes of this run."""

    def made(name, make) -> pathlib.Path:
        base = tmp_path_factory.getbasetemp()
        # pytest-xdist gives each worker a subdirectory of the run's directory.
        directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
        with open(f"{directory}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / ".complete").exists():
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir(parents=True)
                make(directory)
                (directory / ".complete").touch()
        return directory

    return made


@pytest.fixture
def accel(accel_path, tmp_path):
    """accel(ARGS...) runs the command and returns the completed process (text); code=N is the exit code expected."""

    def run(*args, code=0, cwd=tmp_path, env=None, timeout=300, text=True):
        result = subprocess.run(
            [accel_path, *map(str, args)],
            cwd=cwd,
            env={**os.environ, "NO_COLOR": "1", **(env or {})},
            capture_output=True,
            text=text,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        assert code is None or result.returncode == code, (
            f"exit code {result.returncode}, expected {code}\nstdout: {result.stdout}\nstderr: {result.stderr}"
        )
        return result

    return run


@pytest.fixture
def on_terminal(accel_path, tmp_path):
    """on_terminal(COLUMNS, ARGS...) returns what accel prints to a terminal of that width, without colours unless `env`
    has "NO_COLOR": ""."""

    def run(columns, *arguments, env=None):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([accel_path, *map(str, arguments)], stdout=theirs, stderr=theirs, cwd=tmp_path,
                                   stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", **(env or {})})
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
