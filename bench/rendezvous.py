#!/usr/bin/env python3
"""Measures the rendezvous of many launchers beside torch's TCPStore with as many workers.

    tools/dev bench rendezvous [--arrivals 1024,4096,16384] [--repeat 3] [--only accel]

Machine 0 is the launcher's own code in a process of its own. The others are connections of one
process on the loopback. They all come at once, prove that they know the secret, tell their
settings, and wait for the welcome. The store is the C++ one with its libuv server, as rank 0 makes
it (`wait_for_workers`). Its workers are connections of one process, which eight threads make. The two
take turns, and values are medians. Times run from the first connection until the last welcome, and
until the store's constructor returns. CPU time and peak memory are those of the server's process
while it waits; memory does not count what the process had before. Bytes are those of all
connections in both directions.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import ports  # noqa: E402


def wait_for_listener(server, port):
    """Returns once the server listens on the port, without connecting to it."""
    while not any(
        line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
        for name in ("tcp", "tcp6")
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ):
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        time.sleep(0.01)


def run(tool, arrivals):
    """Returns seconds, CPU time, memory and bytes of one rendezvous."""
    with ports.held_port() as port:
        count = str(arrivals + 1)
        server = subprocess.Popen(
            [tool, "serve", count, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        wait_for_listener(server, port)
        others = subprocess.run(
            [tool, "arrive", count, str(port)], stdout=subprocess.PIPE, text=True, timeout=300
        )
        if others.returncode != 0:
            server.kill()
            sys.exit(f"{tool.name} arrive ended with {others.returncode}")
        served, arrived = json.loads(server.stdout.readline()), json.loads(others.stdout)
        server.communicate("\n")
    end_ns = max(served["end_ns"], arrived["end_ns"])
    return {
        "seconds": (end_ns - arrived["begin_ns"]) / 1e9,
        "cpu_s": served["cpu_s"],
        "peak_bytes": served["peak_bytes"],
        "bytes": arrived["sent"] + arrived["received"],
        "again": arrived["again"],
        "others_cpu_s": arrived["cpu_s"],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", required=True, type=pathlib.Path)
    parser.add_argument("--arrivals", default="1024,4096,16384")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=["accel", "store"])
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(
        f"net.core.somaxconn {pathlib.Path('/proc/sys/net/core/somaxconn').read_text().strip()}, "
        f"{options.repeat} runs of each\n\n"
        "| arrivals | what | seconds | range | CPU of the server | its memory | bytes | came again "
        "| CPU of the others |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    tools = {"accel": options.tools / "rendezvous-bench", "store": options.tools / "store-bench"}
    if options.only:
        tools = {options.only: tools[options.only]}
    for arrivals in map(int, options.arrivals.split(",")):
        runs = {name: [] for name in tools}
        for _ in range(options.repeat):
            for name, tool in tools.items():
                runs[name].append(run(tool, arrivals))
        medians = {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in runs.items()
        }
        for name, found in runs.items():
            value, seconds = medians[name], [one["seconds"] for one in found]
            print(
                f"| {arrivals} | {name} | {value['seconds']:.3f} s "
                f"| {min(seconds):.3f} to {max(seconds):.3f} s | {value['cpu_s']:.3f} s "
                f"| {value['peak_bytes'] / 1e6:.1f} MB | {value['bytes'] / 1e6:.2f} MB "
                f"| {value['again']:.0f} | {value['others_cpu_s']:.3f} s |",
                flush=True,
            )
        if len(medians) == 2:
            ratios = {
                key: medians["store"][key] / max(medians["accel"][key], 1e-9)
                for key in ("seconds", "cpu_s", "peak_bytes", "bytes")
            }
            print(
                f"| {arrivals} | ratio | {ratios['seconds']:.2f} | | {ratios['cpu_s']:.2f} "
                f"| {ratios['peak_bytes']:.2f} | {ratios['bytes']:.2f} | | |",
                flush=True,
            )


if __name__ == "__main__":
    main()
