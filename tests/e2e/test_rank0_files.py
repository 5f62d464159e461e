"""With training.model.broadcast_from_rank0, only rank 0 reads the model files. It sends the other ranks their parts."""

import stat
import subprocess

import pytest
import torch
from safetensors.torch import save_file

import train_runs

# This path is the working directory of the process that opens it. Only rank 0's working directory has the files.
HERE = "/proc/self/cwd"
WORKER = """#!/bin/sh
if [ "$RANK" != 0 ]; then cd /; fi
exec {worker}
"""


class Net(torch.nn.Module):
    """Tied, frozen, nested and odd-sized parameters; buffers of several dtypes."""

    def __init__(self):
        super().__init__()
        self.gpt = train_runs.GPT(**train_runs.SIZES)
        self.register_buffer("mask", torch.rand(3, 5) > 0.5)
        self.register_buffer("steps", torch.randint(10, 1000, ()))
        self.odd = torch.nn.Parameter(torch.randn(7))
        self.still = torch.nn.Parameter(torch.randn(5), requires_grad=False)

    def forward(self, input_ids: torch.Tensor):
        scale = self.mask.sum() + self.steps
        return self.gpt(input_ids) * (1 + 0.01 * self.odd.sum() * self.still.sum() / scale)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for seed, name in enumerate(("gpt", "weights")):
        torch.manual_seed(seed)
        torch.jit.script(Net()).save(str(folder / f"{name}.pt"))
    return folder


def launch(accel_path, directory, files, processes, from_rank_0, **settings):
    directory.mkdir()
    script = directory / "worker"
    script.write_text(WORKER.format(worker=accel_path.parent.parent / "train/accel-worker"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    config = train_runs.config(directory, processes, **{
        "model.path": f"{HERE}/gpt.pt", "model.broadcast_from_rank0": from_rank_0, "max_steps": 3, "launch.worker": str(script),
        "checkpoint.every": 3, "data.batch_size": 12 // processes, **settings})
    return subprocess.run([accel_path, "launch", config], cwd=files, capture_output=True, text=True, timeout=120)


def values(accel_path, directory):
    """Returns the bytes of the merged checkpoint, and the losses."""
    subprocess.run([accel_path, "merge-weights", directory / "out/checkpoints", directory / "merged"], check=True,
                   capture_output=True)
    return (directory / "merged/model.safetensors").read_bytes(), train_runs.metrics(directory)


LAYOUTS = {
    "1": (1, {}),
    "2": (2, {}),
    "3": (3, {}),
    "2x2": (4, {"parallelism_config.parallelism_config_dp_replicate_size": 2,
                "parallelism_config.parallelism_config_dp_shard_size": 2}),
    "gloo": (2, {"launch.backend": "gloo"}),
    "weights": (3, {"model.weights": f"{HERE}/weights.pt"}),
    "kept": (2, {"fsdp_config.fsdp_reshard_after_forward": False, "model.weights": f"{HERE}/weights.pt"}),
}


@pytest.mark.long(but="1")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_have_what_they_would_have_read(accel_path, tmp_path, files, layout):
    processes, settings = LAYOUTS[layout]
    result = launch(accel_path, tmp_path / "sent", files, processes, True, **settings)
    assert result.returncode == 0, result.stderr
    # Each rank of the second run reads the files from paths that all ranks see.
    seen = {key: value.replace(HERE, str(files)) if isinstance(value, str) else value for key, value in settings.items()}
    result = launch(accel_path, tmp_path / "read", files, processes, False, **{"model.path": str(files / "gpt.pt"), **seen})
    assert result.returncode == 0, result.stderr
    assert values(accel_path, tmp_path / "sent") == values(accel_path, tmp_path / "read")


def test_without_the_setting_the_error_names_it(accel_path, tmp_path, files):
    result = launch(accel_path, tmp_path / "run", files, 2, False)
    assert result.returncode == 6
    assert f"rank 1 does not see '{HERE}/gpt.pt'" in result.stderr
    assert "hint: every machine must see the model and its weights; if rank 0 alone does, set " \
           "training.model.broadcast_from_rank0: true" in result.stderr


def test_if_rank_0_cannot_read_its_error_ends_all(accel_path, tmp_path, files):
    # Only reading the values shows that two tied parameters differ.
    weights = {f"gpt.{name}": value for name, value in train_runs.GPT(**train_runs.SIZES).state_dict().items()}
    weights["gpt.head.weight"] = torch.ones(256, 48)
    weights = {**torch.jit.load(files / "gpt.pt").state_dict(), **weights}
    save_file(weights, tmp_path / "other.safetensors")
    result = launch(accel_path, tmp_path / "run", files, 3, True, **{"model.weights": str(tmp_path / "other.safetensors")})
    assert result.returncode == 6
    assert "rank 0 of 3 failed" in result.stderr
    assert "are tied in the model, but their values differ" in result.stderr
