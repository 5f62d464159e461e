"""What tools/gpu-check does, as far as a machine without GPUs can show: the order of its stages, their limits and records,
and that its tests and benchmarks judge rightly."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/gpu")]
import gpu_runs  # noqa: E402
import gpu_step  # noqa: E402
import test_gpu_sanitizer as sanitizer  # noqa: E402


def load(path):
    spec = importlib.util.spec_from_loader(path.name.replace("-", "_"), importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path)))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load(ROOT / "tools/gpu-check")


def shell(name, text, limit_s=60, **more):
    return check.Stage(name, limit_s, [["sh", "-c", text]], **more)


def results(out):
    return {row["stage"]: row for row in map(json.loads, (out / "results.jsonl").read_text().splitlines())}


def test_each_result_is_on_disk_when_the_next_stage_runs_and_a_failure_ends_no_other(tmp_path):
    out = tmp_path / "out"
    stages = [shell("first", "echo said; exit 3"), shell("second", "grep first {out}/results.jsonl && grep first {out}/summary.txt"),
              check.Stage("third", 60, [["no-such-program"], ["sh", "-c", "touch {out}/went_on"]]),
              shell("fourth", "true", needs="no-such-program")]
    assert not check.run(stages, out)
    found = results(out)
    assert {name: row["status"] for name, row in found.items()} == {
        "first": "failed", "second": "ok", "third": "failed", "fourth": "skipped"}
    assert "ended with 3" in found["first"]["why"] and "said" in (out / "first.log").read_text()
    assert "cannot run no-such-program" in found["third"]["why"] and (out / "went_on").exists()
    assert check.run(stages[1:2] + stages[3:], tmp_path / "other") is False  # There the first has no result.
    assert check.run(stages[3:], tmp_path / "skipped") is True


def test_a_stage_that_takes_too_long_ends_with_its_children_and_the_time_of_all_is_limited(tmp_path):
    out = tmp_path / "out"
    endless = check.Stage("endless", 1, [["sh", "-c", "sleep 1000 & echo $! > {out}/pid; wait"], ["touch", "{out}/went_on"]])
    assert not check.run([endless, shell("next", "true")], out)
    assert results(out)["endless"] == {**results(out)["endless"], "status": "failed", "why": "timed out"}
    assert results(out)["next"]["status"] == "ok" and not (out / "went_on").exists()
    state = pathlib.Path("/proc", (out / "pid").read_text().strip(), "stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not check.run([shell("long", "sleep 1000", limit_s=1000), shell("late", "true")], tmp_path / "over", total_s=1)
    found = results(tmp_path / "over")
    assert (found["long"]["why"], found["late"]["status"]) == ("timed out", "not run")


@pytest.mark.long
def test_tests_of_which_none_passed_are_no_success(tmp_path):
    for name, body in (("passes", "pass"), ("skips", "import pytest; pytest.skip('why')"), ("fails", "assert 0")):
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    stages = [check.Stage(name, 60, [check.pytest(name, *(str(tmp_path / f"test_{file}.py") for file in files))])
              for name, files in (("good", ["passes", "skips"]), ("bad", ["passes", "fails"]), ("none", ["skips"]))]
    assert not check.run(stages, tmp_path / "out")
    found = results(tmp_path / "out")
    assert {name: row["status"] for name, row in found.items()} == {"good": "ok", "bad": "failed", "none": "failed"}
    assert found["bad"]["tests"] == {"passed": 1, "failed": 1, "skipped": 0}
    assert found["none"]["why"] == "no test passed"


def test_numbers_of_a_benchmark_are_in_the_summary(tmp_path, capsys):
    row = {"row": "accel", "tokens_per_s": 1234.5, "mfu": 0.4567, "peak_bytes": 2e9, "host_s": 0.0123}
    stage = shell("bench", f"printf '%s' '{json.dumps([row, {**row, 'mfu': None}])}' > {{out}}/bench.json")
    assert check.run([stage], tmp_path / "out")
    assert results(tmp_path / "out")["bench"]["numbers"][0] == row
    said = capsys.readouterr().out
    assert "accel: 1234 tokens/s, MFU 45.7%, 2.00 GB, host 12.3 ms" in said and "MFU unknown" in said


@pytest.mark.long
def test_every_test_of_the_suite_is_in_one_stage(accel_path):
    def collected(command):
        words = [word for word in command if not word.startswith("--junitxml") and word not in ("-n", "-q")]
        words = [word for word in words if not word.isdigit()]
        said = subprocess.run([*words, "--collect-only", "-q"], cwd=ROOT, capture_output=True, text=True).stdout
        return [line for line in said.splitlines() if "::" in line]

    stages = {stage.name: stage.commands[-1] for stage in check.plan(str(accel_path)) if "tests/gpu" in stage.commands[-1]}
    found = {name: collected(command) for name, command in stages.items()}
    assert all(found.values()), found
    assert sorted(sum(found.values(), [])) == sorted(collected([sys.executable, "-m", "pytest", "tests/gpu", "-m", "not sim"]))


@pytest.mark.long(but="gloo-2")
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_the_collectives_of_cpu_ranks_are_those_that_nccl_is_asked_for(accel, accel_path, backend, ranks):
    gpu_runs.collectives(accel, accel_path, backend, "cpu", "shut_down", ranks, where=["--cpu"])


@pytest.mark.parametrize("errors", [0, 1])
def test_errors_that_a_sanitizer_counts_fail_its_test(accel_path, tmp_path, monkeypatch, errors):
    """The sanitizer is not here. A program in its place runs the command, and writes the line that it ends with."""
    program = tmp_path / "bin/compute-sanitizer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nwhile [ $# != 0 ]; do case $1 in --log-file) log=$2; shift 2;; --*) shift 2;; *) break;; esac; done\n"
                       f'echo "========= ERROR SUMMARY: {errors} errors" > "$(echo "$log" | sed s/%p/$$/)"\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sanitizer, "GPU", gpu_runs.CPU)
    if errors == 0:
        sanitizer.test_two_steps_are_clean_under_memcheck(accel_path, tmp_path)
    else:
        with pytest.raises(AssertionError, match="1 errors"):
            sanitizer.test_two_steps_are_clean_under_memcheck(accel_path, tmp_path)


def test_the_operations_of_a_model_are_those_that_torch_counts():
    """torch counts forward; backward has twice its products."""
    sizes, batch = gpu_step.MODELS["tiny"]
    with torch.device("meta"):
        model = gpu_step.GPT(**sizes)
        ids = torch.zeros(batch, sizes["length"], dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert 3 * counter.get_total_flops() == gpu_step.flops_per_token(model, sizes) * ids.numel()
