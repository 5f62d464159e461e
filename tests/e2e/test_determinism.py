"""The same configuration and seed give the same bits twice, with several threads in each rank."""

import os
import shutil

import pytest

import resume_cases
import train_runs

# The tensors are large enough that libtorch's operators and its products divide them among threads.
LENGTH = 96
SIZES = {"width": 192, "length": LENGTH, "heads": 4}
TOKENS_OF_A_BATCH, GRAIN = 4 * LENGTH, 32_768
# Threads that wait must not hold the processors of those that work.
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}

CASES = {
    "FSDP": {},
    "FSDP, muon": {"optimizer": {"type": "muon", "lr": 0.01}},
    "FSDP in bf16, activation checkpointing": {"mixed_precision": "bf16", "fsdp_config.fsdp_activation_checkpointing": True},
    "HYBRID_SHARD": {"processes": 4, "parallelism_config.dp_shard_size": 2},
    "MULTI_CPU, Gloo, PowerSGD": {"distributed_type": "MULTI_CPU", "launch.backend": "gloo", "ddp.comm_hook": "power_sgd",
                                  "ddp.comm_state_option.start_powerSGD_iter": 2},
    "tokens, z_loss, label smoothing": {"loss_mean": "tokens", "model.z_loss": 1e-3, "model.label_smoothing": 0.1},
}


def launch(accel, directory, model, case):
    """Trains with dropout, shuffled data, accumulation, a short last batch, evaluations, and saves behind the steps."""
    directory.mkdir()
    shutil.copy(model, directory / "gpt.pt")
    data = directory / "train.txt"
    data.write_bytes(train_runs.TEXT.read_bytes()[:LENGTH * 37 + 1])
    held_out = directory / "held.txt"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[-LENGTH * 7 - 1:])
    keys = {key: value for key, value in case.items() if key != "processes"}
    config = train_runs.config(directory, case.get("processes", 2), data=data, **{
        "data.train": {"format": "text", "path": str(data), "sequence_length": LENGTH}, "data.shuffle": True,
        "data.drop_last": False, "gradient_accumulation_steps": 2, "max_steps": 5, "eval_every": 2,
        "data.eval": {"format": "text", "path": str(held_out), "sequence_length": LENGTH},
        "checkpoint": {"every": 2, "async": True}, **keys})
    accel("launch", config, env={**os.environ, **THREADS})


def files_of(directory):
    root = directory / "out/checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    assert TOKENS_OF_A_BATCH * SIZES["width"] > 2 * GRAIN
    path = tmp_path_factory.mktemp("model") / "gpt.pt"
    train_runs.export(path, dropout=0.1, **SIZES)
    return path


@pytest.mark.long(but="FSDP")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_has_the_same_bits_twice(accel, tmp_path, model, case):
    for name in ("first", "second"):
        launch(accel, tmp_path / name, model, case)
    first, second = (resume_cases.lines(tmp_path / name) for name in ("first", "second"))
    assert [line["step"] for line in first if "loss" in line] == list(range(1, 6))
    assert first == second
    files, again = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert list(files) == list(again) and len(files) >= 3 * 6
    assert [name for name in files if files[name] != again[name]] == []


@pytest.mark.long
def test_another_seed_gives_other_bits(accel, tmp_path, model):
    """The comparison above would not notice a run that ignores what is random."""
    for name, seed in (("first", 42), ("second", 43)):
        launch(accel, tmp_path / name, model, {"seed": seed})
    first, second = (resume_cases.lines(tmp_path / name) for name in ("first", "second"))
    assert first[0]["loss"] != second[0]["loss"]


@pytest.mark.long
def test_units_gathered_further_ahead_change_no_bit(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt", **{**SIZES, "layers": 6})
    for depth in (1, 3):
        launch(accel, tmp_path / str(depth), tmp_path / "gpt.pt", {"fsdp_config.fsdp_prefetch_depth": depth})
    near, far = (resume_cases.lines(tmp_path / depth) for depth in ("1", "3"))
    assert near == far and near[0]["loss"] > 0
    files, again = files_of(tmp_path / "1"), files_of(tmp_path / "3")
    assert files == again and len(files) >= 3 * 6
