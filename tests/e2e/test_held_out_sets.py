"""Further sets of held-out data: each has the numbers that torch computes, wherever a run shows them."""

import json
import re
import sys
import os

import pytest
from safetensors.torch import load_file

import train_runs
from test_evaluate import LENGTH, by_torch
from test_tensorboard import curve_of, curves

sys.path.append(os.environ.get("ACCEL_TENSORBOARD_PACKAGES", ""))


def records(directory, key):
    lines = map(json.loads, (directory / "out/metrics.jsonl").read_text().splitlines())
    return [record for record in lines if key in record]


def write_sets(directory):
    """Three files of different lengths; none is a multiple of the ranks' batches."""
    text = train_runs.TEXT.read_bytes()
    for name, begin, samples in (("main", 0, 37), ("wiki", 5000, 21), ("code", 9000, 5)):
        (directory / f"{name}.txt").write_bytes(text[begin:begin + LENGTH * samples + 1])
    return {"data.eval": {"format": "text", "path": str(directory / "main.txt"), "sequence_length": LENGTH}}


def prepare(directory, **keys):
    train_runs.export(directory / "gpt.pt")
    held_out = write_sets(directory)
    return train_runs.config(directory, 2, **{
        "max_steps": 6, "eval_every": 3, "checkpoint": {"every": 3}, **held_out, **keys})


@pytest.fixture(scope="module")
def run(accel_path, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sets")
    sets = {"wiki": str(directory / "wiki.txt"), "code": str(directory / "code.txt")}
    config = prepare(directory, **{"data.eval_sets": sets, "metrics.tensorboard": True})
    process = train_runs.start(accel_path, config, directory)
    said = process.stdout.read()
    assert process.wait(120) == 0, said
    return directory, config, said


@pytest.mark.long
def test_each_set_has_what_torch_computes(accel, tmp_path, run):
    directory, config, _ = run
    for step in (3, 6):
        accel("merge-weights", directory / f"out/checkpoints/checkpoint_{step}", tmp_path / f"{step}")
        weights = load_file(tmp_path / f"{step}/model.safetensors")
        for prefix, name in (("eval_", "main"), ("eval_wiki_", "wiki"), ("eval_code_", "code")):
            loss, accuracy, _ = by_torch(weights, directory / f"{name}.txt")
            [record] = [record for record in records(directory, prefix + "loss") if record["step"] == step]
            assert record[prefix + "loss"] == pytest.approx(loss, rel=1e-5)
            assert record[prefix + "accuracy"] == pytest.approx(accuracy, abs=1e-12)
            assert record.get("eval_set", "main") == name
    found = json.loads(accel("evaluate", config, "--json").stdout)["results"]
    assert [(result.get("set"), result["data"]) for result in found] == [
        (None, str(directory / "main.txt")), ("code", str(directory / "code.txt")), ("wiki", str(directory / "wiki.txt"))]
    assert [result["loss"] for result in found] == [
        records(directory, f"eval_{name}loss")[-1][f"eval_{name}loss"] for name in ("", "code_", "wiki_")]
    assert f"wiki ({directory}/wiki.txt)" in accel("evaluate", config).stdout


def test_one_set_alone_is_reported_as_if_there_were_no_others(accel, tmp_path, run):
    accel("launch", prepare(tmp_path))
    def without_times(directory):
        found = []
        for record in records(directory, "step"):
            if "checkpoint" not in record and "eval_set" not in record and "run_time_s" not in record:
                found.append(json.dumps({key: value for key, value in record.items()
                                         if not key.endswith(("_s", "time", "_bytes"))}))
        return found

    assert without_times(tmp_path) == without_times(run[0])
    assert not [key for record in records(tmp_path, "step") for key in record if "wiki" in key or key == "eval_set"]


def test_log_watch_report_and_check_show_each_set(accel, run):
    directory, config, said = run
    last = {name: records(directory, f"eval_{name}loss")[-1][f"eval_{name}loss"] for name in ("", "wiki_", "code_")}
    assert f"step 6  held-out loss {last['']:.6f}  perplexity" in said
    assert f"step 6  wiki held-out loss {last['wiki_']:.6f}  perplexity" in said
    shown = accel("watch", "--once", directory / "out").stdout
    assert f"held-out loss {last['']:.4f} at step 6  code {last['code_']:.4f}  wiki {last['wiki_']:.4f}" in shown
    accel("report", directory / "out", "--output", directory / "page.html")
    assert re.search(r"wiki held-out loss", (directory / "page.html").read_text())
    checked = accel("check", config).stdout
    assert re.search(r"training\.data\.eval_sets +\{code: .*code\.txt, wiki: .*wiki\.txt\}", checked)
    story = json.loads(accel("doctor", directory / "out", "--json").stdout)
    assert last[""] in [value for value in story.get("run", story).values() if isinstance(value, float)]


@pytest.mark.long
def test_tensorboard_has_a_tag_for_each_set(run):
    tags = curves(run[0] / "out/tensorboard")
    for name in ("wiki", "code"):
        for what in ("loss", "accuracy", "perplexity"):
            assert tags[f"eval/{name}_{what}"] == curve_of(records(run[0], f"eval_{name}_loss"), f"eval_{name}_{what}")


@pytest.mark.parametrize("sets, says", [
    ({"wiki": "nowhere.txt"}, r"training\.data\.eval_sets': nothing matches 'nowhere\.txt'"),
    ({"a b": "main.txt"}, r"training\.data\.eval_sets' has the name 'a b'"),
    ({"wiki": "empty.txt"}, r"training\.data\.eval_sets': 'wiki': 1 tokens make 0 samples"),
])
def test_a_wrong_set_is_refused_before_any_rank_starts(accel, tmp_path, sets, says):
    write_sets(tmp_path)
    (tmp_path / "empty.txt").write_bytes(b"x")
    sets = {name: path if path == "nowhere.txt" else str(tmp_path / path) for name, path in sets.items()}
    said = accel("launch", prepare(tmp_path, **{"data.eval_sets": sets}), code=2).stderr
    assert re.search(says, said) and "rank" not in said
    assert not (tmp_path / "out/metrics.jsonl").exists()


def test_sets_need_the_main_one(accel, tmp_path):
    config = prepare(tmp_path, **{"data.eval": None, "data.eval_sets": {"wiki": str(tmp_path / "wiki.txt")}, "eval_every": 0})
    assert "'training.data.eval_sets' needs training.data.eval" in accel("check", config, code=2).stderr
