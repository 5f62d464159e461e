#!/usr/bin/env python3
"""Measures launchers beside each other: whole runs of /bin/true and of a Gloo hello, the launcher's memory, a restart.

    tools/dev bench launch [--ranks 2,16,64] [--hello 2,16] [--repeat 3]

The launchers take turns, and values are medians. The hello forms a process group with Gloo in Python, sums a number over
the ranks, and ends. A restart is the time from `kill -9` of a rank to the next step that the metrics show, in a training
of a small model on 2 ranks.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bench
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]
import ports  # noqa: E402
from gpt import GPT  # noqa: E402

HELLO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
dist.destroy_process_group()
"""


def launchers(accel, ranks, program, is_python, port):
    """Returns the commands by name. `port` is that of accelerate, and `program` is a Python script, or another program."""
    plain = [] if is_python else ["--no-python"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *plain, program]
    # Without FSDP in its configuration accelerate starts one process on a CPU.
    config = pathlib.Path(tempfile.gettempdir()) / "accel_bench_launch.yaml"
    config.write_text(json.dumps({"distributed_type": "FSDP", "use_cpu": True, "num_processes": ranks, "num_machines": 1,
                                  "machine_rank": 0, "mixed_precision": "no", "main_process_port": port,
                                  "fsdp_config": {"fsdp_version": 2}}))
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config,
                  *(["--no_python"] if not is_python else []), program]
    ours = [accel, "launch", "--cpu", "--num-processes", ranks, "--main-process-port", 0, "--",
            *([sys.executable] if is_python else []), program]
    return {"accel": ours, "torchrun": torchrun, "accelerate": accelerate}


def measure(accel, ranks, program, is_python, repeat):
    seconds = {}
    for _ in range(repeat):
        with ports.held_port() as port:
            for name, command in launchers(accel, ranks, program, is_python, port).items():
                seconds.setdefault(name, []).append(bench.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))
    return {name: [statistics.median(values) for values in zip(*runs)] for name, runs in seconds.items()}


def peak_of_launcher(accel, ranks):
    """Returns the peak memory of accel alone, in bytes."""
    process = subprocess.Popen([accel, "launch", "--cpu", "--num-processes", str(ranks), "--", "sleep", "2"])
    time.sleep(1)
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    process.wait()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def training(directory):
    torch.manual_seed(0)
    torch.jit.script(GPT(vocabulary=256, length=32, width=48, layers=2, heads=2)).save(str(directory / "gpt.pt"))
    text = str(ROOT / "examples/data/genesis-exodus.txt")
    (directory / "config.yaml").write_text(json.dumps({
        "distributed_type": "FSDP", "use_cpu": True, "num_processes": 2, "main_process_port": 0,
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                        "fsdp_transformer_layer_cls_to_wrap": "Block"},
        "launch": {"max_restarts": 100},
        "training": {"model": {"path": str(directory / "gpt.pt")}, "optimizer": {"type": "adamw", "lr": 1e-3},
                     "data": {"train": {"format": "text", "path": text, "sequence_length": 32}, "batch_size": 4},
                     "max_steps": 10**7, "log_every": 1, "output_dir": str(directory / "out"), "checkpoint": {"every": 100}}}))


def workers(launcher):
    found = []
    for pid in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            if b"accel-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:  # It has ended.
            pass
    return found


def restarts(accel, repeat):
    """Returns the seconds from the end of a rank to the next step, for each of `repeat` restarts of one run."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        training(directory)
        with open(directory / "stderr", "w") as log:
            run = subprocess.Popen([accel, "launch", str(directory / "config.yaml")], stderr=log)
        metrics = directory / "out/metrics.jsonl"
        for _ in range(repeat):
            before = len(list((directory / "out/checkpoints").glob("checkpoint_*"))) if (directory / "out/checkpoints").exists() else 0
            while not (directory / "out/checkpoints").exists() or len(
                    list((directory / "out/checkpoints").glob("checkpoint_*[0-9]"))) <= before:
                time.sleep(0.01)
            victim = workers(run.pid)[-1]
            os.kill(victim, signal.SIGKILL)
            began = time.monotonic()
            while victim in (now := workers(run.pid)) or len(now) < 2:
                time.sleep(0.001)
            size = metrics.stat().st_size
            while metrics.stat().st_size <= size:  # A run that goes on cuts the metrics at its checkpoint first.
                size = min(size, metrics.stat().st_size)
                time.sleep(0.001)
            found.append(time.monotonic() - began)
        run.terminate()
        run.wait()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", default="2,16,64")
    parser.add_argument("--hello", default="2,16")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print("| what | ranks | accel | torchrun | its ratio | accelerate | its ratio |\n| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        hello = pathlib.Path(name) / "hello.py"
        hello.write_text(HELLO)
        for what, program, counts, is_python in (("/bin/true", "/bin/true", options.ranks, False),
                                                 ("a Gloo hello", hello, options.hello, True)):
            for ranks in map(int, counts.split(",")):
                found = {key: value[0] for key, value in measure(options.accel, ranks, program, is_python, options.repeat).items()}
                cells = [f"{found['accel'] * 1e3:.0f} ms"]
                for peer in ("torchrun", "accelerate"):
                    cells += [f"{found[peer] * 1e3:.0f} ms", f"{found[peer] / found['accel']:.1f}"]
                print(f"| {what} | {ranks} | {' | '.join(cells)} |", flush=True)
    print(f"\nPeak memory of the launcher of 64 ranks: {peak_of_launcher(options.accel, 64) / 1e6:.1f} MB")
    times = restarts(options.accel, max(3, options.repeat))
    print(f"From kill -9 of a rank to the next step: median {statistics.median(times):.2f} s, of {len(times)} restarts "
          f"{min(times):.2f} to {max(times):.2f} s")


if __name__ == "__main__":
    main()
