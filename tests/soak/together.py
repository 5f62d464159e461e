"""Starts eight runs at once on one machine. Each must end well, with its own ranks alone."""

import os
import pathlib
import random
import subprocess
import sys
import time

import sources

sys.path.insert(0, str(sources.TESTS))
import train_runs  # noqa: E402

RUNS = 8
TIMEOUT_S = 120

# Both programs compare a number that the ranks of one run have in common. The ranks of different runs differ in it.
PLAIN = """
import os, random, socket, sys, time
own, limit = sys.argv[1].encode(), float(os.environ.get("EXCHANGE_TIMEOUT", "60"))
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
time.sleep(random.random() / 4)
if os.environ["RANK"] == "0":
    server = socket.create_server(("", address[1]))
    server.settimeout(limit)
    peer = server.accept()[0]
else:
    deadline = time.monotonic() + limit
    while True:
        try:
            peer = socket.create_connection(address, timeout=limit)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline: raise
            time.sleep(0.01)
peer.settimeout(limit)
peer.sendall(own + b".")
with peer.makefile("rb") as lines:
    said = b""
    while not said.endswith(b"."): said += lines.read(1) or sys.exit("the other rank has ended")
if said != own + b".": sys.exit(f"a rank of another run: {said}, and this is {own}")
"""
TORCH = """
import sys, torch, torch.distributed as dist
own = int(sys.argv[1])
dist.init_process_group("gloo")
numbers = torch.tensor([own, 1])
dist.all_reduce(numbers)
if numbers.tolist() != [2 * own, 2]: sys.exit(f"a rank of another run: {numbers}, and this is {own}")
dist.destroy_process_group()
"""
PROGRAMS = {"plain": PLAIN, "torch": TORCH}


class Together:
    name = "together"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel = accel
        self.template = work / "together"
        self.template.mkdir(parents=True)
        train_runs.export(self.template / "gpt.pt", layers=1, width=16)

    def commands(self, kind, rng, directory):
        program = directory / "program.py"
        program.write_text(PROGRAMS.get(kind, ""))
        for number in range(RUNS):
            if kind == "training":
                place = directory / str(number)
                place.mkdir()
                (place / "gpt.pt").symlink_to(self.template / "gpt.pt")
                # Without a port in the file each run gets a free one.
                yield [self.accel, "launch", train_runs.config(place, 2, max_steps=2, main_process_port=None)]
            else:
                yield [self.accel, "launch", "--cpu", "--num-processes", 2, "--", sys.executable, program, rng.randrange(1 << 40)]

    def one(self, rng: random.Random, directory: pathlib.Path):
        kind = rng.choice(("plain",) * 8 + ("torch", "training"))
        return kind, self.problem(kind, rng, directory)

    def problem(self, kind, rng, directory):
        """What is wrong with RUNS runs of this kind that begin together, or None."""
        runs = []
        for command in self.commands(kind, rng, directory):
            time.sleep(rng.choice((0, 0, 0.03)))
            runs.append(subprocess.Popen(list(map(str, command)), cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        deadline, failures = time.monotonic() + TIMEOUT_S, []
        for run in runs:
            try:
                said, _ = run.communicate(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                run.kill()
                said = f"no end after {TIMEOUT_S} s\n{run.communicate()[0]}"
            if run.returncode != 0:
                failures.append(f"exit code {run.returncode}\n{said[-1500:]}")
        return "\n".join([f"{len(failures)} of {RUNS} runs that began together failed", *failures]) if failures else None
