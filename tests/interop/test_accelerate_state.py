"""Runs that go on in Accelerate from a checkpoint of accel, and in accel from Accelerator.save_state, with the losses
that they would have had."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import judges
import ports
import pytest
import torch
import train_runs

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 2
N = 5
LR = 3e-3


def prepare(directory):
    directory.mkdir(parents=True, exist_ok=True)
    train_runs.export(directory / "gpt.pt")
    (directory / "train.txt").write_bytes(train_runs.TEXT.read_bytes()[:(2 * N * RANKS * 4 + 3) * 32 + 1])


def config(directory, steps, **more):
    return train_runs.config(directory, RANKS, data=directory / "train.txt", max_steps=steps, **{
        "lr_scheduler": {"type": "linear", "warmup_steps": 4, "total_steps": 3 * N}, "checkpoint": {"every": N}, **more})


def accelerate(directory, first, last, load=None, save=None, version=2, python=sys.executable):
    """Trains from step `first` to `last` with Accelerate, and returns the losses."""
    spec = directory / "spec.json"
    out = directory / "losses.json"
    spec.write_text(json.dumps({"directory": str(directory), "first": first, "last": last, "load": load, "save": save, "lr": LR,
                                 "total": 3 * N, "version": version, "out": str(out)}))
    with ports.held_port() as port:
        ranks = [subprocess.Popen([python, HERE / "accelerate_run.py", spec], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank),
                                                  "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                                                  "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"})
                 for rank in range(RANKS)]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(said)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def straight(accel_path, tmp_path_factory):
    """A run of 2 N steps in accel, with a checkpoint after N."""
    directory = tmp_path_factory.mktemp("straight")
    prepare(directory)
    subprocess.run([accel_path, "launch", config(directory, 2 * N)], check=True)
    return directory


def checkpoint(directory, step):
    return directory / f"out/checkpoints/checkpoint_{step}"


STATES = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")


def python_run_with(directory, version, states):
    prepare(directory)
    losses = accelerate(directory, 1, 2 * N, save=[N, {state: str(directory / state) for state in states}], version=version)
    return directory, losses


@pytest.fixture(scope="module")
def python_run(tmp_path_factory):
    """A run of 2 N steps in Accelerate with FSDP2, and the directory of its states after N."""
    return python_run_with(tmp_path_factory.mktemp("python"), 2, STATES)


def test_both_train_alike(straight, python_run):
    """Without this the other tests would say little."""
    assert python_run[1] == pytest.approx(train_runs.metrics(straight), abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("state, torch_version", [(STATES[0], "2.11"), (STATES[0], "2.15"), (STATES[1], "2.15")])
def test_accelerate_goes_on_from_our_checkpoint(accel, straight, tmp_path, state, torch_version):
    """Accelerator.load_state takes the weights, the optimizer and the schedule."""
    prepare(tmp_path)
    source = checkpoint(straight, N)
    if state == "FULL_STATE_DICT":
        accel("launch", config(tmp_path, N, **{"fsdp_config.fsdp_state_dict_type": state}))
        source = checkpoint(tmp_path, N)
    losses = accelerate(tmp_path, N + 1, 2 * N, load=[str(source), state], python=judges.interpreter(torch_version))
    assert losses == pytest.approx(train_runs.metrics(straight)[N:], abs=1e-5)


@pytest.mark.long
def test_both_ways_with_fsdp1(accel, straight, tmp_path):
    """Sharded alone: the full form of FSDP1 crashes in torch on CPU ranks. Accelerate 1.15 loads no moments into a new
    optimizer under FSDP1, of its own states neither, so what it makes of our checkpoint is compared with that."""
    directory, losses = python_run_with(tmp_path / "python", 1, STATES[:1])
    prepare(tmp_path)
    accel("launch", config(tmp_path, 2 * N, **{"checkpoint.resume": str(directory / STATES[0])}))
    assert train_runs.metrics(tmp_path) == pytest.approx(losses[N:], abs=1e-5)
    of_own, of_ours = [accelerate(tmp_path, N + 1, 2 * N, load=[str(source), STATES[0]], version=1)
                       for source in (directory / STATES[0], checkpoint(straight, N))]
    assert of_ours == pytest.approx(of_own, abs=1e-5)
    assert of_own[0] == pytest.approx(losses[N], abs=1e-5)


@pytest.mark.long(but="SHARDED_STATE_DICT")
@pytest.mark.parametrize("state", STATES)
def test_we_go_on_from_accelerates_state(accel, python_run, tmp_path, state):
    prepare(tmp_path)
    directory, losses = python_run
    said = accel("launch", config(tmp_path, 2 * N, **{"checkpoint.resume": str(directory / state)})).stderr
    assert f"resuming from '{directory / state}', which another program wrote" in said
    assert f"its step is that of the optimizer, {N}" in said
    assert "random_states_0.pkl, random_states_1.pkl, scheduler.bin are not read" in said
    assert train_runs.metrics(tmp_path) == pytest.approx(losses[N:], abs=1e-5)
    assert checkpoint(tmp_path, 2 * N).is_dir()
    # Then the run goes on from its own checkpoint.
    said = accel("launch", config(tmp_path, 2 * N + 1, **{"checkpoint.resume": str(directory / state)})).stderr
    assert f"resuming from '{checkpoint(tmp_path, 2 * N)}'" in said


def flat(optimizer):
    """The optimizer as torchtitan saves it (flatten_optimizer_state_dict)."""
    state = {f"state.{name}.{key}": value for name, values in optimizer["state"].items() for key, value in values.items()}
    groups = {f"param_groups.{name}.{key}": value for group in optimizer["param_groups"] for name in group["params"]
              for key, value in group.items() if key != "params"}
    return state | groups


LAYOUTS = {
    "both": lambda model, optimizer: {"model": model, "optim": optimizer},
    "AppState": lambda model, optimizer: {"app": {"model": model, "optim": optimizer}},
    "VeOmni": lambda model, optimizer: {"state": {"model": model, "optimizer": optimizer}},
    "torchtitan": lambda model, optimizer: {**model, "optimizer": flat(optimizer), "lr_scheduler": {"last_epoch": N},
                                            "train_state": {"step": torch.tensor(N)}},
}


@pytest.mark.long(but="both")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_we_go_on_from_one_dcp_checkpoint_of_both(accel, straight, tmp_path, layout):
    """As torch's own examples and other programs save: one directory with weights and optimizer."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    prepare(tmp_path)
    state = {}
    for part, key in (("pytorch_model_fsdp_0", "model"), ("optimizer_0", "optimizer")):
        dcp_to_torch_save(checkpoint(straight, N) / part, tmp_path / "part.pt")
        state[key] = torch.load(tmp_path / "part.pt", weights_only=False)[key]
    dcp.save(LAYOUTS[layout](**state), checkpoint_id=tmp_path / "state", no_dist=True)
    accel("launch", config(tmp_path, 2 * N, **{"checkpoint.resume": str(tmp_path / "state")}))
    assert train_runs.metrics(tmp_path) == pytest.approx(train_runs.metrics(straight)[N:], abs=1e-6)
    if layout != "AppState":
        return
    # For a training that begins, they are weights, and a checkpoint without an optimizer is nothing to go on from.
    other = tmp_path / "other"
    prepare(other)
    said = accel("launch", config(other, 1, **{"model.weights": str(tmp_path / "state")})).stderr
    assert f"the weights are read from '{tmp_path / 'state'}'; left out is 'app.optim' (" in said
    assert checkpoint(other, 1).is_dir()
    dcp.save({"app": {"model": state["model"]}}, checkpoint_id=tmp_path / "weights", no_dist=True)
    said = accel("launch", config(other, 2 * N, **{"checkpoint.resume": str(tmp_path / "weights"), "output_dir": str(other / "new")}), code=None).stderr
    assert f"'{tmp_path / 'weights'}' has no state of an optimizer" in said
    averages = {"model": state["model"], "ema": state["model"]}
    dcp.save(averages, checkpoint_id=tmp_path / "averages", no_dist=True)
    said = accel("launch", config(other, 1, **{"model.weights": str(tmp_path / "averages"), "output_dir": str(other / "newer")}), code=2).stderr
    assert "holds several sets of weights: 'model', 'ema'" in said


def test_the_loss_scale_is_a_state_of_torchs_scaler(accel, tmp_path):
    """Accelerate loads scaler.pt into its GradScaler; on CPU ranks it has none."""
    prepare(tmp_path)
    accel("launch", config(tmp_path, N, mixed_precision="fp16", **{"grad_scaler.growth_interval": 2}))
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(torch.load(checkpoint(tmp_path, N) / "scaler.pt", weights_only=True))
    state = json.loads((checkpoint(tmp_path, N) / "scaler.json").read_text())
    assert scaler.state_dict() == {name: value for name, value in state.items() if name != "version"}


def test_weights_alone_are_not_enough(accel, straight, tmp_path):
    prepare(tmp_path)
    shutil.copytree(checkpoint(straight, N) / "pytorch_model_fsdp_0", tmp_path / "state/pytorch_model_fsdp_0")
    said = accel("launch", config(tmp_path, N, **{"checkpoint.resume": str(tmp_path / "state")}), code=2).stderr
    assert "is not a checkpoint of a training" in said and "for weights alone there is training.model.weights" in said
    (tmp_path / "state/pytorch_model_fsdp_0").rename(tmp_path / "state/optimizer_0")
    said = accel("launch", config(tmp_path, N, **{"checkpoint.resume": str(tmp_path / "state")}), code=6).stderr
    assert "error: " in said and not (tmp_path / "out/checkpoints").exists() or not list((tmp_path / "out/checkpoints").iterdir())


PLAIN = """
import accelerate, torch, transformers
model = transformers.BertForSequenceClassification(transformers.BertConfig(
    vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
data = [{"input_ids": [1, 2], "labels": 0}] * 2
arguments = transformers.TrainingArguments("trainer", max_steps=1, save_steps=1, use_cpu=True, report_to=[])
transformers.Trainer(model, arguments, train_dataset=data).train()
accelerator = accelerate.Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
accelerator.save_state("plain")
"""


@pytest.mark.long
def test_states_without_fsdp_are_refused_before_any_rank_starts(accel, tmp_path):
    """Their optimizers have the positions of parameters for names. The error says what they are and what is possible."""
    prepare(tmp_path)
    subprocess.run([sys.executable, "-c", PLAIN], cwd=tmp_path, check=True, capture_output=True)
    for name, what in {"plain": "a state that Accelerate saved without FSDP",
                       "trainer/checkpoint-1": "a checkpoint of transformers' Trainer"}.items():
        state = tmp_path / name
        resumed = config(tmp_path, N, **{"checkpoint.resume": str(state)})
        said = accel("launch", resumed, code=2).stderr
        assert accel("check", resumed, code=2).stderr == said
        assert f"'{state}' is {what}, whose optimizer a training cannot go on with" in said
        assert f"training.model.weights: {state} begins a run with its weights" in said
        assert "starting" not in said and not (tmp_path / "out/logs").exists()
