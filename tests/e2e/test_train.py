"""End-to-end training runs: the files that they write, and the errors that they report."""

import json
import os
import re
import resource
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import train_runs

sys.path.insert(0, str(train_runs.ROOT / "examples"))
from gpt import GPT  # noqa: E402
from held_out_loss import held_out_loss  # noqa: E402


@pytest.fixture(scope="module")
def trained(accel_path, tmp_path_factory):
    """A run of 2 ranks and 6 steps with checkpoints at 2, 4 and 6, of which the last two are kept."""
    directory = tmp_path_factory.mktemp("trained")
    train_runs.export(directory / "gpt.pt")
    text = train_runs.TEXT.read_bytes()
    (directory / "heldout.txt").write_bytes(text[-3000:])
    config = train_runs.config(
        directory, max_steps=6, eval_every=3, checkpoint={"every": 2, "total_limit": 2, "resume": "none"},
        **{"data.eval": {"format": "text", "path": str(directory / "heldout.txt"), "sequence_length": 32}})
    subprocess.run([accel_path, "launch", config], check=True, cwd=directory, timeout=300)
    return directory


def checkpoints(directory):
    return sorted(path.name for path in (directory / "out/checkpoints").iterdir())


def test_keeps_the_newest_checkpoints_complete(trained):
    assert checkpoints(trained) == ["checkpoint_4", "checkpoint_6"]
    last = trained / "out/checkpoints/checkpoint_6"
    assert sorted(path.name for path in last.iterdir()) == [
        "accel_manifest.json", "optimizer_0", "pytorch_model_fsdp_0", "random_states_0.json", "random_states_1.json", "scheduler.bin",
        "trainer_state.json"]
    state = json.loads((last / "trainer_state.json").read_text())
    assert (state["step"], state["world_size"]) == (6, 2)


def test_manifest_names_every_file_with_its_size_and_crc(trained):
    import zlib
    last = trained / "out/checkpoints/checkpoint_6"
    manifest = json.loads((last / "accel_manifest.json").read_text())
    named = {file["name"] for file in manifest["files"]}
    there = {f"{folder}/{path.name}" for folder in ("optimizer_0", "pytorch_model_fsdp_0")
             for path in (last / folder).iterdir()}
    assert named == there | {"random_states_0.json", "random_states_1.json", "scheduler.bin", "trainer_state.json"}
    for file in manifest["files"]:
        data = (last / file["name"]).read_bytes()
        assert (len(data), zlib.crc32(data)) == (file["bytes"], file["crc32"]), file["name"]
    assert manifest["tensors"]["model.tokens.weight"] == {"dtype": "float32", "shape": [256, 48]}


def test_metrics_have_every_step(trained):
    assert train_runs.metrics(trained, "step")[:2] == [1, 2]
    losses = train_runs.metrics(trained)
    assert len(losses) == 6 and losses[-1] < losses[0]
    line = json.loads((trained / "out/metrics.jsonl").read_text().splitlines()[0])
    assert set(line) == {"step", "loss", "last_loss", "lr", "grad_norm", "samples", "samples_per_s", "tokens_per_s", "step_time_s", "epoch",
                         "max_rss_bytes", "time", "attempt"}
    assert len(train_runs.metrics(trained, "checkpoint")) == 3


def test_merged_weights_give_the_same_held_out_loss_in_eager_python(accel, trained, tmp_path):
    accel("merge-weights", trained / "out/checkpoints/checkpoint_6", tmp_path / "merged")
    model = GPT(**train_runs.SIZES)
    missing, unexpected = model.load_state_dict(load_file(tmp_path / "merged/model.safetensors"), strict=False)
    assert missing == ["head.weight"] and unexpected == []
    theirs = held_out_loss(model.eval(), (trained / "heldout.txt").read_bytes(), 32)
    ours = train_runs.metrics(trained, "eval_loss")[-1]
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_a_killed_rank_ends_the_run_and_leaves_its_checkpoints(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, max_steps=100000, checkpoint={"every": 5, "total_limit": 2, "resume": "none"})
    process = train_runs.start(accel_path, config, tmp_path)
    train_runs.wait_for_step(tmp_path, process, 12)
    rank0, rank1 = train_runs.worker_of(0, process.pid), train_runs.worker_of(1, process.pid)
    os.kill(rank1, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 6, output
    assert "rank 1" in output and "SIGKILL" in output, output
    assert not os.path.exists(f"/proc/{rank0}")
    for name in checkpoints(tmp_path):
        if not name.endswith((".incomplete", ".deleting")):
            assert (tmp_path / "out/checkpoints" / name / "accel_manifest.json").exists()


def test_a_save_that_cannot_be_written_leaves_no_checkpoint_under_its_name(accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, max_steps=6, checkpoint={"every": 3, "resume": "none"})

    def limit():
        # The files of a shard are larger than the limit, so their writes fail as on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    process = train_runs.start(accel_path, config, tmp_path, preexec_fn=limit)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 6, output
    assert "File too large" in output, output
    assert checkpoints(tmp_path) == []


def test_refuses_a_directory_with_checkpoints_of_another_run(accel, trained):
    before = {path: path.stat().st_mtime_ns for path in (trained / "out").rglob("*")}
    result = accel("launch", trained / "config.yaml", code=2)
    assert "holds checkpoints of an earlier run" in result.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (trained / "out").rglob("*")}


def test_evaluation_needs_data(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    result = accel("launch", train_runs.config(tmp_path, 1, eval_every=5), code=2)
    assert "'training.eval_every: 5' needs training.data.eval" in result.stderr


@pytest.mark.parametrize("change, message", [
    ({"optimizer.lr": 1e30, "lr_scheduler": {"type": "constant"}}, "the loss is"),
    ({"model.loss": "model"}, "not a scalar loss"),
], ids=["NaN", "loss"])
def test_says_what_is_wrong(accel, tmp_path, change, message):
    train_runs.export(tmp_path / "gpt.pt")
    result = accel("launch", train_runs.config(tmp_path, processes=1, **change), code=6)
    assert message in result.stderr


def test_the_class_error_lists_the_classes_there_are(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Blok"})
    error = accel("launch", config, code=2).stderr
    assert "Attention, Block, Embedding, GPT" in error
    assert re.search(r"config.yaml:\d+:\d+: 'fsdp_config.transformer_layer_cls_to_wrap': no module of class 'Blok'", error)


def test_classes_that_the_model_file_names_are_its_own_fault(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt", layer_classes=["Blok"])
    config = train_runs.config(tmp_path, 1)
    document = json.loads(config.read_text())
    del document["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"]
    config.write_text(json.dumps(document))
    error = accel("launch", config, code=2).stderr
    assert "the notes of the model file (accel.json, 'layer_classes') name Blok, and the model has no module of such a class" in error
    assert "hint: set fsdp_transformer_layer_cls_to_wrap; the model's classes are Attention, Block," in error


def test_the_first_line_names_device_and_backend(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    said = accel("launch", train_runs.config(tmp_path, 2, max_steps=5)).stderr
    assert said.startswith("2 ranks on the CPU, backend shm\n")


def test_a_run_that_is_on_the_cpu_for_want_of_a_gpu_says_so(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=1, use_cpu=None)
    said = accel("launch", config, env={"CUDA_VISIBLE_DEVICES": ""}).stderr
    assert re.search(r"^accel: warning: \S*config.yaml:\d+:\d+: FSDP, but no GPU is visible here", said), said
    assert "\n1 rank on the CPU, backend none" in said


@pytest.mark.parametrize("damage", ["truncated", "not a zip", "a Python pickle"])
def test_a_broken_model_file_is_named(accel, tmp_path, damage):
    path = tmp_path / "gpt.pt"
    train_runs.export(path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:20000])
    elif damage == "not a zip":
        path.write_bytes(b"hello" * 1000)
    else:
        torch.save({"weight": torch.zeros(3)}, path)
    result = accel("launch", train_runs.config(tmp_path, 1), code=2)
    assert "gpt.pt' is not a model file" in result.stderr


def test_the_wrap_list_may_come_from_the_model_file(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=1)
    document = json.loads(config.read_text())
    del document["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"]
    config.write_text(json.dumps(document))
    assert "in 3 units" in accel("launch", config).stderr


def test_a_model_saved_on_a_gpu_is_any_other(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, max_steps=2)
    plan = accel("plan", config).stdout
    accel("launch", config)
    losses = train_runs.metrics(tmp_path)
    train_runs.as_if_from_a_gpu(tmp_path / "gpt.pt")
    assert b"cuda:0" in torch._C.PyTorchFileReader(str(tmp_path / "gpt.pt")).get_record("data.pkl")
    assert accel("plan", config).stdout == plan
    for broadcast in (False, True):
        config = train_runs.config(tmp_path, max_steps=2, **{"model.broadcast_from_rank0": broadcast})
        (tmp_path / "out/metrics.jsonl").unlink()
        accel("launch", config)
        assert train_runs.metrics(tmp_path) == losses


def test_each_rank_reads_only_its_shard(accel_path, tmp_path):
    """Four ranks load a model of 50 MB. The kernel's counts show that no rank reads much more than its shard."""
    train_runs.export(tmp_path / "gpt.pt", width=512, heads=8, layers=4)
    size = (tmp_path / "gpt.pt").stat().st_size
    config = train_runs.config(tmp_path, processes=4, max_steps=100000)
    process = train_runs.start(accel_path, config, tmp_path)
    try:
        train_runs.wait_for_step(tmp_path, process, 1)
        read = []
        for rank in range(4):
            fields = dict(line.split(": ") for line in open(f"/proc/{train_runs.worker_of(rank, process.pid)}/io").read().splitlines())
            read.append(int(fields["rchar"]))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    # rchar counts all bytes that the process read, including libraries, but not those that recv brought.
    assert size > 40e6
    assert max(read) < size / 2, (read, size)


@pytest.mark.long
def test_activation_checkpointing_changes_memory_and_nothing_else(accel, tmp_path):
    """Dropout is on, so the recomputation of each layer must draw the same random numbers again."""
    runs = {}
    for checkpointing in (False, True):
        directory = tmp_path / str(checkpointing)
        directory.mkdir()
        train_runs.export(directory / "gpt.pt", layers=12, width=96, length=256, dropout=0.1)
        config = train_runs.config(directory, max_steps=3, **{
            "fsdp_config.fsdp_activation_checkpointing": checkpointing,
            "data.batch_size": 8, "data.train.sequence_length": 256})
        accel("launch", config)
        runs[checkpointing] = directory
    assert train_runs.metrics(runs[True]) == train_runs.metrics(runs[False])
    assert train_runs.metrics(runs[True], "grad_norm") == train_runs.metrics(runs[False], "grad_norm")
    plain, saving = (train_runs.metrics(runs[key], "max_rss_bytes")[-1] for key in (False, True))
    # The plain run holds about 22 MB of activations for each of 12 layers. The other run holds one layer's at a time.
    assert saving < plain - 150e6


class Changing(torch.nn.Module):
    """Changes its argument in place, so it cannot be recomputed."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor):
        x.mul_(2.0)
        return self.linear(x)


class WithChanging(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 16)
        self.unit = Changing()
        self.head = torch.nn.Linear(16, 256)

    def forward(self, input_ids: torch.Tensor):
        return self.head(self.unit(self.embedding(input_ids) * 1.0))


def test_an_error_inside_the_model_is_said_as_it_is(accel, tmp_path):
    """The worker reports the error itself, with its hint, and not the text of the TorchScript interpreter."""
    torch.jit.script(WithChanging()).save(str(tmp_path / "gpt.pt"))
    config = train_runs.config(tmp_path, max_steps=1, **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Changing",
                                                         "fsdp_config.fsdp_activation_checkpointing": True})
    error = accel("launch", config, code=6).stderr
    assert "failed: exit code 2" in error
    assert "error: activation checkpointing: 'unit' changes one of its arguments in place" in error
    assert "hint: wrap another module, or set fsdp_activation_checkpointing: false" in error
    assert "Traceback" not in error
