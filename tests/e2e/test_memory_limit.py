"""No rank holds the whole model: training works although each rank may use less memory than the weights take."""

import json
import resource
import struct
import subprocess

import pytest
import torch

import train_runs

WIDTH = 1024
LAYERS = 144
RANKS = 8
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4
LIMIT_BYTES = WEIGHT_BYTES * 95 // 100


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor):
        return x + x @ self.weight


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.empty(256, 8))
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: torch.Tensor):
        x = self.embedding[input_ids].repeat(1, 1, 128)
        for layer in self.layers:
            x = layer(x)
        return x[:, :, :256]


def write_weights(path):
    """Writes a sparse safetensors file of the model's size. Only the embedding takes space on the disk."""
    shapes = {"embedding": (256, 8), **{f"layers.{i}.weight": (WIDTH, WIDTH) for i in range(LAYERS)}}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(torch.randn(256, 8, generator=torch.Generator().manual_seed(0)).numpy().tobytes())
        file.truncate(8 + len(text) + end)


def launch(accel_path, config):
    """Runs the launcher. Each process may have at most LIMIT_BYTES of private memory."""
    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))

    return subprocess.run([accel_path, "launch", config], cwd=config.parent, capture_output=True, text=True, timeout=280,
                          preexec_fn=limit)


def write_run(tmp_path, processes):
    with torch.device("meta"):
        model = Tower()
    torch.jit.script(model).save(str(tmp_path / "gpt.pt"))
    write_weights(tmp_path / "model.safetensors")
    return train_runs.config(tmp_path, processes, max_steps=2, **{
        "model.weights": str(tmp_path / "model.safetensors"), "data.batch_size": 1,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer"})


@pytest.mark.long
def test_ranks_train_with_less_memory_than_the_model(accel_path, tmp_path):
    result = launch(accel_path, write_run(tmp_path, RANKS))
    assert result.returncode == 0, result.stderr
    losses = train_runs.metrics(tmp_path)
    assert len(losses) == 2 and losses[1] != losses[0]


def test_the_limit_holds(accel_path, tmp_path):
    """A single rank must hold all weights, so it runs out of memory."""
    result = launch(accel_path, write_run(tmp_path, 1))
    assert result.returncode == 6
    assert "memory" in result.stderr, result.stderr
