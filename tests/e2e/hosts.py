"""Launchers on the hosts of two_hosts, each with a name and a boot id of its own."""

import os
import pathlib
import signal
import time

from launching import Run


class NamedHost:
    def __init__(self, name, host, directory, kernel):
        """All hosts see the folder as `directory`/seen."""
        self.name, self.host, self.directory = name, host, directory
        boot = directory / f"boot id of {name}"
        boot.write_text(f"{kernel}\n")
        (directory / "seen").mkdir(exist_ok=True)
        enter = 'hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && shift 2 && exec "$@"'
        self.prefix = [*host.shown_at(directory / "seen"), "unshare", "--uts", "sh", "-c", enter, "sh", name, boot]

    def launch(self, accel_path, *arguments):
        """Begins `accel launch ARGUMENTS...` on this host."""
        return Run([*self.prefix, accel_path], self.directory, *arguments)


def named(two_hosts, directory, *options, kernel=None):
    """Two hosts; with `kernel` they are containers of one machine, whose kernel that is."""
    return [NamedHost(name, host, directory, kernel or name)
            for name, host in zip(("node07", "node08"), two_hosts("cache=1", *options))]


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
