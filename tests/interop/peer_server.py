"""Runs the tests' peers, which are Python scripts on several ranks. This process imports torch once and forks the
ranks, so that no rank spends seconds on the import.

    python peer_server.py

Each line of standard input is a job: {"ranks": N, "command": [SCRIPT, ARGS...], "log": FILE, "timeout": SECONDS}. The
server answers each job with one line, {"problem": TEXT}, whose text is empty if all ranks succeeded. The client waits
for the answer before it sends the next job. The ranks have torchrun's environment and write to FILE. The end of input
ends the server and its ranks.
"""

import ctypes
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch._dynamo  # Otherwise an optimizer imports it in every rank.
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
from accelerate.utils import fsdp_utils

IMPORTED = (torch._dynamo, torch.distributed.checkpoint, torch.distributed.fsdp, fsdp_utils)
PR_SET_PDEATHSIG = 1


def fork(body):
    """Forks a child that runs `body` and dies with this process. Returns its process id."""
    sys.stdout.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            body()
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_store():
    """Starts the ranks' TCPStore in a child and returns (process id, port). The store has threads, which a process that
    forks must not have. The store picks its port, because a port that another process picks may be taken by then."""
    reader, writer = os.pipe()

    def serve():
        os.close(reader)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        os.write(writer, f"{store.port}\n".encode())
        while True:
            signal.pause()

    pid = fork(serve)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return pid, int(pipe.readline())


def start_rank(job, rank, port):
    def run():
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]), LOCAL_WORLD_SIZE=str(job["ranks"]),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
        # A fork does not have the threads that this process may have started. conftest.py sets the variable.
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        sys.argv = job["command"]
        runpy.run_path(job["command"][0], run_name="__main__")

    return fork(run)


def problem_of(running, deadline):
    """Waits for all ranks, {pid: rank}. Returns what failed, or "" if all succeeded."""
    while running:
        if select.select([sys.stdin], [], [], 0.005)[0]:
            return "the tests ended"
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                rank, code = running.pop(pid), os.waitstatus_to_exitcode(status)
                if code:
                    return f"rank {rank} ended with {code if code > 0 else error_of(running) or code}"
        if time.monotonic() > deadline:
            return f"rank {min(running.values())} has not ended in time"
    return ""


def error_of(running):
    """Waits a little for a rank that has ended with an error of its own, of which another died. Returns its code, or 0."""
    for _ in range(100):
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                if (code := os.waitstatus_to_exitcode(status)) > 0:
                    return code
        time.sleep(0.01)
    return 0


def run(job):
    store, port = start_store()
    running = {}
    try:
        for rank in range(job["ranks"]):
            running[start_rank(job, rank, port)] = rank
        return problem_of(running, time.monotonic() + job["timeout"])
    finally:
        for pid in (store, *running):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main():
    assert len(os.listdir("/proc/self/task")) == 1, "threads, so that forking is not safe; OPENBLAS_NUM_THREADS=1 avoids numpy's"
    while line := sys.stdin.readline():
        print(json.dumps({"problem": run(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
