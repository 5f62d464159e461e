"""Machines for the launcher's tests: network namespaces with addresses of their own, joined by a bridge."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import uuid

import needs
import pytest
from launching import Run


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


class Machine:
    """A namespace with an address. Its processes share files and clock with this host, and no network but the bridge."""

    def __init__(self, network, number):
        self.name, self.link, self.host = f"{network.name}m{number}", f"{network.name}v{number}", f"m{number}"
        self.hosts = network.directory / f"hosts.{self.host}"
        # Unlike `ip netns exec` this leaves /sys as it is, which slurmd needs.
        self.prefix = ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "sh", "-c",
                       f'mount --bind {self.hosts} /etc/hosts && exec "$@"', "sh"]
        self.address = f"10.213.{network.number}.{number + 1}"
        ip("netns", "add", self.name)
        network.stack.callback(ip, "netns", "del", self.name, check=False)
        ip("link", "add", self.link, "netns", network.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("-n", network.name, "link", "set", self.link, "master", "bridge", "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        self.switch = network.name

    def cut_off(self):
        ip("-n", self.switch, "link", "set", self.link, "down")

    def run(self, accel_path, directory, *arguments, **options):
        """Begins `accel launch ARGUMENTS...` on this machine."""
        return Run([*self.prefix, accel_path], directory, *arguments, **options)


class Network:
    def __init__(self, stack):
        self.stack, self.name = stack, "a" + uuid.uuid4().hex[:6]
        self.directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        self.number = int(self.name[1:], 16) % 256
        ip("netns", "add", self.name)
        stack.callback(ip, "netns", "del", self.name, check=False)
        ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.name, "link", "set", "bridge", "up")


def problem():
    """Why there can be no such machines here, or None."""
    if shutil.which("ip") is None:
        return "the program ip is not installed"
    name = f"a{os.getpid()}probe"
    made = ip("netns", "add", name, check=False)
    ip("netns", "del", name, check=False)
    return made.stderr.strip() if made.returncode else None


def need_namespaces():
    """Ends a test that needs machines where there can be none."""
    if why := problem():
        needs.missing(f"network namespaces cannot be made here: {why}")


def network_of(stack, count):
    """Returns `count` machines, named m0, m1 and so on, which end with `stack`."""
    network = Network(stack)
    machines = [Machine(network, number) for number in range(count)]
    names = "127.0.0.1 localhost\n" + "".join(f"{machine.address} {machine.host}\n" for machine in machines)
    for machine in machines:
        machine.hosts.write_text(names)
    return machines


@pytest.fixture
def machines(accel_path, tmp_path):
    """machines(COUNT) gives as many machines; machines.launch(MACHINES, ARGUMENTS...) begins a run on them."""
    need_namespaces()
    runs = []
    with contextlib.ExitStack() as stack:
        def make(count):
            return network_of(stack, count)

        def begin(machine, directory, *arguments, **options):
            runs.append(machine.run(accel_path, directory, *arguments, **options))
            return runs[-1]

        def launch(all_of_them, *arguments, **options):
            return [begin(machine, tmp_path, "--num-machines", len(all_of_them), "--machine-rank", number, "--main-process-ip",
                          all_of_them[0].address, "--main-process-port", 29500, *arguments, **options)
                    for number, machine in enumerate(all_of_them)]

        make.begin, make.launch = begin, launch
        yield make
        for run in runs:
            run.kill_all()
