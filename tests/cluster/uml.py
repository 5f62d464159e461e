"""Machines with a kernel of their own: User Mode Linux, which needs no hardware for virtual machines.

A machine is a process of this host. Its root is the host's, read-only, and so are this checkout, its build and its Python
environment. What it computes is computed by the host's processor, not emulated.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

AGENT = pathlib.Path(__file__).with_name("agent.py")
PACKAGES = ["user-mode-linux", "nfs-kernel-server", "libwrap0", "libevent-core-2.1-7", "libnfsidmap1", "libtirpc3"]


CLONE_NEWNET = 0x40000000


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def fetch(cache: pathlib.Path) -> pathlib.Path:
    """Returns a folder with the programs of PACKAGES, which are unpacked, not installed: a server must not start here."""
    folder = cache / "cluster"
    if not (folder / ".complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
            package.unlink()
        (folder / "lib/modules").parent.mkdir(exist_ok=True)
        (folder / "lib/modules").symlink_to("../usr/lib/uml/modules")
        (folder / ".complete").touch()
    return folder


def wait_for(condition, timeout, what):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout} s in vain: {what() if callable(what) else what}")
        time.sleep(0.05)


class Process:
    """A program on a machine. `said` is its output so far, `code` its exit code or None."""

    def __init__(self, machine, number):
        self.machine, self.number, self.said, self.code = machine, number, "", None

    def wait(self, timeout=120):
        wait_for(lambda: self.code is not None or not self.machine.is_up(), timeout,
                 lambda: f"{self.machine.name}: {self.said[-3000:]}")
        return self.code

    def signal(self, number):
        self.machine.send(id=self.number, signal=number)


class Machine:
    def __init__(self, network, number, name, memory, disk=None):
        self.network, self.number, self.name, self.memory, self.disk = network, number, name, memory, disk
        self.address, self.tap = f"10.214.0.{number + 1}", f"tap{number}"
        self.console = network.directory / f"{name}.console"  # What the kernel and the agent say.
        self.process = None

    def boot(self):
        to_machine, write_end = os.pipe()
        read_end, from_machine = os.pipe()
        console = os.open(self.console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        names = ",".join(f"{one.name}={one.address}" for one in self.network.machines)
        options = [f"mem={self.memory}M", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", f"init={self.network.init}",
                   "con=null", "con0=null,fd:2", f"ssl0=fd:{to_machine},fd:{from_machine}",
                   f"vec0:transport=tap,ifname={self.tap},depth=64,gro=1", f"machine={self.name}", f"machines={names}"]
        if self.disk:
            options.append(f"ubda={self.disk}")
        # In a process group of its own, with the processes in which the machine's programs run. A paused machine has to go on to
        # see that its serial line has ended.
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "CONT", self.network.programs / "usr/bin/linux.uml", *options], stdin=subprocess.DEVNULL,
            stdout=console, stderr=console, pass_fds=(to_machine, from_machine), env={**os.environ, "TMPDIR": "/dev/shm"},
            start_new_session=True)
        for file in (console, to_machine, from_machine):
            os.close(file)
        self.requests, self.answers = os.fdopen(write_end, "wb", buffering=0), os.fdopen(read_end, "rb")
        self.processes = {0: Process(self, 0)}
        threading.Thread(target=self._listen, args=(self.answers, self.processes), daemon=True).start()
        wait_for(lambda: self.processes[0].code == 0, 60, lambda: f"{self.name} does not boot, see {self.console}")

    def _listen(self, answers, processes):
        with contextlib.suppress(OSError, ValueError):
            for line in answers:
                message = json.loads(line)
                process = processes[message["id"]]
                process.said += message.get("said", "")
                if "code" in message:
                    process.code = message["code"]

    def send(self, **message):
        self.requests.write(json.dumps(message).encode() + b"\n")

    def start(self, *command, env=None):
        process = Process(self, len(self.processes))
        self.processes[process.number] = process
        self.send(id=process.number, run=list(map(str, command)), env=env or {})
        return process

    def run(self, *command, timeout=60, check=True, env=None):
        """Runs a command to its end and returns its output."""
        process = self.start(*command, env=env)
        code = process.wait(timeout)
        if check and code != 0:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, command))}: {code}: {process.said}")
        return process.said

    def is_up(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """As if the power were cut."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.requests.close()

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)


class Network:
    """Machines on one bridge, in a network namespace that this process enters. They end with the `with` block, and, since
    their serial lines end, with this process."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path):
        self.programs, self.directory, self.machines = programs, directory, []
        self.init = directory / "init"
        self.init.write_text(f"#!/bin/sh\nexec /usr/bin/python3 {AGENT}\n")
        self.init.chmod(0o755)

    def add(self, name, memory, disk=None):
        self.machines.append(Machine(self, len(self.machines), name, memory, disk))
        return self.machines[-1]

    def __enter__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace can be made here")
        ip("link", "add", "bridge", "type", "bridge")
        ip("link", "set", "bridge", "up")
        for machine in self.machines:
            ip("tuntap", "add", machine.tap, "mode", "tap")
            ip("link", "set", machine.tap, "master", "bridge", "up")
        return self

    def __exit__(self, *_):
        for machine in self.machines:
            machine.kill()
