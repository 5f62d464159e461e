"""The first process of a machine of tests/cluster: sets the machine up, and runs what comes over its serial line.

Each line is a JSON object. {"id": 1, "run": [...], "env": {...}} starts a program, whose output comes back as lines with "said"
and whose end as "code"; {"id": 1, "signal": 9} sends it a signal. The end of the line is the end of the machine.
"""

import ctypes
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import tty

POWER_OFF = 0x4321FEDC


def set_up():
    """The root is that of the host, read-only. Only what lies in memory can be written."""
    # /sys/fs/cgroup/systemd is what slurmd takes for control groups of version 1. It uses none.
    for kind, place in [("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/sys/fs/cgroup"), ("cgroup", "/sys/fs/cgroup/systemd"),
                        ("tmpfs", "/tmp"), ("tmpfs", "/run"), ("tmpfs", "/var/lib"), ("devpts", "/dev/pts"), ("tmpfs", "/dev/shm")]:
        if place.startswith(("/dev/", "/sys/fs/cgroup/")):
            os.makedirs(place, exist_ok=True)
        subprocess.run(["mount", "-t", kind, *(["-o", "none,name=systemd"] if kind == "cgroup" else []), kind, place], check=True)
    for link, target in [("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "fd/0"), ("/dev/stdout", "fd/1"), ("/dev/stderr", "fd/2")]:
        if not os.path.lexists(link):
            os.symlink(target, link)
    socket.sethostname(os.environ["machine"])
    pathlib.Path("/run/hosts").write_text("127.0.0.1 localhost\n" + "".join(
        f"{address} {name}\n" for name, address in (entry.split("=") for entry in os.environ["machines"].split(","))))
    subprocess.run(["mount", "--bind", "/run/hosts", "/etc/hosts"], check=True)
    address = dict(entry.split("=") for entry in os.environ["machines"].split(","))[os.environ["machine"]]
    for arguments in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", "vec0"], ["link", "set", "vec0", "up"]):
        subprocess.run(["ip", *arguments], check=True)


class Line:
    def __init__(self):
        self.file = os.open("/dev/ttyS0", os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self.file)
        self.writing = threading.Lock()

    def say(self, **message):
        data = json.dumps(message).encode() + b"\n"
        with self.writing:
            while data:
                data = data[os.write(self.file, data):]

    def requests(self):
        with os.fdopen(os.dup(self.file), "rb") as file:
            yield from map(json.loads, file)


def follow(line, number, process):
    for said in process.stdout:
        line.say(id=number, said=said.decode(errors="replace"))
    line.say(id=number, code=process.wait())


def serve():
    set_up()
    line = Line()
    processes = {}
    line.say(id=0, code=0)
    for request in line.requests():
        number = request["id"]
        if "signal" in request:
            if processes[number].poll() is None:
                os.kill(processes[number].pid, request["signal"])
            continue
        try:
            processes[number] = subprocess.Popen(
                request["run"], env={**os.environ, **request.get("env", {})}, cwd="/tmp", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            line.say(id=number, said=f"{error}\n")
            line.say(id=number, code=127)
            continue
        threading.Thread(target=follow, args=(line, number, processes[number]), daemon=True).start()


def main():
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if (agent := os.fork()) == 0:
        try:
            serve()
        except BaseException as error:
            print(f"agent: {error!r}", flush=True)
        os._exit(0)
    while os.wait()[0] != agent:  # Orphans, too, end here.
        pass
    ctypes.CDLL(None).reboot(POWER_OFF)


if __name__ == "__main__":
    sys.exit(main())
