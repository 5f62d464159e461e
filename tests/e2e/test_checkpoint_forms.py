"""Checkpoints in the full and the local form: what torch reads of them, and runs that go on from them."""

import json
import os
import shutil
import subprocess

import pytest
import resume_cases
import torch
import train_runs
from resume_cases import N
from safetensors.torch import load_file

CASE = {"lr_scheduler": {"type": "cosine", "warmup_steps": 4, "min_lr_ratio": 0.1}, "dropout": 0.1}
FORMS = {
    "FULL_STATE_DICT": ({"fsdp_config.fsdp_state_dict_type": "FULL_STATE_DICT"}, {"pytorch_model_fsdp.bin", "optimizer.bin"}),
    "LOCAL_STATE_DICT": (
        {"fsdp_config.fsdp_state_dict_type": "LOCAL_STATE_DICT", "fsdp_config.fsdp_version": 1},
        {"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank0.json", "pytorch_model_fsdp_rank1.bin",
         "pytorch_model_fsdp_rank1.json", "optimizer_0"})}
BESIDE = {"trainer_state.json", "accel_manifest.json", "random_states_0.json", "random_states_1.json", "scheduler.bin", "training_state"}


@pytest.fixture(scope="module")
def sharded(accel_path, tmp_path_factory):
    """A run of 3 N steps that saves sharded checkpoints."""
    directory = tmp_path_factory.mktemp("sharded")
    resume_cases.prepare(directory, CASE)
    config = resume_cases.config(directory, CASE, **{"checkpoint.export": "safetensors"})
    subprocess.run([accel_path, "launch", config], check=True)
    return directory


def last(directory):
    return directory / f"out/checkpoints/checkpoint_{3 * N}"


@pytest.mark.long(but="LOCAL_STATE_DICT")
@pytest.mark.parametrize("form", FORMS)
def test_a_run_with_another_form_goes_on_bit_for_bit(accel, sharded, tmp_path, form):
    options, names = FORMS[form]
    resume_cases.prepare(tmp_path, CASE)
    accel("launch", resume_cases.config(tmp_path, CASE, N, **options))
    first = tmp_path / f"out/checkpoints/checkpoint_{N}"
    assert names <= {path.name for path in first.iterdir()} <= names | BESIDE
    assert "ok" in accel("verify", first).stdout
    saved = [json.loads(line) for line in (first.parent.parent / "metrics.jsonl").read_text().splitlines() if '"save_time_s"' in line]
    assert saved[-1]["bytes"] == sum(file.stat().st_size for file in first.rglob("*") if file.is_file())
    said = accel("launch", resume_cases.config(tmp_path, CASE, **options)).stderr
    assert f"resuming from '{first}'" in said
    assert resume_cases.lines(tmp_path) == resume_cases.lines(sharded)
    for part in ("pytorch_model_fsdp", "optimizer"):
        ours = next(path for path in sorted(last(tmp_path).iterdir()) if path.name.startswith(part))
        accel("diff", ours, last(sharded) / f"{part}_0")


@pytest.mark.long(but="FULL_STATE_DICT")
@pytest.mark.parametrize("form", FORMS)
def test_what_each_rank_has_for_itself_stays(accel, tmp_path, form):
    """Running statistics of rank 1 are neither part of the model nor in its way."""
    case = {"model": "norm"}
    resume_cases.prepare(tmp_path, case)
    wrap = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "NormBlock", **FORMS[form][0]}
    accel("launch", resume_cases.config(tmp_path, case, N, **wrap))
    assert (tmp_path / f"out/checkpoints/checkpoint_{N}/training_state/.metadata").exists()
    accel("launch", resume_cases.config(tmp_path, case, **wrap))
    straight = tmp_path / "straight"
    resume_cases.prepare(straight, case)
    accel("launch", resume_cases.config(straight, case, **wrap))
    assert resume_cases.manifest(tmp_path, 3 * N) == resume_cases.manifest(straight, 3 * N)
    assert "ok" in accel("verify", last(straight)).stdout


def test_our_checkpoint_without_its_state_is_not_taken_for_anothers(accel, sharded, tmp_path):
    resume_cases.prepare(tmp_path, CASE)
    shutil.copytree(last(sharded), tmp_path / "source")
    (tmp_path / "source/trainer_state.json").unlink()
    config = resume_cases.config(tmp_path, CASE, 4 * N, **{"checkpoint.resume": str(tmp_path / "source")})
    assert "has no trainer_state.json" in accel("launch", config, code=2).stderr


def test_torch_reads_the_full_form(accel, sharded, tmp_path):
    """The state dicts are those that Accelerate loads: names without a root key, whole tensors."""
    resume_cases.prepare(tmp_path, CASE)
    accel("launch", resume_cases.config(tmp_path, CASE, **FORMS["FULL_STATE_DICT"][0]))
    model = torch.load(last(tmp_path) / "pytorch_model_fsdp.bin", weights_only=True)
    exported = load_file(sharded / "out/export/model.safetensors")
    assert exported and all(torch.equal(model[name], tensor) for name, tensor in exported.items())
    state = torch.load(last(tmp_path) / "optimizer.bin", weights_only=True)
    assert set(state) == {"state", "param_groups"}
    assert {float(of["step"]) for of in state["state"].values()} == {3.0 * N}
    assert sorted(name for group in state["param_groups"] for name in group["params"]) == sorted(state["state"])


def test_forms_may_change_between_runs(accel, sharded, tmp_path):
    resume_cases.prepare(tmp_path, CASE)
    accel("launch", resume_cases.config(tmp_path, CASE, N, **FORMS["FULL_STATE_DICT"][0]))
    accel("launch", resume_cases.config(tmp_path, CASE))
    assert resume_cases.manifest(tmp_path, 3 * N) == resume_cases.manifest(sharded, 3 * N)


def test_the_export_is_the_merge_of_the_last_checkpoint(accel, sharded, tmp_path):
    accel("merge-weights", last(sharded) / "pytorch_model_fsdp_0", tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (sharded / "out/export/model.safetensors").read_bytes()


def test_the_configuration_of_the_model_is_exported_with_it(accel, tmp_path):
    """It lies beside the weights that the training begins with. A second run replaces the export."""
    resume_cases.prepare(tmp_path, CASE)
    accel("launch", resume_cases.config(tmp_path, CASE, 2))
    start = tmp_path / "start"
    accel("merge-weights", tmp_path / "out/checkpoints/checkpoint_2/pytorch_model_fsdp_0", start)
    (start / "config.json").write_text(json.dumps({"model_type": "tiny"}))
    shutil.rmtree(tmp_path / "out")
    for steps in (2, 4):
        accel("launch", resume_cases.config(tmp_path, CASE, steps, **{"model.weights": str(start),
                                                                      "checkpoint.export": "safetensors"}))
    assert json.loads((tmp_path / "out/export/config.json").read_text()) == {"model_type": "tiny"}
    accel("diff", tmp_path / "out/export", tmp_path / "out/checkpoints/checkpoint_4/pytorch_model_fsdp_0")


@pytest.mark.long
def test_weights_of_an_earlier_end_are_not_taken_for_those_of_this_one(accel, tmp_path):
    """A run that goes on ends between its last checkpoint and the export: a copy fails, which only the export makes."""
    resume_cases.prepare(tmp_path, CASE)
    accel("launch", resume_cases.config(tmp_path, CASE, 2))
    start = tmp_path / "start"
    accel("merge-weights", tmp_path / "out/checkpoints/checkpoint_2/pytorch_model_fsdp_0", start)
    (start / "config.json").write_text(json.dumps({"model_type": "tiny"}))
    shutil.rmtree(tmp_path / "out")
    options = {"model.weights": str(start), "checkpoint.export": "safetensors"}
    accel("launch", resume_cases.config(tmp_path, CASE, 2, **options))
    assert (tmp_path / "out/export/model.safetensors").exists()
    config = resume_cases.config(tmp_path, CASE, 4, **options)
    said = accel("launch", config, code=6, env={"ACCEL_FAULT": "fail@copy:EIO"}).stderr
    assert "the checkpoint is complete, but its export to" in said
    assert not (tmp_path / "out/export").exists() and (tmp_path / "out/checkpoints/checkpoint_4/accel_manifest.json").exists()
    said = accel("launch", config).stderr
    assert "the run is finished, and '" in said and "is made from" in said
    accel("diff", tmp_path / "out/export", tmp_path / "out/checkpoints/checkpoint_4/pytorch_model_fsdp_0")
    assert (tmp_path / "out/export/config.json").read_text() == (start / "config.json").read_text()
    assert "nothing to do" in accel("launch", config).stderr


def test_an_export_that_fails_says_that_the_checkpoint_is_complete(accel, tmp_path):
    resume_cases.prepare(tmp_path, CASE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/export").symlink_to("/proc")  # No file can be made there.
    said = accel("launch", resume_cases.config(tmp_path, CASE, 2, **{"checkpoint.export": "safetensors"}), code=6).stderr
    assert "the checkpoint is complete, but its export to" in said
    assert (tmp_path / "out/checkpoints/checkpoint_2/accel_manifest.json").exists()
    # The same command makes the export, and removes what a kill has left of one.
    (tmp_path / "out/export").unlink()
    leftover = tmp_path / "out/export.incomplete-00000000-1-1"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    accel("launch", resume_cases.config(tmp_path, CASE, 2, **{"checkpoint.export": "safetensors"}))
    accel("diff", tmp_path / "out/export", tmp_path / "out/checkpoints/checkpoint_2/pytorch_model_fsdp_0")
    assert not list((tmp_path / "out").glob("export.*"))


def test_every_may_be_minutes_or_continuous(accel, tmp_path):
    resume_cases.prepare(tmp_path, CASE)
    accel("launch", resume_cases.config(tmp_path, CASE, 6, checkpoint={"every": "continuous", "total_limit": 2}))
    steps = train_runs.metrics(tmp_path, "checkpoint")
    assert len(steps) >= 2 and steps[-1].endswith("checkpoint_6")
    assert len(list((tmp_path / "out/checkpoints").iterdir())) == 2
    shutil.rmtree(tmp_path / "out")
    accel("launch", resume_cases.config(tmp_path, CASE, 3, checkpoint={"every_minutes": 1e-9}))
    assert train_runs.metrics(tmp_path, "checkpoint")[0].endswith("checkpoint_1")
    for every in ("often", -1, 1.5):
        said = accel("launch", resume_cases.config(tmp_path, CASE, 3, checkpoint={"every": every}), code=2).stderr
        assert "'training.checkpoint.every' must be a number of steps, 0 or greater, or 'continuous'" in said
    said = accel("launch", resume_cases.config(tmp_path, CASE, 3, checkpoint={"every": 1, "host_memory": "much"}), code=2).stderr
    assert "'training.checkpoint.host_memory' must be a size" in said


class Prior(torch.nn.Module):
    """A parameter that is called like what an optimizer keeps for `prior`, and has its shape."""

    def __init__(self):
        super().__init__()
        self.mu = torch.nn.Parameter(torch.zeros(16))

    def forward(self, x):
        return x + self.mu


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.prior, self.linear = Prior(), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(self.prior(x))


class WithPrior(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256)
        self.prior, self.block = torch.nn.Parameter(torch.ones(16)), Block()

    def forward(self, input_ids: torch.Tensor):
        return self.head(self.block(self.embed(input_ids) * self.prior))


@pytest.mark.long(but="SHARDED_STATE_DICT")
@pytest.mark.parametrize("form", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_weights_that_are_called_like_moments_are_saved_resumed_and_exported(accel, tmp_path, form):
    resume_cases.prepare(tmp_path, {})
    torch.manual_seed(0)
    model = WithPrior()
    torch.jit.script(model).save(tmp_path / "gpt.pt")
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Block", "fsdp_config.fsdp_state_dict_type": form,
               "checkpoint.export": "safetensors"}
    accel("launch", resume_cases.config(tmp_path, {}, N, **options))
    said = accel("launch", resume_cases.config(tmp_path, {}, 2 * N, **options)).stderr
    assert f"resuming from '{tmp_path}/out/checkpoints/checkpoint_{N}'" in said
    exported = load_file(tmp_path / "out/export/model.safetensors")
    assert exported.keys() == model.state_dict().keys()
    assert exported["block.prior.mu"].abs().min() > 0
