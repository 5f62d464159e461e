"""Hosts that share a folder over a network: mounts of one folder, each with a cache and with flock of its own."""

import contextlib
import os
import pathlib
import select
import subprocess

import needs
import pytest


class Host:
    """The mount of one host. `path` is where this machine sees it.

    A lock that a process gives up goes at once. Those of a file that is closed, or of a process that has ended, go a moment
    later, since the kernel does not wait for the file system then."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path, path: pathlib.Path, *options: str):
        path.mkdir()
        self.path = path
        # A signal from the terminal is for the test, whose end ends the mount.
        self.process = subprocess.Popen([program, folder, path, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, start_new_session=True)
        if self.process.stdout.readline() != b"mounted\n":
            raise OSError(self.process.communicate()[1].decode().strip())

    def fail(self, error: int, *operations: str, name: str = "*"):
        """Lets operations on files whose name matches fail. They are FUSE's, like write, fsync or rename; or all."""
        self._command(f"fail {error} {name} {' '.join(operations)}")

    def stall(self, *operations: str, name: str = "*"):
        """Lets operations wait until clear(). Whoever waits cannot be killed before."""
        self._command(f"stall {name} {' '.join(operations)}")

    def wait_until_stalled(self, name: str = "*"):
        """Returns when an operation waits because of stall() with this name."""
        self._command(f"await {name}")

    def clear(self, name: str = ""):
        """Ends what fail() and stall() with this name have begun; without one, all."""
        self._command(f"clear {name}")

    def shown_at(self, place: pathlib.Path) -> list[str]:
        """Returns the beginning of a command line: the rest of it runs with this host's mount at `place`."""
        return ["unshare", "--mount", "sh", "-c", f'mount --bind "{self.path}" "{place}" && exec "$@"', "sh"]

    def die(self):
        """Ends the host as a power cut does: its locks go, and its processes can do nothing more with the folder."""
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        finally:
            if self.process.poll() is None:
                self.die()
            if self.process.returncode:  # After die() the mount is still there.
                subprocess.run(["umount", "--lazy", self.path], check=False)

    def _command(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], 60)[0], f"the file system has not answered '{line}'"
        assert (answer := self.process.stdout.readline()) == b"ok\n", answer


@pytest.fixture
def two_hosts(accel_path, tmp_path):
    """two_hosts(OPTIONS...) gives two hosts that share a folder. `cache=SECONDS` is for how long they believe what they know
    of names and attributes; with `local_locks` no host sees a file lock of the other one. `folder` is the folder itself."""
    program = accel_path.parents[2] / "tests/two_hosts/remote-folder"
    if not os.path.exists("/dev/fuse"):
        pytest.skip("file systems of two hosts cannot be mounted here: there is no /dev/fuse")
    if not program.exists():
        needs.missing(f"{program} is not built, which needs libfuse3-dev")
    with contextlib.ExitStack() as stack:
        def make(*options):
            (tmp_path / "shared").mkdir()
            return [stack.enter_context(contextlib.closing(Host(program, tmp_path / "shared", tmp_path / name, *options)))
                    for name in ("host0", "host1")]

        make.folder = tmp_path / "shared"
        yield make
