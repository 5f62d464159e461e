"""The gather of weights in float8 against torchao's in Python: the same losses, step by step, and the same weights, bit for
bit; and a script under Accelerate beside `accel launch` of the same configuration."""

import json
import os
import unittest.mock

import accelerate.commands.launch
import accelerate.utils.launch
import pytest
import torch
import train_runs
from accelerate_files import VARIABLES, without_variables
from test_float8 import CHECKPOINTING, CONVERTED, config_of, reference, require_equal

pytestmark = pytest.mark.long

pytest.importorskip("torchao.float8", reason="torchao is not installed")

GATHER = {"fp8_config": {"enable_fsdp_float8_all_gather": True}}

CASES = {
    # name: (ranks, steps, options of accel, options of the peer)
    "two ranks": (2, 20, {}, {}),
    # The scale is that of the float32 weight here, too, which is not that of the weight in bfloat16.
    "one rank": (1, 3, {}, {}),
    "checkpointing, accumulation": (
        2, 4, {**CHECKPOINTING, "gradient_accumulation_steps": 2}, {"recompute": True, "accumulate": 2}),
    "HYBRID, 2 x 2": (4, 3, {"parallelism_config.dp_shard_size": 2}, {"replicas": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_equal_torchaos(accel, peer, tmp_path, name):
    processes, steps, options, spec = CASES[name]
    train_runs.export(tmp_path / "gpt.pt")
    run = accel("launch", config_of(tmp_path, processes, steps, **GATHER, **options))
    assert "7 of 9 linears compute in float8" in run.stderr
    theirs = reference(peer, tmp_path, processes, "fsdp2", steps=steps, gather=True, **spec)
    assert theirs["converted"] == CONVERTED
    require_equal(accel, tmp_path, theirs, steps)


def test_resharding_to_two_of_four_changes_no_number(accel, tmp_path):
    """fully_shard cannot reshard to a part of the ranks what it gathers in float8, and adds up gradients of four ranks in
    another order."""
    train_runs.export(tmp_path / "gpt.pt")
    losses, weights = [], []
    for name, reshard in (("part", 2), ("all", True)):
        directory = tmp_path / name
        accel("launch", config_of(tmp_path, 4, 3, **GATHER, **{"fsdp_config.fsdp_reshard_after_forward": reshard,
                                                               "output_dir": str(directory / "out"), "checkpoint.every": 3}))
        accel("merge-weights", directory / "out/checkpoints/checkpoint_3", directory / "merged")
        losses.append(train_runs.metrics(directory))
        weights.append((directory / "merged/model.safetensors").read_bytes())
    assert len(losses[0]) == 3 and losses[0] == losses[1] and weights[0] == weights[1]


def test_three_ranks_cut_rows_and_have_torchaos_first_loss(accel, peer, tmp_path):
    """Later losses depend on the order in which gradients of three ranks are added in bfloat16."""
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", config_of(tmp_path, 3, 1, **GATHER))
    theirs = reference(peer, tmp_path, 3, "fsdp2", steps=1, gather=True)
    assert train_runs.metrics(tmp_path) == pytest.approx(theirs["loss"], abs=1e-12)


def variables_of(path):
    """The variables by which `accelerate launch` passes the file on, as it writes them."""
    arguments = accelerate.commands.launch.launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
    with unittest.mock.patch.dict(os.environ, without_variables(), clear=True), \
            unittest.mock.patch.object(accelerate.commands.launch, "is_bf16_available", lambda *_: True), \
            unittest.mock.patch.object(accelerate.utils.launch, "is_fp8_available", lambda: True):
        arguments, _, _ = accelerate.commands.launch._validate_launch_command(arguments)
        variables = accelerate.utils.launch.prepare_multi_gpu_env(arguments)
    return {name: value for name, value in variables.items() if name.startswith(VARIABLES)}


@pytest.mark.parametrize("gathers", [True, False])
def test_a_script_under_accelerate_has_the_same_numbers(accel, peer, tmp_path, gathers):
    train_runs.export(tmp_path / "gpt.pt")
    ours = config_of(tmp_path, 2, 20, fp8_config={"backend": "AO", **({} if gathers else {"enable_fsdp_float8_all_gather": False})},
                     **{"fsdp_config.fsdp_cpu_ram_efficient_loading": False})
    document = json.loads(ours.read_text())
    document.pop("training")
    (tmp_path / "accelerate.yaml").write_text(json.dumps({
        **document, "compute_environment": "LOCAL_MACHINE", "use_cpu": False, "debug": False}))
    spec = {"variables": variables_of(tmp_path / "accelerate.yaml"), "model": train_runs.SIZES, "path": str(tmp_path / "gpt.pt"),
            "data": str(train_runs.TEXT), "batch_size": 4, "lr": 3e-3, "steps": 20, "out": str(tmp_path / "theirs.pt")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    peer(2, "accelerate_float8_peer.py", tmp_path / "spec.json")
    accel("launch", ours)
    require_equal(accel, tmp_path, torch.load(tmp_path / "theirs.pt", weights_only=True), 20)
