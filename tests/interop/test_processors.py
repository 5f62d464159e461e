"""The settings of `tools/dev test --processors` reach the programs that compute numbers."""

import json
import pathlib

import peers
import processors
import pytest

import train_runs


def environment_of(pid):
    entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


@pytest.fixture
def setting(monkeypatch):
    """The variables of a setting in which everything differs from what this machine would choose."""
    wanted = processors.Setting("other", "default", "SSE41", "SSE4_2", 3).environment()
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    return wanted


def test_a_setting_reaches_the_workers(accel_path, tmp_path, setting):
    train_runs.export(tmp_path / "gpt.pt")
    launcher = train_runs.start(accel_path, train_runs.config(tmp_path, 2, max_steps=1_000_000), tmp_path)
    try:
        train_runs.wait_for_step(tmp_path, launcher)
        for rank in (0, 1):
            found = environment_of(train_runs.worker_of(rank, launcher.pid))
            assert {name: found.get(name) for name in setting} == setting
    finally:
        launcher.terminate()
        launcher.communicate(timeout=60)


@pytest.mark.long
def test_a_setting_reaches_the_peers(tmp_path, setting):
    script = tmp_path / "peer.py"
    script.write_text("import json, os, sys, torch\n"
                      "found = {**os.environ, 'capability': torch.backends.cpu.get_cpu_capability(), 'threads': torch.get_num_threads()}\n"
                      "open(sys.argv[1], 'w').write(json.dumps(found))\n")
    server = peers.Server(tmp_path / "server.log")
    try:
        server.run(1, tmp_path / "peer.log", script, tmp_path / "found.json")
    finally:
        server.close()
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name: found.get(name) for name in setting} == setting
    assert found["capability"] == "DEFAULT"
    assert found["threads"] == 3


def test_a_setting_that_the_processor_does_not_have_is_skipped_by_name(monkeypatch, capsys):
    monkeypatch.setattr(processors, "processor_flags", lambda: frozenset({"avx2", "fma"}))
    monkeypatch.setattr(processors, "run", lambda setting: pytest.fail(f"{setting.name} ran"))
    assert processors.main(["avx512", "amx"]) == 1
    said = capsys.readouterr().err
    assert "no setting ran" in said
    assert "SKIPPED: the processor does not have avx512bw, avx512dq, avx512f, avx512vl" in said


def test_a_failure_is_in_the_table_and_in_the_exit_code(monkeypatch, capsys):
    def failing(setting):
        result = processors.Result(setting, passed=7)
        result.add("test-train", -11, pathlib.Path("none.xml"))
        return result

    monkeypatch.setattr(processors, "run", failing)
    assert processors.main(["sse4"]) == 1
    assert "FAILED sse4: test-train ended with exit code -11" in capsys.readouterr().out
    assert processors.main(["x"]) == 2
