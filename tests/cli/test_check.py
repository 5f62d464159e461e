"""`accel check` resolves what `accel launch` resolves, makes the errors that it makes, and points at the right places."""

import json
import pathlib
import shlex
import shutil

import pytest

HERE = pathlib.Path(__file__).parent
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def work(tmp_path):
    return shutil.copytree(HERE / "inputs", tmp_path / "work")


def wrong_launches():
    """The golden launches that end before anything is started."""
    for case in sorted((HERE / "golden").glob("launch_*.golden")):
        command, code, *_ = case.read_text().splitlines()
        if code == "exit code 2":
            yield pytest.param(shlex.split(command)[2:], id=case.stem)


@pytest.mark.parametrize("arguments", list(wrong_launches()))
def test_an_error_is_that_of_launch(accel, work, arguments):
    launched, checked = (accel(command, *arguments, code=2, cwd=work, env=NO_GPU).stderr
                         for command in ("launch", "check"))
    assert checked.replace("check", "launch") == launched


def test_launches_with_errors_are_found():
    assert len(list(wrong_launches())) >= 15


# Keys whose value in the file that the ranks read has another form.
OTHER_FORM = {"fsdp_config.backward_prefetch", "fsdp_config.reduce_dtype", "launch.log_dir", "launch.tee", "main_process_port",
              "training.checkpoint.host_memory", "training.epochs", "training.lr_scheduler.total_steps"}


def flat(document, path=()):
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from flat(value, (*path, key))
    else:
        yield ".".join(path), document


def test_values_are_those_that_the_ranks_get(accel, work):
    flags = ["good.yaml", "--num-processes", 4, "--set", "training.optimizer={lr: 1e-4, betas: [0.8, 0.9]}",
             "--set", "training.checkpoint={every: 3, total_limit: 2}", "--hang-timeout", 60]
    accel("launch", *flags, cwd=work, env=NO_GPU)
    ranks = dict(flat(json.loads((work / "runs/good/config.resolved.json").read_text())))
    checked = json.loads(accel("check", "--json", *flags, cwd=work, env=NO_GPU).stdout)
    assert checked["type"] == "check" and checked["warnings"] == []
    common = [row for row in checked["values"] if row["key"] in ranks and row["key"] not in OTHER_FORM]
    assert len(common) >= 80
    for row in common:
        found = ranks[row["key"]]
        # A text, a list or a map that is not set is null.
        assert row["value"] == (None if found in ("", [], {}) and row["value"] is None else found), row
    values = {row["key"]: (row["value"], row["source"]["where"]) for row in checked["values"]}
    assert values["num_processes"] == (ranks["num_processes"], "--num-processes 4")
    assert values["fsdp_config.version"] == (ranks["fsdp_config.version"], "good.yaml:6:17")


def test_a_place_in_a_file_is_that_of_the_value(accel, work):
    lines = (work / "by_accelerate.yaml").read_text().splitlines()
    rows = json.loads(accel("check", "--json", "by_accelerate.yaml", cwd=work, env=NO_GPU).stdout)["values"]
    placed = [row for row in rows if row["source"]["kind"] == "file"]
    assert len(placed) >= 25
    for row in placed:
        name, line, column = row["source"]["where"].split(":")
        assert name == "by_accelerate.yaml"
        text = lines[int(line) - 1]
        assert row["key"].rsplit(".", 1)[-1] in text, row
        if row["value"] == "(not checked)":
            continue
        value = row["value"][0] if isinstance(row["value"], list) else row["value"]
        expected = row.get("written", json.dumps(value).strip('"'))
        assert text[int(column) - 1:].startswith(expected), row


def test_the_form_of_a_value_as_json(accel, work):
    document = json.loads(accel("check", "--json", "by_accelerate.yaml", cwd=work, env=NO_GPU).stdout)
    assert {"type", "values", "warnings", "without_effect"} <= document.keys()
    rows = {row["key"]: row for row in document["values"]}
    assert rows["training.seed"] == {"key": "training.seed", "value": 42, "source": {"kind": "default", "where": None}}
    assert rows["fsdp_config.backward_prefetch"] == {
        "key": "fsdp_config.backward_prefetch", "value": "BACKWARD_PRE", "written": "BACKWARD_POST",
        "source": {"kind": "file", "where": "by_accelerate.yaml:8:27"}}
    assert any(warning.startswith("by_accelerate.yaml:8:27: ") for warning in document["warnings"])
    assert any("'debug' has no effect" in line for line in document["without_effect"])


def test_nothing_is_written(accel, work):
    before = sorted(work.rglob("*"))
    accel("check", "good.yaml", cwd=work, env=NO_GPU)
    assert sorted(work.rglob("*")) == before


def test_maps_are_shown_as_they_are_written(accel, work):
    (work / "other.txt").write_text("nine bytes")
    maps = {"training.data.train.mixture": {"other.txt": "2.5", "*.txt": "1.0"}, "training.model.rename": {"^a": "b"},
            "training.model.metrics": {"aux": "1"}, "training.data.eval_sets": {"more": "other.txt"}}
    flags = [part for key, value in maps.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    evaluates = ["--set", "training.data.eval={format: text, path: other.txt, sequence_length: 8}", "--set", "training.eval_every=1"]
    document = json.loads(accel("check", "--json", "good.yaml", "--set", "training.data.train.path=null", "--set", "launch.preflight=false",
                                "--set", "training.model={weights: gpt.pt, init: {std: null}}", *evaluates, *flags, cwd=work, env=NO_GPU).stdout)
    rows = {row["key"]: row["value"] for row in document["values"]}
    for key, value in maps.items():
        assert rows[key] == value, key
