"""The port of rank 0's store belongs to one run alone: a free one, or the one that was asked for."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys

import needs
import ports
import pytest
import train_runs
from launching import start, wait_for  # noqa: F401  (a fixture)

# A server that binds as the store of torch.distributed does, and a connection to it.
SERVER = """
import os, socket
with socket.create_server(("::", int(os.environ["MASTER_PORT"])), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    with socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))): print(os.environ["MASTER_PORT"])
"""
# Takes all ports that the kernel gives away, as a server and as a client, and says whether its own one was among them.
GREEDY = """
import contextlib, os, socket
own, got = int(os.environ["MASTER_PORT"]), set()
def take(sockets, begin):
    with contextlib.suppress(OSError):
        while True:
            sockets.append(begin())
            got.add(sockets[-1].getsockname()[1])
def bound(family, address, reuses):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
    s.bind((address, 0))
    return s
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    for reuses in (0, 1):
        with contextlib.ExitStack() as stack:
            sockets = []
            take(sockets, lambda: bound(family, address, reuses))
            for s in sockets: stack.enter_context(s)
with socket.create_server(("127.0.0.1", 5000), backlog=100) as server:
    clients = []
    take(clients, lambda: socket.create_connection(("127.0.0.1", 5000)))
print(own, len(got), own in got)
"""


@contextlib.contextmanager
def listener(port=0):
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def port():
    """A port that belongs to the test as long as it runs."""
    with ports.held_port() as number:
        yield number


def of_python(script):
    return "--", sys.executable, "-c", script


@pytest.mark.parametrize("flags", [(), ("--main-process-port", 0)], ids=["without a port", "port 0"])
def test_a_port_that_nobody_asked_for_is_a_free_one(accel, flags):
    with listener() as busy:
        ports = [int(accel("launch", "--cpu", *flags, *of_python(SERVER)).stdout) for _ in range(2)]
    assert busy not in ports and min(ports) >= 1024


def test_the_kernel_gives_the_port_to_nobody_else(accel_path, tmp_path):
    """The namespace has only sixteen ports to give away, and rank 0 takes them all, but for its own and those of ended connections."""
    command = ["unshare", "--net", "sh", "-c",
               'ip link set lo up && echo 40000 40015 >/proc/sys/net/ipv4/ip_local_port_range && exec "$@"', "sh"]
    if (probe := subprocess.run([*command, "true"], capture_output=True, text=True)).returncode != 0:
        needs.missing(f"a network namespace cannot be made here: {probe.stderr.strip()}")
    done = subprocess.run([*command, accel_path, "launch", "--cpu", *of_python(GREEDY)], cwd=tmp_path, capture_output=True, text=True,
                          timeout=60)
    own, given, was_given = done.stdout.split()
    assert 40000 <= int(own) <= 40015 and int(given) >= 12 and was_given == "False", done.stdout + done.stderr


def test_a_port_that_is_in_use_is_an_error_before_anything_starts(accel, tmp_path):
    with listener() as port:
        said = accel("launch", "--cpu", "--main_process_port", port, "--", "touch", "started", code=2).stderr
        assert f"accel: error: --main-process-port {port}: 'main_process_port': port {port} is in use" in said
        assert "hint: leave main_process_port out, and the run gets a free port" in said
        config = tmp_path / "c.yaml"
        config.write_text(f"use_cpu: true\nmain_process_port: {port}\n")
        said = accel("launch", config, "--", "touch", "started", code=2).stderr
        assert f"c.yaml:2:20: 'main_process_port': port {port} is in use" in said
    assert not (tmp_path / "started").exists()
    accel("launch", config, *of_python(SERVER))
    # The server has ended its connection, so that the port is in TIME_WAIT.
    assert accel("launch", config, *of_python(SERVER)).stdout == f"{port}\n"


def test_a_port_may_be_forbidden(accel_path, tmp_path):
    command = ["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service", accel_path]
    if os.geteuid() != 0:
        command = [accel_path]
    if int(open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read()) <= 80:
        pytest.skip("every user may use every port here")
    done = subprocess.run([*command, "launch", "--cpu", "--main-process-port", "80", "--", "true"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and "port 80 cannot be used: Permission denied" in done.stderr


def test_two_launchers_that_ask_for_the_same_port_exclude_each_other(start, accel, tmp_path, port):  # noqa: F811
    """Neither of their ranks listens."""
    first = start("--cpu", "--main-process-port", port, "--", "sh", "-c", "touch started; exec sleep 60")
    wait_for((tmp_path / "started").exists)
    said = accel("launch", "--cpu", "--main-process-port", port, "--", "true", code=2).stderr
    assert f"port {port} belongs to another run, that of process {first.pid}" in said
    first.kill_all()
    first.assert_nobody_is_left()
    accel("launch", "--cpu", "--main-process-port", port, "--", "true")
    # Of four that begin at the same moment one runs.
    runs = [start("--cpu", "--main-process-port", port, "--", "sh", "-c", "echo ran; sleep 2") for _ in range(4)]
    ends = [run.finish() for run in runs]
    assert sorted(code for code, _, _ in ends) == [0, 2, 2, 2], ends
    assert all("belongs to another run" in err for code, _, err in ends if code == 2)


def test_a_rank_of_another_run_is_refused(accel, accel_path, tmp_path):
    """Rank 1 takes itself for one of another run, and finds the store of this one at its address."""
    train_runs.export(tmp_path / "gpt.pt", layers=1, width=16)
    worker = tmp_path / "worker"
    worker.write_text(f"#!/bin/sh\n[ $RANK = 1 ] && export TORCHELASTIC_RUN_ID=another\nexec '{accel_path.parents[1]}/train/accel-worker'\n")
    worker.chmod(0o755)
    said = accel("launch", train_runs.config(tmp_path, 2, max_steps=2, **{"launch.worker": str(worker)}), code=6).stderr
    assert re.search(r"error: rank 1 belongs to the run 'another \(restart 0\)', and the store at 127\.0\.0\.1:\d+ to 'accel-\w+-\w+ "
                     r"\(restart 0\)'", said), said


def test_two_runs_do_not_write_into_the_same_logs(start, accel, tmp_path):  # noqa: F811
    first = start("--cpu", "--log-dir", "logs", "--", "sh", "-c", "echo first; touch started; exec sleep 60")
    wait_for((tmp_path / "started").exists)
    said = accel("launch", "--cpu", "--log-dir", "logs", "--", "true", code=2).stderr
    assert "--log-dir logs: 'launch.log_dir': another run is writing into 'logs'" in said
    assert "hint: wait until it ends, or choose another directory" in said
    assert (tmp_path / "logs/attempt_0/rank_0/stdout.log").read_text() == "first\n"
    first.kill_all()
    first.assert_nobody_is_left()
    accel("launch", "--cpu", "--log-dir", "logs", "--", "true")


@pytest.mark.parametrize("asks", [False, True])
def test_the_port_of_a_restart(accel, port, asks):
    """A port that was asked for stays. Another one changes, since a rank of the first attempt may still look for it."""
    script = "echo $MASTER_PORT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"
    flags = ("--main-process-port", port) if asks else ()
    result = accel("--json", "launch", "--cpu", "--max-restarts", 1, *flags, "--", "sh", "-c", script)
    ports = re.findall(r"^\d+$", result.stderr, re.MULTILINE)
    assert len(ports) == 2 and (ports == [str(port)] * 2 if asks else ports[0] != ports[1])
    assert [json.loads(line)["type"] for line in result.stdout.splitlines()][-1] == "finished"
