"""Connects to a run on two machines what is not of it: COUNT hostile connections before, during and
after its start.

    tools/dev strangers [--count 1000]

A run of `accel launch` is started once without strangers, and three times with COUNT of them:

- before: they wait for machine 0 and connect as soon as it listens; machine 1 comes when all have
  connected;
- during: they connect while machine 0 waits, and come again as soon as they are turned away, until
  the run has begun;
- after: they connect while the ranks run.

Each run must begin and end with 0 on both machines, no stranger may be accepted, and machine 0 must
stay small. The table says what became of the strangers, and what they cost. The exit code is 1 if
something is wrong.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ports  # noqa: E402
from stranger_kinds import KINDS, RUN_ID, SECRET, Stranger, hello, proof  # noqa: E402

MOST_BYTES = 96 << 20
START_S = 120
# What is left of the strangers ends so long after the run has begun.
LAST_S = 2


async def be_stranger(kind, port, recorded, waits, reach):
    """Connects and does what its kind does. Returns what became of it. If it `waits`, it tries
    again where nobody listens."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            break
        except OSError:
            if not waits:
                return "not let in"
            await asyncio.sleep(0.05)
    has_acted = False

    def act():
        nonlocal has_acted
        if not has_acted:
            reach("acted")
        has_acted = True

    reach("connected")
    told = ""
    try:
        challenge = json.loads(await reader.readline() or "{}")
        if kind == "slow":
            act()
        if challenge:
            await getattr(Stranger(reader, writer, challenge, recorded), kind)()
        act()
        while more := await reader.read(1 << 20):
            told += more.decode()
    except asyncio.CancelledError:
        return "still connected"
    except (OSError, ValueError):
        pass  # Machine 0 has closed the connection, and what it said before may be lost with it.
    finally:
        act()
        writer.transport.abort()
    if "accepted" in told:
        return "accepted"
    return "refused in words" if "refused" in told else "closed"


def record(port):
    """Returns a hello that machine 0 has accepted, of a launcher that has gone away since."""
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(
            ("127.0.0.1", port), timeout=20
        ) as connection:
            lines = connection.makefile()
            challenge = json.loads(lines.readline())
            nonce = secrets.token_hex(32)
            said = hello(
                challenge["version"],
                nonce,
                proof("member", challenge["challenge"], nonce, challenge["version"]),
            )
            connection.sendall(said.encode())
            if "accepted" not in json.loads(lines.readline()):
                raise AssertionError("machine 0 does not accept a right hello")
            return said
        time.sleep(0.02)


class Crowd:
    """Strangers of all kinds in a process of their own. They may wait for machine 0, or come again
    when their connection has ended."""

    def __init__(self, count, port, recorded, *, waits=False, comes_again=False):
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import strangers; "
            "strangers.crowd(*map(int, sys.argv[2:6]), sys.argv[6])"
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                code,
                pathlib.Path(__file__).parent,
                str(count),
                str(port),
                str(int(waits)),
                str(int(comes_again)),
                recorded,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_all(self, state):
        """Waits until all have "connected", or have "acted": what they send is on its way, except
        that of slow ones."""
        while self.process.stdout.readline() not in (f"{state}\n", ""):
            pass

    def end(self):
        """Ends those that are still connected. Returns how many of each kind had each end."""
        said, _ = self.process.communicate("\n")
        return {
            kind: collections.Counter(ends)
            for kind, ends in json.loads(said.splitlines()[-1]).items()
        }


def crowd(count, port, waits, comes_again, recorded):
    """The process of a Crowd. It ends with a line on stdin."""
    allow_descriptors()
    is_over = False
    states = collections.Counter()
    found = {kind: collections.Counter() for kind in KINDS}

    def reach(state):
        states[state] += 1
        if states[state] == count:
            print(state, flush=True)

    async def one(kind):
        while not is_over:
            end = await be_stranger(kind, port, recorded, waits, reach)
            found[kind][end] += 1
            if not comes_again or end == "not let in":
                return

    async def all_of_them():
        nonlocal is_over
        tasks = [asyncio.create_task(one(KINDS[i % len(KINDS)])) for i in range(count)]
        await asyncio.to_thread(sys.stdin.readline)
        is_over = True
        for task in (await asyncio.wait(tasks, timeout=LAST_S))[1]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_them())
    print(f"\n{json.dumps(found)}", flush=True)


def allow_descriptors():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Launcher:
    """`accel launch` of one of two machines. Its program makes a file when it begins, and ends when
    the file `go` is there."""

    def __init__(self, accel, directory, port, machine):
        self.directory, self.machine = directory, machine
        program = (
            f"echo > {directory}/begun.$GROUP_RANK; "
            f"until [ -e {directory}/go ]; do sleep 0.05; done"
        )
        self.log = open(directory / f"log.{machine}", "w+", encoding="utf-8")
        self.begin = time.monotonic()
        self.peak = 0
        self.process = subprocess.Popen(
            [
                accel,
                "launch",
                "--num-machines",
                "2",
                "--machine-rank",
                str(machine),
                "--main-process-ip",
                "127.0.0.1",
                "--main-process-port",
                str(port),
                "--num-processes",
                "2",
                "--cpu",
                "--run-id",
                RUN_ID,
                "--",
                "sh",
                "-c",
                program,
            ],
            cwd=directory,
            env={**os.environ, "ACCEL_RUN_SECRET": SECRET},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )

    def has_begun(self):
        return (self.directory / f"begun.{self.machine}").exists()

    def has_ended(self):
        return self.process.poll() is not None

    def peak_bytes(self):
        """The peak so far. A process that has just ended does not say it any more."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        if found := re.search(r"VmHWM:\s+(\d+)", status):
            self.peak = int(found[1]) * 1024
        return self.peak

    def cpu_s(self):
        fields = (
            pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def finish(self):
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@dataclasses.dataclass
class Found:
    """What one run has shown."""

    moment: str
    start_s: float = 0
    cpu_s: float = 0
    peak_bytes: int = 0
    recorded: str = ""  # A hello that machine 0 has accepted.
    ends: dict = dataclasses.field(
        default_factory=dict
    )  # How many strangers of each kind had each end.
    wrong: list = dataclasses.field(default_factory=list)

    def total(self):
        return sum(self.ends.values(), collections.Counter())


def wait_for(launchers, patience_s, is_true):
    deadline = time.monotonic() + patience_s
    while (
        not is_true()
        and time.monotonic() < deadline
        and not any(launcher.has_ended() for launcher in launchers)
    ):
        time.sleep(0.005)


def run(accel, directory, moment, count=0, recorded="", state="connected"):
    """Starts one run with `count` strangers at a moment. Machine 1 comes when those "before" it
    have reached a state."""
    directory.mkdir()
    found = Found(moment)
    with ports.held_port() as port:
        launchers, strangers = [], None
        if moment == "before":
            strangers = Crowd(count, port, recorded, waits=True)
        launchers.append(Launcher(accel, directory, port, 0))
        found.recorded = record(port)
        if moment == "before":
            strangers.await_all(state)
        if moment == "during":
            strangers = Crowd(count, port, recorded, comes_again=True)
            strangers.await_all("connected")
        launchers.append(Launcher(accel, directory, port, 1))
        wait_for(launchers, START_S, lambda: all(launcher.has_begun() for launcher in launchers))
        found.start_s = time.monotonic() - launchers[1].begin
        if not all(launcher.has_begun() for launcher in launchers):
            found.wrong.append(f"the run has not begun within {START_S} s")
        if moment == "after":
            strangers = Crowd(count, port, recorded)
        if strangers:
            found.ends = strangers.end()
        if not launchers[0].has_ended():
            found.cpu_s, found.peak_bytes = launchers[0].cpu_s(), launchers[0].peak_bytes()
        (directory / "go").touch()
        for launcher in launchers:
            if (code := launcher.finish()) != 0:
                found.wrong.append(
                    f"machine {launcher.machine} ended with {code}:\n{launcher.said()}"
                )
    if accepted := found.total()["accepted"]:
        found.wrong.append(f"{accepted} strangers were accepted")
    if found.peak_bytes > MOST_BYTES:
        found.wrong.append(f"machine 0 took {found.peak_bytes / 1e6:.1f} MB")
    return found


def campaign(accel, directory, count, state="connected"):
    """Returns what the four runs have shown."""
    without = run(accel, directory / "without", "without")
    return [
        without,
        *(
            run(accel, directory / moment, moment, count, without.recorded, state)
            for moment in ("before", "during", "after")
        ),
    ]


ENDS = ("refused in words", "closed", "not let in", "still connected", "accepted")


def table(runs):
    lines = [
        "| strangers | start | CPU of machine 0 | its peak memory | connections | "
        + " | ".join(ENDS)
        + " |",
        "| --- " * (5 + len(ENDS)) + "|",
    ]
    for found in runs:
        total = found.total()
        lines.append(
            f"| {found.moment} | {found.start_s:.2f} s | {found.cpu_s:.2f} s "
            f"| {found.peak_bytes / 1e6:.1f} MB "
            f"| {total.total()} | " + " | ".join(str(total[end]) for end in ENDS) + " |"
        )
    before = next(found for found in runs if found.moment == "before")
    lines += [
        "",
        "By kind, where they came before the start:",
        "",
        "| kind | " + " | ".join(ENDS) + " |",
        "| --- " * (1 + len(ENDS)) + "|",
    ]
    lines += [
        f"| {kind.replace('_', ' ')} | " + " | ".join(str(ends[end]) for end in ENDS) + " |"
        for kind, ends in before.ends.items()
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("accel", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    allow_descriptors()
    with tempfile.TemporaryDirectory(prefix="accel-strangers-") as work:
        runs = campaign(options.accel.resolve(), pathlib.Path(work), options.count)
    print(table(runs))
    for found in runs:
        for wrong in found.wrong:
            print(f"WRONG, {found.moment}: {wrong}")
    return 1 if any(found.wrong for found in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
