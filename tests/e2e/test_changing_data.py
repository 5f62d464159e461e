"""Data files that change while a run reads them end it with an error that names the file."""

import os

import pytest
import torch
from safetensors.torch import save_file

import train_runs

BYTES = 20_000  # Five pages.
RANKS = 2


def cut_within_the_last_page(path):
    os.truncate(path, path.stat().st_size - 100)


def cut_by_pages(path):
    os.truncate(path, 100)


def write_other_tokens_in_place(path):
    with open(path, "r+b") as file:
        file.write(b"Z" * BYTES)


def start(accel_path, directory, **keys):
    return train_runs.start(accel_path, train_runs.config(directory, RANKS, directory / "data.txt", **{"max_steps": 100_000, **keys}), directory)


@pytest.mark.long(but="cut_within_the_last_page-it had 20000 bytes and has 19900")
@pytest.mark.parametrize("change, said", [
    (cut_within_the_last_page, f"it had {BYTES} bytes and has {BYTES - 100}"),
    (cut_by_pages, f"it had {BYTES} bytes and has 100"),
    (write_other_tokens_in_place, "it was written at "),
], ids=lambda value: getattr(value, "__name__", None))
def test_text_that_changes(accel_path, tmp_path, change, said):
    train_runs.export(tmp_path / "gpt.pt")
    (tmp_path / "data.txt").write_bytes(train_runs.TEXT.read_bytes()[:BYTES])
    process = start(accel_path, tmp_path)
    train_runs.wait_for_step(tmp_path, process)
    change(tmp_path / "data.txt")
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 6, output
    assert f"data file '{tmp_path / 'data.txt'}' has changed while the run reads it: {said}" in output
    assert "let the run go on from its last checkpoint" in output and "SIGBUS" not in output


def test_a_table_that_shrinks(accel_path, tmp_path):
    torch.jit.script(torch.nn.Linear(4, 8)).save(str(tmp_path / "gpt.pt"))
    path = tmp_path / "data.safetensors"
    save_file({"x": torch.randn(2000, 4), "labels": torch.arange(2000) % 8}, path)
    process = start(accel_path, tmp_path, **{"model.inputs": ["x"], "data.train": {"format": "tensors", "path": str(path)},
                                             "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"}})
    train_runs.wait_for_step(tmp_path, process)
    os.truncate(path, 5000)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 6, output
    assert f"data file '{path}' has changed while the run reads it: it had " in output


@pytest.mark.long
def test_a_file_that_is_only_touched_or_replaced_is_read_on(accel_path, tmp_path):
    """Jobs that keep files from being deleted touch them. What replaces a file under its name is for the next run."""
    train_runs.export(tmp_path / "gpt.pt")
    path = tmp_path / "data.txt"
    path.write_bytes(train_runs.TEXT.read_bytes()[:BYTES])
    process = start(accel_path, tmp_path, max_steps=600)
    metrics = tmp_path / "out/metrics.jsonl"
    train_runs.wait_for_step(tmp_path, process)
    for _ in range(2):  # The second time it is not named.
        os.utime(path)
        train_runs.wait_for_step(tmp_path, process, len(metrics.read_text().splitlines()) + 10)
    (tmp_path / "other").write_bytes(b"Z" * 100)
    (tmp_path / "other").rename(path)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert output.count(f"data file '{path}' was touched while the run reads it: it was written at ") == RANKS
    assert len(train_runs.metrics(tmp_path)) == 600
