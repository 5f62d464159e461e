"""Starts the runs of tests/train_runs.py on a GPU or on CPU ranks."""

import json

import train_runs

GPU = {"use_cpu": False, "gpu_ids": "0"}
CPU = {"use_cpu": True}


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
