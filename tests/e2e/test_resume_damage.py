"""Checkpoints whose files have the right sizes and other contents: no run goes on from one of them in silence."""

import json
import pathlib
import re
import shutil
import subprocess
import zlib

import pytest
import resume_cases
import torch
import train_runs
from resume_cases import N

OLDER, NEWER = f"checkpoint_{N}", f"checkpoint_{2 * N}"


@pytest.fixture(scope="session")
def stopped_once(accel_path, made_once):
    """The directory of a run of 2 N steps on 2 ranks, with two checkpoints. Tests copy it."""
    def make(directory):
        resume_cases.prepare(directory, {})
        subprocess.run([accel_path, "launch", resume_cases.config(directory, {}, 2 * N)], check=True)

    return made_once("resume-damage", make)


@pytest.fixture
def stopped(stopped_once, tmp_path):
    for name in ("gpt.pt", "train.txt", "eval.txt"):
        (tmp_path / name).symlink_to(stopped_once / name)
    shutil.copytree(stopped_once / "out", tmp_path / "out")
    return tmp_path


def checkpoints(directory) -> list[str]:
    return sorted(path.name for path in (directory / "out/checkpoints").iterdir())


def newer(directory) -> pathlib.Path:
    return directory / "out/checkpoints" / NEWER


def launch(accel, directory, code=0, **more) -> str:
    return accel("launch", resume_cases.config(directory, {}, **more), code=code).stderr


def launch_alone(accel, directory, code=0, **more) -> str:
    """Runs the launcher with a program instead of the worker: what it decides before there are ranks."""
    worker = directory / "worker"
    worker.write_text("#!/bin/sh\nexit 0\n")
    worker.chmod(0o755)
    return launch(accel, directory, code, **{"launch.worker": str(worker), **more})


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def assert_the_report_comes_first(said):
    """To read all of a checkpoint takes long, so that the log says what happens meanwhile."""
    report = said.index(" of 2 failed: exit code 5")
    check = re.search(r"checking '\S+' \([\d.]+ \wB\), which a rank found corrupt\n", said)
    assert check and report < check.start() < said.index("it is renamed to"), said


SHARDS = ["pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/__1_0.distcp",
          "optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp"]


@pytest.mark.long(but="pytorch_model_fsdp_0/__0_0.distcp-0.03")
@pytest.mark.parametrize("name, where", [(SHARDS[0], 0.03), (SHARDS[0], 0.9), (SHARDS[1], 0.5), (SHARDS[2], 0.5),
                                         (SHARDS[3], 0.03), (SHARDS[3], 0.9)])
def test_a_changed_byte_of_a_shard_ends_the_launch_and_the_next_one_takes_the_older_checkpoint(
        accel, stopped, name, where):
    path = newer(stopped) / name
    flip(path, int(path.stat().st_size * where))
    said = launch(accel, stopped, code=6)
    assert f"'{name}' is not the file that was saved: its CRC-32 is " in said, said
    assert f"it is renamed to '{NEWER}.damaged', and the run goes on from '{OLDER}' when it starts again" in said
    assert_the_report_comes_first(said)
    assert checkpoints(stopped) == [OLDER, f"{NEWER}.damaged"]
    assert f"resuming from '{stopped}/out/checkpoints/{OLDER}'" in launch_alone(accel, stopped)


@pytest.mark.long(but="1")
@pytest.mark.parametrize("processes", [1, 4])
def test_other_ranks_than_those_that_wrote_a_shard_find_its_damage_together(accel, stopped, processes):
    path = newer(stopped) / SHARDS[3]
    flip(path, path.stat().st_size // 2)
    more = {"processes": processes, "data.batch_size": 8 // processes}
    assert "is not the file that was saved" in launch(accel, stopped, code=6, **more)
    # What is checked is whole, and nothing is said then.
    said = launch(accel, stopped, **more)
    assert f"resuming from '{stopped}/out/checkpoints/{OLDER}'" in said and "with their sums" not in said


def test_a_restart_goes_on_from_the_older_checkpoint(accel, stopped):
    path = newer(stopped) / SHARDS[0]
    flip(path, path.stat().st_size // 2)
    said = launch(accel, stopped, **{"launch.max_restarts": 1})
    assert_the_report_comes_first(said)
    assert "restart 1 of 1" in said and f"resuming from '{stopped}/out/checkpoints/{OLDER}'" in said
    assert checkpoints(stopped) == sorted([OLDER, NEWER, f"{NEWER}.damaged", f"checkpoint_{3 * N}"])


def test_a_damaged_checkpoint_that_is_named_or_the_only_one_stays(accel, stopped):
    path = newer(stopped) / SHARDS[2]
    flip(path, path.stat().st_size // 2)
    shutil.rmtree(stopped / "out/checkpoints" / OLDER)
    for resume, output in [("auto", "out"), (str(newer(stopped)), "other")]:
        said = launch(accel, stopped, code=6, **{"checkpoint.resume": resume, "output_dir": str(stopped / output)})
        assert "is not the file that was saved" in said
        assert checkpoints(stopped) == [NEWER]
    said = launch(accel, stopped, steps=2 * N + 1, **{"checkpoint.verify_on_resume": "none"})
    assert f"resuming from '{newer(stopped)}'" in said


@pytest.mark.long(but="FULL_STATE_DICT-pytorch_model_fsdp.bin")
@pytest.mark.parametrize("form, name", [("FULL_STATE_DICT", "pytorch_model_fsdp.bin"),
                                        ("LOCAL_STATE_DICT", "pytorch_model_fsdp_rank1.bin")])
def test_other_forms_have_sums(accel, tmp_path, form, name):
    options = {"fsdp_config.fsdp_state_dict_type": form, "fsdp_config.fsdp_version": 1}
    resume_cases.prepare(tmp_path, {})
    launch(accel, tmp_path, steps=N, **options)
    path = tmp_path / "out/checkpoints" / OLDER / name
    flip(path, path.stat().st_size // 2)
    said = launch(accel, tmp_path, code=6, steps=N + 1, **options)
    assert f"'{name}' is not the file that was saved" in said, said
    flip(path, path.stat().st_size // 2)
    said = launch(accel, tmp_path, steps=N + 1, **options)
    assert f"resuming from '{path.parent}'" in said and "with their sums" not in said


SMALL = ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "random_states_0.json", "random_states_1.json",
         "trainer_state.json", "scheduler.bin", "accel_manifest.json"]


def test_a_changed_or_broken_small_file_is_set_aside_before_there_are_ranks(accel, stopped):
    """A file that cannot be read at all is damage, too."""
    for name in SMALL:
        for change in ("byte", "text"):
            whole = stopped / "whole"
            shutil.copytree(newer(stopped), whole)
            path = newer(stopped) / name
            if change == "text":
                path.write_bytes(path.read_bytes()[:-8] + b"garbage!")
            else:
                flip(path, path.stat().st_size // 2 if name != "accel_manifest.json" else path.read_bytes().index(b'"crc32"') + 10)
            said = launch_alone(accel, stopped)
            assert f"warning: skipping '{newer(stopped)}': " in said and pathlib.Path(name).name in said, (name, change, said)
            assert f"resuming from '{stopped}/out/checkpoints/{OLDER}'" in said
            shutil.rmtree(f"{newer(stopped)}.damaged")
            whole.rename(newer(stopped))


def seal(checkpoint, name):
    """Makes the manifest say that the file `name` is as it is now."""
    manifest = json.loads((checkpoint / "accel_manifest.json").read_text())
    data = (checkpoint / name).read_bytes()
    for file in manifest["files"]:
        if file["name"] == name:
            file.update(bytes=len(data), crc32=zlib.crc32(data))
    (checkpoint / "accel_manifest.json").write_text(json.dumps(manifest))


def change_state(checkpoint, **values):
    path = checkpoint / "trainer_state.json"
    state = json.loads(path.read_text())
    for key, value in values.items():
        (state["data"] if key in state["data"] else state)[key] = value
    path.write_text(json.dumps(state))


def test_a_state_that_contradicts_itself_is_set_aside_without_any_sum(accel, stopped):
    for values, why in [({"step": N, "optimizer_steps": N, "parameter_steps": N}, f"is of step {N}"),
                        ({"samples_done": 10**15}, "has done 1000000000000000 samples of an epoch of 93"),
                        ({"world_size": 4}, "is of 4 ranks"), ({"optimizer_steps": 10**9}, "'optimizer_steps' is 1000000000")]:
        whole = stopped / "whole"
        shutil.copytree(newer(stopped), whole)
        change_state(newer(stopped), **values)
        seal(newer(stopped), "trainer_state.json")
        said = launch_alone(accel, stopped)
        assert f"warning: skipping '{newer(stopped)}': " in said and why in said, said
        shutil.rmtree(f"{newer(stopped)}.damaged")
        whole.rename(newer(stopped))


@pytest.mark.parametrize("name, source, why", [
    ("optimizer_0", f"{OLDER}/optimizer_0", f"is of an optimizer after {N} steps, and trainer_state.json says {2 * N}"),
    ("random_states_1.json", f"{NEWER}/random_states_0.json", "is of rank 0"),
    ("random_states_1.json", f"{OLDER}/random_states_1.json", f"is of step {N}, and the checkpoint of step {2 * N}")])
def test_files_of_another_step_or_rank_are_named_without_any_sum(accel, stopped, name, source, why):
    old, new = stopped / "out/checkpoints" / source, newer(stopped) / name
    if old.is_dir():
        shutil.rmtree(new)
        shutil.copytree(old, new)
        for path in new.iterdir():
            seal(newer(stopped), f"{name}/{path.name}")
    else:
        shutil.copyfile(old, new)
        seal(newer(stopped), name)
    assert why in launch(accel, stopped, code=6)


def test_a_name_that_is_taken_is_noticed_before_any_step(accel, stopped):
    """A file or a dangling link has the name of the next checkpoint."""
    next_one = stopped / f"out/checkpoints/checkpoint_{3 * N}"
    metrics = (stopped / "out/metrics.jsonl").read_text()
    for make in (lambda: next_one.write_text(""), lambda: next_one.symlink_to("nowhere")):
        make()
        assert f"'{next_one}' is " in launch(accel, stopped, code=2)
        next_one.unlink()
    assert (stopped / "out/metrics.jsonl").read_text() == metrics


class TwoOutputs(torch.nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.gpt = train_runs.GPT(**train_runs.SIZES, dropout=dropout)

    def forward(self, input_ids: torch.Tensor):
        logits = self.gpt(input_ids)
        return logits, 2 * logits


def test_changes_that_numbers_depend_on_are_named(accel, tmp_path):
    """Another model of equal shapes, another dtype of the reduction and another output."""
    case = {"mixed_precision": "bf16"}
    resume_cases.prepare(tmp_path, case)
    torch.jit.script(TwoOutputs(0.1)).save(tmp_path / "gpt.pt")
    accel("launch", resume_cases.config(tmp_path, case, 1))
    torch.jit.script(TwoOutputs(0.5)).save(tmp_path / "gpt.pt")
    said = accel("launch", resume_cases.config(tmp_path, case, 2, **{
        "fsdp_config.fsdp_reduce_dtype": "fp32", "model.output": "1", "checkpoint.verify_on_resume": "full"})).stderr
    assert "resuming: fsdp_config.reduce_dtype was bfloat16 and is float32" in said, said
    assert "resuming: training.model.output was 0 and is 1" in said
    assert "resuming: graph of training.model.path (CRC-32 of its methods) was " in said
    assert said.count("resuming: ") == 3


def test_a_data_file_that_the_manifest_does_not_list_ends_the_launch(accel, stopped):
    """Nothing says that its bytes are those that were saved."""
    file = newer(stopped) / "accel_manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"] = [listed for listed in manifest["files"] if listed["name"] != SHARDS[1]]
    file.write_text(json.dumps(manifest))
    said = launch(accel, stopped, code=6)
    assert f"{SHARDS[1]}' holds tensors, and accel_manifest.json does not list it" in said
    assert "mismatch: " in accel("verify", newer(stopped), code=3).stdout


@pytest.mark.parametrize("name", ["trainer_state.json", "accel_manifest.json"])
def test_a_checkpoint_of_a_newer_version_stays_and_ends_the_launch(accel, stopped, name):
    file = newer(stopped) / name
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "version": state["version"] + 1}))
    if name != "accel_manifest.json":
        seal(newer(stopped), name)
    said = launch_alone(accel, stopped, code=2)
    assert f"is of version {state['version'] + 1}, and this accel reads {state['version']}" in said and "a newer accel wrote it" in said
    assert checkpoints(stopped) == [OLDER, NEWER]


def test_a_run_without_checkpoints_does_not_read_those_that_are_there(accel, stopped):
    file = newer(stopped) / "trainer_state.json"
    file.write_text(json.dumps({"version": 1}))
    seal(newer(stopped), "trainer_state.json")
    (stopped / "out/metrics.jsonl").unlink()
    launch_alone(accel, stopped, **{"checkpoint.every": 0, "checkpoint.resume": "none"})


def test_a_checkpoint_of_an_earlier_version_goes_on_without_a_word(accel, stopped):
    """Neither the random states nor the state of the run had all of the present entries."""
    checkpoint = newer(stopped)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    del state["parameter_steps"]
    state["settings"] = {key: value for key, value in state["settings"].items()
                         if not key.startswith(("fsdp_config", "graph", "launch", "training.model"))}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    seal(checkpoint, "trainer_state.json")
    for rank in (0, 1):
        random = json.loads((checkpoint / f"random_states_{rank}.json").read_text())
        del random["rank"], random["step"]
        (checkpoint / f"random_states_{rank}.json").write_text(json.dumps(random))
        seal(checkpoint, f"random_states_{rank}.json")
    said = launch(accel, stopped)
    assert f"resuming from '{checkpoint}'" in said and "resuming: " not in said


@pytest.mark.long(but="1-")
@pytest.mark.parametrize("below", ["", "pytorch_model_fsdp_0"])
@pytest.mark.parametrize("processes", [1, 2])
def test_weights_of_a_damaged_checkpoint_are_refused(accel, stopped, below, processes):
    """A run that begins with the weights of a checkpoint compares what it reads of them with their sums."""
    begins = {"checkpoint.resume": "none", "model.weights": str(newer(stopped) / below), "processes": processes, "steps": 1,
              "output_dir": str(stopped / "new"), "checkpoint.every": 0}
    launch(accel, stopped, **begins)
    flip(newer(stopped) / SHARDS[0], 100_000)
    (stopped / "new/metrics.jsonl").unlink()
    said = launch(accel, stopped, 6, **begins)
    assert f"{NEWER}/{SHARDS[0]}' is not the file that was saved" in said and "accel verify" in said
    assert NEWER in checkpoints(stopped) and not (stopped / "new/metrics.jsonl").exists()
    launch(accel, stopped, **{**begins, "checkpoint.verify_on_resume": "none"})


@pytest.mark.parametrize(("cwd", "weights"), [("", "pytorch_model_fsdp_0"), ("pytorch_model_fsdp_0", "."), ("..", NEWER)])
def test_damaged_weights_at_a_relative_path_are_refused(accel, stopped, cwd, weights):
    flip(newer(stopped) / SHARDS[0], 100_000)
    config = resume_cases.config(stopped, {}, **{"checkpoint.resume": "none", "model.weights": weights, "steps": 1,
                                                 "output_dir": str(stopped / "new"), "checkpoint.every": 0})
    said = accel("launch", config, code=6, cwd=newer(stopped) / cwd).stderr
    assert f"{NEWER}/{SHARDS[0]}' is not the file that was saved" in said
