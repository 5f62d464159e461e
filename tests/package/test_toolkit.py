"""The toolkit's wheel in a fresh virtual environment, where it trains with the worker of the build.

`tools/dev test --all` runs these tests: a compiler and libraries of its own make the wheel.
"""

import json
import os
import re
import subprocess

import pytest
import safetensors.torch
import torch
import train_runs
from symbols import newest_symbol
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

MAX_TOOLKIT_BYTES = 8_000_000


def sections(program):
    return subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout


def needed(program):
    dynamic = subprocess.run(["readelf", "-dW", program], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))


def test_toolkit_is_small_and_for_any_python(package):
    wheel = package("accel_toolkit-*.whl")
    assert re.fullmatch(r"accel_toolkit-[0-9.]+-py3-none-manylinux_2_28_x86_64\.whl", wheel.name)
    assert wheel.stat().st_size < MAX_TOOLKIT_BYTES


def test_toolkit_needs_no_new_c_library(toolkit):
    assert (2, 17) <= newest_symbol(toolkit / "bin/accel", "GLIBC") <= (2, 28)


def test_toolkit_is_stripped_and_self_contained(toolkit):
    assert ".text" in sections(toolkit / "bin/accel")
    assert ".symtab" not in sections(toolkit / "bin/accel")
    assert ".debug_info" not in sections(toolkit / "bin/accel")
    assert needed(toolkit / "bin/accel") <= {
        "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


def test_toolkit_requires_no_package(toolkit, pip):
    names = {entry["name"] for entry in json.loads(pip(toolkit, "list", "--format=json"))}
    assert "accel-toolkit" in names
    assert names <= {"accel-toolkit", "pip", "setuptools"}


def test_toolkit_says_that_it_has_no_libtorch(toolkit, run_clean, tmp_path):
    lines = run_clean(toolkit / "bin/accel", "--version", cwd=tmp_path).stdout.splitlines()
    assert re.fullmatch(r"accel \d+\.\d+\.\d+", lines[0])
    assert lines[2:] == ["libtorch none", "NCCL none"]


def test_toolkit_has_its_manual_pages(toolkit, manual_pages):
    assert sorted(page.name for page in (toolkit / "share/man").glob("man?/*")) == manual_pages


def test_toolkit_has_its_completion_scripts(toolkit, run_clean, completion_scripts, tmp_path):
    for shell, path in completion_scripts.items():
        printed = run_clean(toolkit / "bin/accel", "completion", shell, cwd=tmp_path).stdout
        assert (toolkit / "share" / path).read_text() == printed


def test_toolkit_reads_and_merges_a_checkpoint(toolkit, run_clean, checkpoint, weights, tmp_path):
    accel = toolkit / "bin/accel"
    assert "layer.weight" in run_clean(accel, "inspect", "--tensors", checkpoint, cwd=tmp_path).stdout
    run_clean(accel, "merge-weights", checkpoint, tmp_path / "merged", cwd=tmp_path)
    merged = safetensors.torch.load_file(tmp_path / "merged/model.safetensors")
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights)


def test_toolkit_starts_any_program(toolkit, run_clean, tmp_path):
    result = run_clean(toolkit / "bin/accel", "launch", "--cpu", "--num_processes", "2", "--", "sh", "-c",
                       "echo rank $RANK >&2", cwd=tmp_path)
    assert sorted(result.stderr.splitlines()) == ["[rank1] rank 1", "rank 0"]


def test_launch_without_a_worker_says_how_to_get_one(toolkit, run_clean, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    result = run_clean(toolkit / "bin/accel", "launch", train_runs.config(tmp_path), cwd=tmp_path, code=1)
    assert "accel-worker is not installed" in result.stderr
    assert "the wheel accel_worker" in result.stderr and "pip install" not in result.stderr


@pytest.fixture(scope="module")
def trained(toolkit, run_clean, tmp_path_factory, accel_path):
    """A run of two ranks that begins with the weights of another model, stops, and goes on. Returns its directory."""
    directory = tmp_path_factory.mktemp("trained")
    worker = {"ACCEL_WORKER": os.fspath(accel_path.parent.parent / "train/accel-worker"), "OMP_NUM_THREADS": "1"}
    train_runs.export_pt2(directory / "gpt.pt2", train_runs.export(directory / "unused.pt", seed=1))
    model = train_runs.export(directory / "gpt.pt", seed=2)
    weights = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    safetensors.torch.save_file(weights, directory / "weights.safetensors")
    config = train_runs.config(directory, **{
        "model.path": str(directory / "gpt.pt2"), "model.weights": str(directory / "weights.safetensors"),
        "data.batch_size": 4, "max_steps": 4, "lr_scheduler": {"type": "constant"}, "checkpoint.every": 2, "checkpoint.resume": "auto"})
    checked = run_clean(toolkit / "bin/accel", "check", config, cwd=directory)
    assert "weights.safetensors" in checked.stdout
    run_clean(toolkit / "bin/accel", "launch", config, "--set", "training.max_steps=2", cwd=directory, env=worker)
    run_clean(toolkit / "bin/accel", "launch", config, cwd=directory, env=worker)
    return directory


def test_training_begins_with_the_weights(trained):
    """The loss of the first step is that of the weights, in eager Python."""
    tokens = torch.tensor(list(train_runs.TEXT.read_bytes()[:8 * 32 + 1]))
    model = torch.jit.load(trained / "gpt.pt")
    with torch.no_grad():
        logits = model(tokens[:-1].view(8, 32))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:])
    assert train_runs.metrics(trained)[0] == pytest.approx(expected.item(), rel=1e-5)


def test_training_goes_on_from_its_checkpoint(trained):
    assert len(train_runs.metrics(trained)) == 4
    assert train_runs.metrics(trained, "checkpoint") == [
        str(trained / f"out/checkpoints/checkpoint_{step}") for step in (2, 4)]
    assert sorted(path.name for path in (trained / "out/checkpoints").iterdir()) == ["checkpoint_2", "checkpoint_4"]


def test_checkpoints_are_verified_and_merged(toolkit, trained, run_clean, tmp_path):
    """Torch reads the checkpoint that the merged file is compared with."""
    accel, checkpoint = toolkit / "bin/accel", trained / "out/checkpoints/checkpoint_4"
    assert "ok" in run_clean(accel, "verify", checkpoint, cwd=tmp_path).stdout
    run_clean(accel, "merge-weights", checkpoint, tmp_path / "merged", cwd=tmp_path)
    merged = safetensors.torch.load_file(tmp_path / "merged/model.safetensors")
    dcp_to_torch_save(checkpoint / "pytorch_model_fsdp_0", tmp_path / "model.pt")
    expected = torch.load(tmp_path / "model.pt")["model"]
    assert set(merged) == set(expected) - {"head.weight"}
    assert all(torch.equal(merged[name], expected[name]) for name in merged)
