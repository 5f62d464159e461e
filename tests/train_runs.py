"""Small training runs for the tests: a tiny GPT, the real text, a configuration."""

import json
import os
import pathlib
import subprocess
import sys
import time
import zlib

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from gpt import GPT  # noqa: E402

SIZES = {"vocabulary": 256, "length": 32, "width": 48, "layers": 2, "heads": 2}
TEXT = ROOT / "examples/data/genesis-exodus.txt"


def export(path, seed=0, layer_classes=("Block",), **sizes):
    torch.manual_seed(seed)
    model = GPT(**{**SIZES, **sizes})
    # The noise moves biases and norms away from 0 and 1, so that a mix-up of parameters shows.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    torch.jit.script(model).save(str(path), _extra_files={"accel.json": json.dumps({"layer_classes": list(layer_classes)})})
    return model


def export_pt2(path, model):
    """Writes the model of export() as a program of torch.export."""
    ids = torch.zeros(4, SIZES["length"], dtype=torch.long)
    free = torch.export.Dim.AUTO
    torch.export.save(torch.export.export(model.train(), (ids,), dynamic_shapes=({0: free, 1: free},), strict=False), path)


def config(directory, processes=2, data=TEXT, **training):
    """Writes the YAML configuration of a run in `directory`, as JSON. `training` replaces keys; dots separate nested
    ones. A key is one of the section `training` unless it is a top-level key or starts with another section's name."""
    document = {
        "distributed_type": "FSDP",
        "use_cpu": True,
        "mixed_precision": "no",
        "num_processes": processes,
        "main_process_port": 0,
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                        "fsdp_transformer_layer_cls_to_wrap": "Block"},
        "training": {
            "model": {"path": str(directory / "gpt.pt")},
            "data": {"train": {"format": "text", "path": str(data), "sequence_length": 32}, "batch_size": 4,
                     "shuffle": False},
            "optimizer": {"type": "adamw", "lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
                          "no_decay": ["bias", "norm"]},
            "lr_scheduler": {"type": "cosine", "warmup_steps": 4, "min_lr_ratio": 0.1},
            "max_steps": 20,
            "max_grad_norm": 1.0,
            "log_every": 1,
            "output_dir": str(directory / "out"),
            "checkpoint": {"every": 0, "resume": "none"},
        },
    }
    for key, value in training.items():
        *outer, last = key.split(".")
        is_top = key in document or key == "dynamo_config" or outer[:1] in (["fsdp_config"], ["fp8_config"], ["parallelism_config"], ["launch"])
        section = document if is_top else document["training"]
        for name in outer:
            section = section.setdefault(name, {})
        section[last] = value
    if document["distributed_type"] != "FSDP":
        del document["fsdp_config"]
    path = directory / "config.yaml"
    path.write_text(json.dumps(document, indent=1))
    return path


def metrics(directory, key="loss"):
    lines = [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def start(accel_path, config, directory, **options):
    """Starts a training in the background, with its output in one pipe."""
    return subprocess.Popen([accel_path, "launch", config], cwd=directory, env={**os.environ, "NO_COLOR": "1"},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def wait_for_step(directory, process, step=1):
    for _ in range(600):
        if process.poll() is not None:
            pytest.fail(f"ended early: {process.stdout.read()}")
        path = directory / "out/metrics.jsonl"
        if path.exists() and len(path.read_text().splitlines()) >= step:
            return
        time.sleep(0.1)
    pytest.fail("no step within a minute")


def worker_of(rank, launcher):
    """Returns the pid of the worker of a rank."""
    for child in map(int, open(f"/proc/{launcher}/task/{launcher}/children").read().split()):
        if f"RANK={rank}".encode() in open(f"/proc/{child}/environ", "rb").read().split(b"\0"):
            return child
    pytest.fail(f"no worker of rank {rank}")


def as_if_from_a_gpu(path):
    """Rewrites the model file `path` as if its tensors had been on a GPU when it was saved."""
    reader = torch._C.PyTorchFileReader(str(path))
    records = {name: reader.get_record(name) for name in reader.get_all_records()}
    del reader
    writer = torch._C.PyTorchFileWriter(str(path))
    places = 0
    for name, data in records.items():
        if name.endswith(".pkl"):
            places += data.count(b"X\x03\x00\x00\x00cpu")
            data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
        if name not in ("version", "byteorder", ".data/serialization_id"):
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    assert places > 0


def forget_evaluation(checkpoint):
    """Takes the evaluation out of the state, as an earlier accel wrote it."""
    state, manifest = (json.loads((checkpoint / name).read_text()) for name in ("trainer_state.json", "accel_manifest.json"))
    state.pop("evaluation", None)
    text = json.dumps(state).encode()
    (checkpoint / "trainer_state.json").write_bytes(text)
    [entry] = [one for one in manifest["files"] if one["name"] == "trainer_state.json"]
    entry.update(bytes=len(text), crc32=zlib.crc32(text))
    (checkpoint / "accel_manifest.json").write_text(json.dumps(manifest))
