"""Two hosts that share a folder: each has a FUSE mount of it, a name and a boot id of its own. FUSE keeps locks of one
mount from the other, as Lustre does with the option localflock, and caches names for a second."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from launching import Run


class Host:
    def __init__(self, name, directory):
        """All hosts see the folder as `directory`/shared."""
        self.name, self.directory = name, directory
        self.mount = directory / f"mount of {name}"
        self.mount.mkdir()
        command = ["bindfs", "-o", "attr_timeout=1,entry_timeout=1", directory / "folder", self.mount]
        subprocess.run(command, check=True, capture_output=True)
        boot = directory / f"boot id of {name}"
        boot.write_text(f"{name}\n")
        enter = 'hostname "$1" && mount --bind "$2" "$3" && mount --bind "$4" /proc/sys/kernel/random/boot_id && shift 4 && exec "$@"'
        self.prefix = ["unshare", "--mount", "--uts", "sh", "-c", enter, "sh", name, self.mount, directory / "shared", boot]

    def launch(self, accel_path, *arguments):
        """Begins `accel launch ARGUMENTS...` on this host."""
        return Run([*self.prefix, accel_path], self.directory, *arguments)

    def unmount(self):
        subprocess.run(["umount", "--lazy", self.mount], check=True)


def signal_all(run, number):
    """Sends a signal to all processes of a launcher, as if it were to its whole host. The launcher gets SIGSTOP first."""
    processes = [run.pid]
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and run.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                processes.append(int(entry.name))
        except OSError:
            continue
    for process in dict.fromkeys(processes):
        os.kill(process, number)
    if number != signal.SIGSTOP:
        return
    for process in dict.fromkeys(processes):
        while pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "TZ":
            time.sleep(0.01)


@pytest.fixture
def hosts(tmp_path):
    if not pathlib.Path("/dev/fuse").exists():
        pytest.skip("there is no /dev/fuse")
    if os.geteuid() != 0:
        pytest.skip("mounting for another host needs root")
    assert shutil.which("bindfs"), "bindfs is not installed: tools/dev setup"
    for name in ("folder", "shared"):
        (tmp_path / name).mkdir()
    made = []
    try:
        for name in ("node07", "node08"):
            made.append(Host(name, tmp_path))
        yield made
    finally:
        for host in made:
            host.unmount()
