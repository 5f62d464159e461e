"""The real packages load what `accel save` and `accel load` write, bit for bit, under both torch versions."""

import json
import subprocess

import judges
import pytest
import torch
from matrix import WRITES
from zoo_kinds import BY_NAME, KINDS

# The zoo's checkpoints to convert: tensors of every dtype, odd layouts, a model with a buffer.
SOURCES = ["bin-dtypes", "dcp-zstd", "accelerate-sharded"]


@pytest.fixture(params=SOURCES)
def source(request, zoos):
    zoo, kind = zoos("2.11"), BY_NAME[request.param]
    return zoo.path(kind), zoo.expected_file(kind)


def flags(kind) -> list[str]:
    return ["--tensors-only"] if kind.extras else []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.extras], ids=str)
def test_extras_are_not_dropped_silently(accel, zoo, kind, tmp_path):
    [line] = accel("save", zoo.path(kind), tmp_path / "out", "--type", "full").stderr.splitlines()
    assert "left out is" in line


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_save_as_full(accel, zoo, judge_of, reads, kind, tmp_path):
    reads(kind, "save as full")
    accel("save", zoo.path(kind), tmp_path / "out", "--type", "full", *flags(kind))
    assert judge_of("2.11").problem("torch", tmp_path / "out/pytorch_model_fsdp.bin", zoo.expected_file(kind)) == ""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_save_as_local(accel, zoo, judge_of, reads, kind, tmp_path):
    reads(kind, "save as local")
    accel("save", zoo.path(kind), tmp_path / "out", "--type", "local", "--ranks", 3, *flags(kind))
    assert judge_of("2.11").problem("local", tmp_path / "out", zoo.expected_file(kind)) == ""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_save_as_sharded(accel, zoo, judge_of, reads, kind, tmp_path):
    """torch 2.11 cannot read the metadata of torch 2.15, but it loads such a checkpoint after `accel save`."""
    reads(kind, "save as sharded")
    accel("save", zoo.path(kind), tmp_path / "out", "--type", "sharded", "--ranks", 3, *flags(kind))
    assert judge_of("2.11").problem("dcp", tmp_path / "out/pytorch_model_fsdp_0", zoo.expected_file(kind)) == ""


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize(("load", "column"), [("dcp", "`dcp.load`"), ("nested_dcp", "DCP's converter")])
def test_sharded(accel, source, judge, writes, tmp_path, ranks, load, column):
    writes("`save --type sharded`", column)
    path, expected = source
    accel("save", path, tmp_path / "out", "--type", "sharded", "--ranks", ranks)
    assert judge.problem(load, tmp_path / "out/pytorch_model_fsdp_0", expected) == ""


@pytest.mark.parametrize("load", ["torch", "mapped"])
def test_full(accel, source, judge, writes, tmp_path, load):
    writes("`save --type full`", "`torch.load`")
    path, expected = source
    accel("save", path, tmp_path / "out", "--type", "full")
    assert judge.problem(load, tmp_path / "out/pytorch_model_fsdp.bin", expected) == ""


def test_full_as_a_file(accel, source, judge, writes, tmp_path):
    writes("`save --type full`, a file", "`torch.load`")
    path, expected = source
    accel("save", path, tmp_path / "weights.bin", "--type", "full")
    assert judge.problem("torch", tmp_path / "weights.bin", expected) == ""


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_local(accel, source, judge, writes, tmp_path, ranks):
    writes("`save --type local`", "`torch.load`")
    path, expected = source
    accel("save", path, tmp_path / "out", "--type", "local", "--ranks", ranks)
    assert judge.problem("local", tmp_path / "out", expected) == ""


def test_local_comes_back(accel, source, judge, writes, tmp_path):
    """A local checkpoint, which only accel reads, becomes a full checkpoint."""
    writes("`save --type local`, then full", "`torch.load`")
    path, expected = source
    accel("save", path, tmp_path / "local", "--type", "local", "--ranks", 3)
    accel("save", tmp_path / "local", tmp_path / "out", "--type", "full")
    assert judge.problem("torch", tmp_path / "out/pytorch_model_fsdp.bin", expected) == ""


@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize("origin", ["accelerate-sharded", "accelerate-dtensor-bin", "accelerate-full", "torchscript-scripted"])
def test_torchscript(accel, zoos, judge, writes, tmp_path, form, origin):
    """`accel load` replaces the weights in a TorchScript file."""
    writes(f"`load --into`, {form}", "`torch.jit.load`")
    zoo, kind = zoos("2.11"), BY_NAME[origin]
    into = zoo.path(BY_NAME[f"torchscript-{form}"])
    blank = torch.jit.load(into)
    with torch.no_grad():
        for tensor in blank.state_dict().values():
            tensor.zero_()
    blank.save(tmp_path / "blank.pt")
    assert judge.problem("script", tmp_path / "blank.pt", zoo.expected_file(kind)) != ""
    accel("load", zoo.path(kind), "--into", tmp_path / "blank.pt", "--out", tmp_path / "new.pt")
    assert judge.problem("script", tmp_path / "new.pt", zoo.expected_file(kind)) == ""


OPTIMIZERS = {
    "accelerate-sharded": "optimizer_0", "accelerate-full": "optimizer.bin", "accelerate-dtensor-bin": "optimizer_0_rank0.bin",
}  # fmt: skip


@pytest.mark.long(but="2.11-2.11-accelerate-sharded")
@pytest.mark.parametrize("origin", OPTIMIZERS)
def test_optimizer_sharded(accel, zoo, judge, writes, tmp_path, origin):
    writes("`save --type sharded` of an optimizer", "DCP's converter")
    accel("save", zoo.directory / origin / OPTIMIZERS[origin], tmp_path / "out", "--type", "sharded", "--ranks", 2)
    expected = zoo.directory / "accelerate-sharded.optimizer.pt"
    assert judge.problem("optimizer_dcp", tmp_path / "out/optimizer_0", expected) == ""


@pytest.mark.parametrize("origin", OPTIMIZERS)
def test_optimizer_full(accel, zoo, judge, writes, tmp_path, origin):
    writes("`save --type full` of an optimizer", "`torch.load`")
    accel("save", zoo.directory / origin / OPTIMIZERS[origin], tmp_path / "out", "--type", "full")
    expected = zoo.directory / "accelerate-sharded.optimizer.pt"
    assert judge.problem("optimizer_torch", tmp_path / "out/optimizer.bin", expected) == ""


@pytest.mark.long
@pytest.mark.parametrize("torch_version", judges.TORCHES)
def test_accelerate_resumes(accel, zoos, cell, tmp_path, torch_version):
    """Accelerate loads what accel converts from Accelerate's checkpoints of each torch version, on four ranks."""
    jobs = []
    for form, state in (("full", "FULL_STATE_DICT"), ("sharded", "SHARDED_STATE_DICT")):
        ranks = ["--ranks", 3] if form == "sharded" else []
        cell(WRITES, f"`save --type {form}`", "Accelerate's `load_fsdp_model`", torch_version)
        cell(WRITES, f"`save --type {form}` of an optimizer", "Accelerate's `load_fsdp_optimizer`", torch_version)
        for writer in judges.TORCHES:
            for dtype in ("", "-bf16"):
                zoo, out = zoos(writer), tmp_path / f"{form}{dtype}-{writer}"
                for part in ("pytorch_model_fsdp_0", "optimizer_0"):
                    accel("save", zoo.directory / f"accelerate-sharded{dtype}" / part, out, "--type", form, *ranks)
                jobs.append({"directory": str(out), "state": state,
                             "expected": str(zoo.directory / f"accelerate-sharded{dtype}.expected.pt"),
                             "optimizer": str(zoo.directory / f"accelerate-sharded{dtype}.optimizer.pt")})
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    command = [judges.interpreter(torch_version), judges.HERE / "zoo_resume.py", tmp_path / "jobs.json", tmp_path / "answers.json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers == [""] * len(jobs)
