"""Checkpoints that Megatron-Core writes: its weights are taken, and what its optimizers keep is left out."""

import os
import pathlib
import subprocess
import sys

import pytest
import safetensors.torch
import torch

pytestmark = pytest.mark.long

WRITER = pathlib.Path(__file__).parent / "megatron_writer.py"
# megatron-core is beside the environment; see make_zoo in tools/python-environments.sh.
PACKAGES = os.environ.get("ACCEL_ZOO_PACKAGES", "")


@pytest.mark.parametrize(("optimizers", "left_out"), [
    (1, "'optimizer' (34 tensors)"), (2, "'chained_0.optimizer' (18 tensors), 'chained_1.optimizer' (16 tensors)")])
def test_moments_of_megatron_are_no_weights(accel, tmp_path, optimizers, left_out):
    checkpoint = tmp_path / "iter_0000001"
    subprocess.run([sys.executable, WRITER, checkpoint, str(optimizers)], check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": PACKAGES})
    assert f"weights; beside them {left_out}" in accel("inspect", checkpoint).stdout
    assert left_out in accel("merge-weights", checkpoint, tmp_path / "merged").stderr
    merged = safetensors.torch.load_file(tmp_path / "merged/model.safetensors")
    expected = torch.load(f"{checkpoint}.pt")
    assert merged.keys() == expected.keys() and len(merged) == 17
    assert all(torch.equal(merged[name], expected[name]) for name in merged)
    root = left_out.split("'")[1]
    accel("merge-weights", "--root", root, checkpoint, tmp_path / "moments")
    moments = safetensors.torch.load_file(tmp_path / "moments/optimizer.safetensors")
    assert len(moments) == int(left_out.split("(")[1].split()[0])
    name = "decoder.layers.mlp.linear_fc1.weight"
    assert moments[f"state.exp_avg.{name}"].shape == merged[name].shape
