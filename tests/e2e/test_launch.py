"""The launcher with scripts as its programs: failures, exit codes, output."""

import json
import re
import socket
import subprocess
import sys
import time

import needs
import pytest

import train_runs

PYTHON = sys.executable


@pytest.fixture
def launch(accel):
    """launch(SCRIPT, ranks=N) runs a bash script on N ranks."""

    def run(script, *flags, ranks=2, **options):
        port = () if "--main_process_port" in flags else ("--main_process_port", 0)
        return accel("launch", "--cpu", "--num_processes", ranks, *port, *flags, "--", "bash", "-c", script, **options)

    return run


def test_success(launch):
    result = launch("echo out $RANK of $WORLD_SIZE")
    assert result.stdout == "out 0 of 2\n"
    assert result.stderr == ""


def test_an_executable_file_is_a_program_whatever_it_holds(accel, tmp_path):
    program = tmp_path / "program"
    program.write_text("echo ran\n")
    program.chmod(0o755)
    said = accel("launch", "--cpu", "program", code=2).stderr
    assert "cannot run './program': Exec format error" in said and "hint: a script begins with a line such as #!/bin/sh" in said
    program.write_text("#!/bin/sh\necho ran\n")
    assert accel("launch", "--cpu", "program").stdout == "ran\n"
    (tmp_path / "script.py").write_text("#!/bin/sh\necho a script\n")
    (tmp_path / "script.py").chmod(0o755)
    assert accel("launch", "--cpu", "script.py").stdout == "a script\n"
    assert "not found along PATH" in accel("launch", "--cpu", "--", "program", code=2).stderr
    program.rename(tmp_path / "program.yaml")
    assert "program.yaml:2:" in accel("launch", "--cpu", "program.yaml", code=2).stderr


def test_a_failing_rank_is_reported(launch, tmp_path):
    result = launch("echo working; [ $RANK = 1 ] && { sleep 0.3; echo no luck >&2; exit 3; }; exec sleep 60",
                    "--log_dir", "logs", ranks=3, code=6)
    report = result.stderr[result.stderr.index("accel: error"):]
    assert "rank 1 of 3 failed: exit code 3" in report
    assert re.search(r"host: \S+, pid \d+", report)
    assert "    | no luck" in report
    assert "log: logs/attempt_0/rank_1/stderr.log" in report
    assert "rank 0: killed by SIGTERM (Terminated), after it was asked to stop" in report
    assert "rank 2: killed by SIGTERM (Terminated), after it was asked to stop" in report
    assert (tmp_path / "logs/attempt_0/rank_1/stderr.log").read_text() == "no luck\n"
    assert (tmp_path / "logs/attempt_0/rank_2/stdout.log").read_text() == "working\n"


def test_a_signal_is_named(launch):
    result = launch("[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60", code=6)
    assert "rank 1 of 2 failed: killed by SIGSEGV (Segmentation fault)" in result.stderr


def test_the_workers_own_error_is_shown(launch):
    error = json.dumps({"message": {"message": "ValueError: bad batch", "extraInfo": {"timestamp": "1"}}})
    result = launch(f"[ $RANK = 0 ] && {{ echo '{error}' >$TORCHELASTIC_ERROR_FILE; exit 1; }}; exec sleep 60", code=6)
    assert "  error: ValueError: bad batch\n" in result.stderr


@pytest.mark.long
def test_torch_elastics_record_is_understood(accel, tmp_path):
    (tmp_path / "train.py").write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise ValueError('from python')\nmain()\n")
    result = accel("launch", "--cpu", "--", PYTHON, "train.py", code=6)
    assert "  error: ValueError: from python\n" in result.stderr


def test_errors_as_json(accel):
    result = accel("--json", "launch", "--cpu", "--main_process_port", 0, "--", "bash", "-c", "exit 3", code=6)
    error = json.loads(result.stderr)
    assert error["kind"] == "worker" and error["exit_code"] == 6
    assert error["message"].startswith("rank 0 of 1 failed: exit code 3")


def test_preemption(launch):
    result = launch("exit 7", code=7)
    assert "stopped for preemption" in result.stderr


def test_nothing_starts_when_the_program_is_missing(accel):
    result = accel("launch", "--cpu", "--", "no-such-program", code=2)
    assert "program 'no-such-program' is not found along PATH" in result.stderr


def test_scratch_files_are_removed(launch, tmp_path):
    (tmp_path / "scratch").mkdir()
    result = launch("echo $TORCHELASTIC_ERROR_FILE; ls -d $(dirname $TORCHELASTIC_ERROR_FILE)",
                    env={"TMPDIR": str(tmp_path / "scratch")})
    assert result.stdout.startswith(str(tmp_path / "scratch/accel-"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_ten_megabytes_from_each_of_four_ranks(accel, tmp_path):
    """The output and the logs lose or break no line, even if the last rank crashes right after its output."""
    lines, width = 100_000, 104
    (tmp_path / "chatter.py").write_text(
        "import os, signal, sys\n"
        "rank = os.environ['RANK']\n"
        f"text = ''.join(f'{{rank}} {{i:06}} '.ljust({width - 1}, 'x') + '\\n' for i in range({lines}))\n"
        "stream = sys.stdout if rank == '0' else sys.stderr\n"
        "stream.write(text); stream.write('end without newline'); stream.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL) if rank == '3' else None\n")
    code = 6
    result = accel("launch", "--cpu", "--num_processes", 4, "--log_dir", "logs", "--set", "launch.grace_period=20", "--",
                   PYTHON, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); exec(open('chatter.py').read())",
                   code=code)

    def expected(rank, prefix=""):
        return [f"{prefix}{rank} {i:06} ".ljust(width - 1 + len(prefix), "x") for i in range(lines)] + \
            [f"{prefix}end without newline"]

    assert result.stdout.splitlines() == expected(0)
    shown = result.stderr.splitlines()
    for rank in (1, 2, 3):
        assert [line for line in shown if line.startswith(f"[rank{rank}] ")] == expected(rank, f"[rank{rank}] ")
    for rank in range(4):
        name = "stdout.log" if rank == 0 else "stderr.log"
        log = (tmp_path / f"logs/attempt_0/rank_{rank}" / name).read_text()
        assert log.splitlines() == expected(rank) and log.endswith("newline")


def test_a_reader_that_goes_away_stops_nothing(accel_path, tmp_path):
    shell = f"'{accel_path}' launch --cpu --log_dir logs -- bash -c 'seq 200000; touch finished' | head -1"
    result = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.stdout == "1\n"
    assert (tmp_path / "finished").exists()
    assert (tmp_path / "logs/attempt_0/rank_0/stdout.log").read_text().endswith("\n200000\n")


def test_training_hands_the_worker_its_configuration(accel, tmp_path):
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/bash\necho $RANK $ACCEL_CONFIG_FILE\n")
    worker.chmod(0o755)
    train_runs.export(tmp_path / "gpt.pt")
    (tmp_path / "data.txt").write_text("some bytes of text, enough for a step of two ranks")
    (tmp_path / "gpt.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\nlaunch: {worker: ./worker}\ntraining:\n"
        "  model: {path: gpt.pt}\n  data: {train: {format: text, path: data.txt, sequence_length: 8}}\n  max_steps: 5\n")
    result = accel("launch", "gpt.yaml", "--set", "training.optimizer.lr=1e-4")
    resolved = tmp_path / "runs/gpt/config.resolved.json"
    assert result.stdout == f"0 {resolved}\n"
    document = json.loads(resolved.read_text())
    assert document["training"]["optimizer"]["lr"] == 1e-4
    assert document["num_processes"] == 2
    for rank in (0, 1):
        assert (tmp_path / f"runs/gpt/logs/attempt_0/rank_{rank}/stdout.log").read_text() == f"{rank} {resolved}\n"


@pytest.mark.parametrize("name, said", [
    ("no-such-host.invalid", "'no-such-host.invalid' "),
    ("192.0.2.1", "'192.0.2.1' does not lead to this machine, on which rank 0 runs: "),
    ("224.0.0.1", "'224.0.0.1' does not lead to this machine, on which rank 0 runs: ")], ids=["unknown", "another's", "many"])
def test_a_wrong_main_process_ip_is_named_before_anything_starts(accel, tmp_path, name, said):
    begin = time.monotonic()
    result = accel("launch", "--cpu", "--main_process_ip", name, "--", "touch", "started", code=2)
    assert f"accel: error: --main-process-ip {name}: 'main_process_ip': {said}" in result.stderr
    assert "hint: on one machine leave it out: 127.0.0.1 is the default" in result.stderr
    assert time.monotonic() - begin < 20
    assert not (tmp_path / "started").exists()


def test_a_network_namespace_without_a_loopback(accel_path, tmp_path):
    """A single rank connects to nobody. Several ones learn why they cannot, and not to leave out what they left out."""
    command = ["unshare", "--net", accel_path, "launch", "--cpu"]
    if (probe := subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)).returncode != 0:
        needs.missing(f"a network namespace cannot be made here: {probe.stderr.strip()}")

    def run(*more):
        return subprocess.run([*command, *more, "--", "echo", "ran"], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    alone = run()
    assert (alone.returncode, alone.stdout) == (0, "ran\n"), alone.stderr
    several = run("--num-processes", "2")
    assert several.returncode == 2 and "'127.0.0.1' does not lead to this machine" in several.stderr
    assert "leave it out" not in several.stderr
    named = run("--main_process_ip", "127.0.0.1")
    assert named.returncode == 2 and "leave it out" in named.stderr


@pytest.mark.parametrize("name", ["localhost", socket.gethostname()])
def test_this_machines_names_are_taken(launch, name):
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        pytest.skip(f"this machine cannot resolve its own name '{name}': {error}")
    assert launch("echo $MASTER_ADDR", "--main_process_ip", name).stdout == f"{name}\n"


def test_a_flag_of_the_program_is_not_one_of_accel(accel, tmp_path):
    """Neither behind "--" nor behind a program that accel recognizes by its name."""
    (tmp_path / "script.py").write_text("")
    for words in (["--", "sh", "-c", "exit 3", "--json"], ["script.py", "--json"]):
        said = accel("launch", "--cpu", "--num-processes", "0", *words, code=2, cwd=tmp_path).stderr
        assert said.startswith("accel: error: --num-processes 0"), said
