"""Starts the runs of tests/train_runs.py on a GPU or on CPU ranks."""

import json
import pathlib

import train_runs

GPU = {"use_cpu": False, "gpu_ids": "0"}
CPU = {"use_cpu": True}


def real_gpus():
    """The number of this machine's GPUs."""
    return len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))


def gpus(count):
    return {"use_cpu": False, "gpu_ids": ",".join(map(str, range(count)))}


def launch(accel, directory, *flags, where=GPU, ranks=1, env=None, **options):
    """Runs a training; several ranks share the GPU and use Gloo. Returns the metrics of each step, and stderr."""
    (directory / "out/metrics.jsonl").unlink(missing_ok=True)
    config = train_runs.config(directory, ranks, **options)
    document = json.loads(config.read_text())
    document.update(where)
    if ranks > 1 and where is GPU:
        document["launch"] = {"backend": "gloo"}
    config.write_text(json.dumps(document))
    said = accel("launch", config, *flags, env=env).stderr
    assert ("on the CPU," in said) == (where is CPU), said
    return {key: train_runs.metrics(directory, key) for key in ("loss", "grad_norm", "eval_loss", "scale")}, said


def worst(ours, theirs, key="loss"):
    return max(abs(a - b) for a, b in zip(ours[key], theirs[key], strict=True))


def collectives(accel, accel_path, backend, device, end, ranks, where):
    """Runs each collective once (collectives.cpp), and returns what rank 0 prints. An error of any rank is one of the run."""
    program = accel_path.parent.parent / "train/collectives"
    done = accel("launch", "--num-processes", ranks, "--main-process-port", 0, *where, "--", program, backend, device, end)
    said = done.stdout + done.stderr
    for dtype in ("Float", "BFloat16"):
        for name in ("all_gather", "reduce_scatter_mean", "reduce_scatter_sum", "all_reduce_mean", "all_reduce_sum", "all_reduce_max",
                     "all_to_all", "broadcast", "scatter"):
            assert said.count(f"{name} {dtype}\n") == 1
    assert said.count(f"{end}\n") == 1
    return said
