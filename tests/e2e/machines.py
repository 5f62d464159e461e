"""Machines for the launcher's tests: network namespaces with addresses of their own, joined by a bridge."""

import contextlib
import os
import shutil
import subprocess
import uuid

import pytest
from launching import Run


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


class Machine:
    """A namespace with an address. Its processes share files and clock with this host, and no network but the bridge."""

    def __init__(self, network, number):
        self.name, self.link = f"{network.name}m{number}", f"{network.name}v{number}"
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
        return Run(["ip", "netns", "exec", self.name, accel_path], directory, *arguments, **options)


class Network:
    def __init__(self, stack):
        self.stack, self.name = stack, "a" + uuid.uuid4().hex[:6]
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


@pytest.fixture
def machines(accel_path, tmp_path):
    """machines(COUNT) gives as many machines; machines.launch(MACHINES, ARGUMENTS...) begins a run on them."""
    if why := problem():
        pytest.skip(f"network namespaces cannot be made here: {why}")
    runs = []
    with contextlib.ExitStack() as stack:
        def make(count):
            network = Network(stack)
            return [Machine(network, number) for number in range(count)]

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
