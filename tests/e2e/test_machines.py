"""Runs on several machines: they find each other, compute as one machine does, and end together whatever happens."""

import os
import re
import signal
import subprocess
import sys
import time

import needs
import pytest
import train_runs
from launching import wait_for
from machines import machines  # noqa: F401

SHOW = ["--cpu", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR >&2"]


def finish(runs, timeout=60):
    ended = [run.finish(timeout) for run in runs]
    for run in runs:
        run.assert_nobody_is_left()
    return ended


def codes(ended):
    return [code for code, _, _ in ended]


def said_by(ended):
    return [err for _, _, err in ended]


def test_ranks_are_numbered_over_all_machines(machines):
    hosts = machines(3)
    ended = finish(machines.launch(hosts, "--num-processes", 6, *SHOW))
    assert codes(ended) == [0, 0, 0], said_by(ended)
    lines = [line.split("] ")[-1].split() for said in said_by(ended) for line in said.splitlines() if not line.startswith("accel")]
    assert sorted(lines) == [[str(rank), str(rank % 2), "6", "2", str(rank // 2), "3", hosts[0].address] for rank in range(6)]


def test_machines_may_have_different_numbers_of_ranks(machines):
    hosts = machines(2)
    common = ["--num-machines", 2, "--main-process-ip", hosts[0].address, "--num-processes", 3]
    runs = [machines.begin(host, "/tmp", *common, "--machine-rank", i, "--set", f"launch.local_processes={i + 1}", *SHOW)
            for i, host in enumerate(hosts)]
    ended = finish(runs)
    assert codes(ended) == [0, 0], said_by(ended)
    assert "[rank2] 2 1 3 2 1 2" in said_by(ended)[1] and "0 0 3 1 0 2" in said_by(ended)[0]


@pytest.mark.long(but="2 machines")
@pytest.mark.parametrize("count, options", [
    (2, {}),
    (4, {"processes": 4}),
    (2, {"processes": 4, "parallelism_config.dp_replicate_size": 2, "parallelism_config.dp_shard_size": 2}),
], ids=["2 machines", "4 machines", "hybrid"])
def test_losses_are_those_of_one_machine(machines, accel, tmp_path, count, options):
    options = dict(options)
    processes = options.pop("processes", 2)
    train_runs.export(tmp_path / "gpt.pt")
    run = {"max_steps": 8, "checkpoint": {"every": 4}, **options}
    accel("launch", train_runs.config(tmp_path, processes, **run))
    expected = train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "alone")
    hosts = machines(count)
    ended = finish(machines.launch(hosts, train_runs.config(tmp_path, processes, **run)), 120)
    assert codes(ended) == [0] * count, said_by(ended)
    assert train_runs.metrics(tmp_path) == pytest.approx(expected, rel=1e-5)
    accel("verify", tmp_path / "out/checkpoints/checkpoint_8")
    said = [said for said in said_by(ended) if said]
    assert f"machine 1 of {count}: ranks {processes // count} to" in said[1]


def test_a_run_on_one_machine_goes_on_on_two(machines, accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, 2, max_steps=4, checkpoint={"every": 4}, lr_scheduler={"type": "constant"}))
    hosts = machines(2)
    run = train_runs.config(tmp_path, 2, max_steps=6, checkpoint={"every": 6, "resume": "auto"}, lr_scheduler={"type": "constant"})
    ended = finish(machines.launch(hosts, run), 120)
    assert codes(ended) == [0, 0], said_by(ended)
    assert "step 4 of 6" in said_by(ended)[0] and (tmp_path / "out/checkpoints/checkpoint_6").is_dir()
    ended = finish(machines.launch(hosts, run), 120)
    assert codes(ended) == [0, 0] and "nothing to do" in said_by(ended)[0]


def test_a_failure_ends_all_machines_with_one_report(machines):
    ended = finish(machines.launch(machines(2), "--num-processes", 4, "--cpu", "--", "sh", "-c", "[ $RANK = 3 ] && exit 9; sleep 60"))
    assert codes(ended) == [6, 6]
    assert all("rank 3 of 4 failed: exit code 9" in said for said in said_by(ended))


@pytest.fixture
def sleepers(machines):
    """A run on two machines whose ranks sleep, once it has begun."""
    hosts = machines(2)
    runs = machines.launch(hosts, "--num-processes", 4, "--cpu", "--set", "launch.heartbeat_timeout=6", "--", "sleep", "300")
    for run in runs:
        wait_for(lambda: sum("sleep 300" in line and "launch" not in line for line in run.survivors()) == 2, 20)
    return hosts, runs


@pytest.mark.parametrize("victim", [0, 1])
def test_a_launcher_that_is_killed_ends_the_run(sleepers, victim):
    _, runs = sleepers
    os.kill(runs[victim].pid, signal.SIGKILL)
    began = time.monotonic()
    code, _, said = runs[1 - victim].finish()
    assert code == 6 and f"machine {victim} (" in said and "is lost: its launcher has ended" in said
    assert time.monotonic() - began < 10
    for run in runs:
        run.assert_nobody_is_left()


@pytest.mark.long
def test_a_machine_that_is_cut_off_ends_the_run_on_both_sides(sleepers):
    hosts, runs = sleepers
    hosts[1].cut_off()
    ended = finish(runs, 60)
    assert codes(ended) == [6, 6]
    assert f"at {hosts[1].address}) is lost: no heartbeat from its launcher for 6 s" in said_by(ended)[0]
    assert f"machine 0 ({hosts[0].address}) is lost: no heartbeat" in said_by(ended)[1]


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_to_one_launcher_ends_the_run_everywhere(sleepers, number, code):
    _, runs = sleepers
    os.kill(runs[1].pid, number)
    ended = finish(runs)
    assert codes(ended) == [code, code]
    assert f"{number.name} on another machine: passed on to the workers" in said_by(ended)[0]


def test_a_scheduler_may_signal_all_launchers(machines, tmp_path):
    (tmp_path / "ends.py").write_text("import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), sys.exit(5)))\n"
                                      "print('ready', file=sys.stderr, flush=True)\ntime.sleep(100)\n")
    runs = machines.launch(machines(2), "--num-processes", 2, "--cpu", "--", sys.executable, tmp_path / "ends.py")
    for run in runs:
        wait_for(lambda: sum("ends.py" in line and "launch" not in line for line in run.survivors()) == 1, 20)
    time.sleep(0.5)
    for run in runs:
        os.kill(run.pid, signal.SIGTERM)
        time.sleep(0.5)  # The second launcher has heard of it from the first by now.
    ended = finish(runs)
    assert not any("a second signal" in said for said in said_by(ended)), said_by(ended)
    assert codes(ended)[0] == codes(ended)[1]


def test_a_second_signal_ends_the_wait_for_the_others(sleepers):
    _, runs = sleepers
    os.kill(runs[1].pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            os.kill(runs[0].pid, signal.SIGTERM)
            time.sleep(0.5)
        code, _, said = runs[0].finish(10)
        assert code == 143, said
    finally:
        os.kill(runs[1].pid, signal.SIGCONT)
    finish(runs[1:])


def test_preemption_of_one_machine_saves_on_all(machines, accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    run = train_runs.config(tmp_path, 2, max_steps=1_000_000, log_every=1, checkpoint={"every": 1_000_000})
    runs = machines.launch(machines(2), run)
    wait_for(lambda: (tmp_path / "out/metrics.jsonl").exists() and (tmp_path / "out/metrics.jsonl").stat().st_size > 0, 60)
    os.kill(runs[1].pid, signal.SIGTERM)
    ended = finish(runs)
    assert codes(ended) == [7, 7], said_by(ended)
    [checkpoint] = (tmp_path / "out/checkpoints").iterdir()
    accel("verify", checkpoint)


# What is wrong at the beginning.

def test_another_configuration_is_named_by_key(machines, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    hosts = machines(2)
    config = train_runs.config(tmp_path, 2)
    common = ["--num-machines", 2, "--main-process-ip", hosts[0].address, "--main-process-port", 29500, config]
    runs = [machines.begin(host, tmp_path, *common, "--machine-rank", i, "--set", f"training.optimizer.lr=0.00{i + 1}")
            for i, host in enumerate(hosts)]
    ended = finish(runs)
    assert codes(ended) == [2, 2]
    assert all("training.optimizer.lr is 0.002, on machine 0 0.001" in said for said in said_by(ended))
    assert os.listdir(tmp_path / "out") == ["run_secret"]


def test_another_program_and_the_same_rank_twice(machines):
    hosts = machines(2)
    common = ["--num-machines", 2, "--main-process-ip", hosts[0].address, "--num-processes", 2, "--cpu"]
    programs = [["sleep", "0"], ["env", "sleep", "0"]]
    runs = [machines.begin(host, "/tmp", *common, "--machine-rank", i, "--", *programs[i]) for i, host in enumerate(hosts)]
    ended = finish(runs)
    assert codes(ended) == [2, 2]
    assert "the program is env with 2 arguments, on machine 0 sleep with 1 argument" in said_by(ended)[0]
    # An argument may be a secret.
    runs = [machines.begin(host, "/tmp", *common, "--machine-rank", i, "--", "echo", f"--token=s3cret{i}")
            for i, host in enumerate(hosts)]
    ended = finish(runs)
    assert codes(ended) == [2, 2] and "has another argument 1 of the program than machine 0" in said_by(ended)[0]
    assert "s3cret" not in "".join(said_by(ended))
    hosts = machines(3)
    common = ["--num-machines", 3, "--main-process-ip", hosts[0].address, "--num-processes", 3, "--cpu", "--machine-rank"]
    ended = finish([machines.begin(host, "/tmp", *common, rank, "--", "true") for host, rank in zip(hosts, (0, 1, 1))])
    assert codes(ended) == [2, 2, 2] and all("both have machine_rank: 1" in said for said in said_by(ended))


@pytest.mark.long
def test_who_is_missing_is_said(machines):
    hosts = machines(3)
    limits = ["--set", "launch.rendezvous_timeout=12", "--num-processes", 3, "--cpu", "--", "true"]
    common = ["--num-machines", 3, "--main-process-ip", hosts[0].address, "--machine-rank"]
    ended = finish([machines.begin(hosts[i], "/tmp", *common, i, *limits) for i in (0, 2)])
    assert codes(ended) == [1, 1]
    for said in said_by(ended):
        assert "waiting for machines (10 s of 12 s)" in said and "machine 1: has not arrived" in said
        assert "1 of 3 machines have not arrived within 12 s" in said and f"at {hosts[2].address}, 1 ranks, arrived after" in said


@pytest.mark.long
def test_a_machine_may_wait_longer_than_a_silence_that_counts_as_a_loss(machines):
    hosts = machines(3)
    common = ["--num-machines", 3, "--main-process-ip", hosts[0].address, "--num-processes", 3, "--cpu", "--set", "launch.heartbeat_timeout=4",
              "--machine-rank"]
    runs = [machines.begin(host, "/tmp", *common, rank, "--", "sleep", 3) for rank, host in enumerate(hosts[:2])]
    time.sleep(6)
    runs.append(machines.begin(hosts[2], "/tmp", *common, 2, "--", "sleep", 3))
    ended = finish(runs)
    assert codes(ended) == [0, 0, 0], said_by(ended)


@pytest.mark.long
@pytest.mark.parametrize("address, reason", [
    ("{0}", "Connection refused"), ("10.213.255.254", "No route to host|Connection timed out|Network is unreachable"),
    ("nobody.invalid", "'nobody.invalid' cannot be resolved|is not resolved")])
def test_why_machine_0_is_not_reached(machines, address, reason):
    hosts = machines(2)
    began = time.monotonic()
    run = machines.begin(hosts[1], "/tmp", "--num-machines", 2, "--machine-rank", 1, "--main-process-ip", address.format(hosts[0].address),
                         "--num-processes", 2, "--cpu", "--set", "launch.rendezvous_timeout=3", "--", "true")
    code, _, said = run.finish()
    assert code == 1 and "is not reached within 3 s" in said and re.search(reason, said), said
    assert time.monotonic() - began < 20


def test_a_busy_port_is_named(machines):
    [host] = machines(1)
    code = "import socket, time; s = socket.create_server(('', 29500)); print('on', flush=True); time.sleep(60)"
    other = subprocess.Popen([*host.prefix, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        other.stdout.readline()
        run = machines.begin(host, "/tmp", "--num-machines", 2, "--machine-rank", 0, "--main-process-ip", host.address, "--num-processes", 2,
                             "--cpu", "--", "true")
        exit_code, _, said = run.finish()
        assert exit_code == 2 and "'main_process_port': port 29500 is in use" in said and "the same on all machines" in said
    finally:
        other.kill()
        other.communicate()


def test_an_output_dir_in_use_is_said_on_all_machines(machines, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    hosts = machines(2)
    accel_runs = machines.launch(hosts, train_runs.config(tmp_path, 2, max_steps=1_000_000))
    wait_for(lambda: (tmp_path / "out/metrics.jsonl").exists(), 60)
    more = machines(2)
    ended = finish(machines.launch(more, train_runs.config(tmp_path, 2, max_steps=1_000_000)))
    assert codes(ended) == [2, 2] and all("another run is writing into" in said for said in said_by(ended))
    os.kill(accel_runs[0].pid, signal.SIGKILL)
    finish(accel_runs)


@pytest.mark.parametrize("flags, said", [
    (["--num-machines", 2, "--num-processes", 2], "2 machines need main_process_ip, the address of machine 0"),
    (["--num-machines", 2, "--machine-rank", 2, "--main-process-ip", "h", "--num-processes", 2], "'machine_rank' is 2"),
    (["--num-machines", 2, "--main-process-ip", "h", "--main-process-port", 0, "--num-processes", 2], "'main_process_port: 0'"),
    (["--num-machines", 2, "--main-process-ip", "h", "--num-processes", 3], "3 ranks on 2 machines are not as many on each"),
    (["--num-machines", 2, "--main-process-ip", "h", "--num-processes", 2, "--set", "launch.local_processes=2"], "launch.local_processes"),
])
def test_contradictions(accel, flags, said):
    assert said in accel("launch", "--cpu", *flags, "--", "true", code=2).stderr


@pytest.mark.long(but="15-143")
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_machines_are_awaited(machines, number, code):
    hosts = machines(3)
    common = ["--num-machines", 3, "--main-process-ip", hosts[0].address, "--num-processes", 3, "--cpu", "--set",
              "launch.rendezvous_timeout=40", "--machine-rank"]
    runs = [machines.begin(host, "/tmp", *common, rank, "--", "true") for rank, host in enumerate(hosts[:2])]
    time.sleep(2)
    os.kill(runs[0].pid, number)
    ended = finish(runs, 20)
    assert codes(ended) == [code, 1], said_by(ended)
    assert "machine 0 refuses to begin: " in said_by(ended)[1]


@pytest.mark.long
def test_an_output_dir_that_is_not_shared_is_an_error_before_the_start(machines, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, output_dir="out")
    hosts = machines(2)
    common = ["--num-machines", 2, "--main-process-ip", hosts[0].address, "--main-process-port", 29500, config, "--machine-rank"]
    for name in "ab":
        (tmp_path / name).mkdir()
    # Without the file of machine 0 a launcher cannot prove that it is of the run.
    first, second = (machines.begin(host, tmp_path / name, *common, rank, "--set", "launch.rendezvous_timeout=120")
                     for rank, (host, name) in enumerate(zip(hosts, "ab")))
    code, _, said = second.finish()
    assert code == 2 and "'out' is not the directory that machine 0 has there: it has no file 'run_secret'" in said
    os.kill(first.pid, signal.SIGTERM)
    code, _, said = first.finish()
    assert code == 143 and f"{hosts[1].address} is turned away from {hosts[0].address}:29500: it does not know the secret" in said
    # With a secret from elsewhere it can, and the files are compared.
    secret = {"ACCEL_RUN_SECRET": "0123456789abcdef0123456789abcdef"}
    ended = finish([machines.begin(host, tmp_path / name, *common, rank, env=secret)
                    for rank, (host, name) in enumerate(zip(hosts, "ab"))])
    assert codes(ended) == [6, 2], said_by(ended)
    assert all("'out' is not the directory that machine 0 has there" in said for said in said_by(ended))
    assert not (tmp_path / "a/out/checkpoints").exists()


@pytest.mark.long
def test_a_hang_is_explained_over_all_machines(machines, accel_path, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    hosts = machines(2)
    config = train_runs.config(tmp_path, 4, **{"max_steps": 100000, "launch.hang_timeout": 6, "launch.grace_period": 3})
    runs = machines.launch(hosts, config)
    # The file is there before the first step ends, and a rank may not have begun its first step then.
    metrics = tmp_path / "out/metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, 60)
    stopped = train_runs.worker_of(3, runs[1].pid)
    os.kill(stopped, signal.SIGSTOP)
    ended = finish(runs, 60)
    assert codes(ended) == [6, 6], said_by(ended)
    for said in said_by(ended):
        report = said.split("the run hangs: no progress for 6 s")[1]
        assert "\n  rank 3 is stopped, by a signal or a debugger\n" in report
        assert [int(rank) for rank in re.findall(r"^  rank (\d), step \d+", report, re.MULTILINE)] == [0, 1, 2, 3]
        assert f"process {stopped}: stopped" in report


@pytest.mark.long
@pytest.mark.parametrize("writer", [0, 3])
def test_a_program_that_writes_on_one_rank_does_not_hang(machines, writer):
    """The other machine is silent for longer than launch.hang_timeout."""
    script = f"if [ $RANK = {writer} ]; then for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 0.5; done; else sleep 6; fi"
    runs = machines.launch(machines(2), "--num-processes", 4, "--cpu", "--hang-timeout", 3, "--", "sh", "-c", script)
    ended = finish(runs)
    assert codes(ended) == [0, 0], said_by(ended)


@pytest.mark.long
@pytest.mark.parametrize("left", [0, 2])
def test_a_program_that_is_silent_everywhere_hangs(machines, left):
    """Machine 0 decides, also if all of its ranks have ended."""
    runs = machines.launch(machines(2), "--num-processes", 4, "--cpu", "--hang-timeout", 2, "--", "sh", "-c",
                           f"test $RANK -lt {left} || exec sleep 300")
    ended = finish(runs)
    assert codes(ended) == [6, 6], said_by(ended)
    for said in said_by(ended):
        report = said.split("the run hangs: no rank has written anything for 2 s")[1]
        assert [int(rank) for rank in re.findall(r"^  rank (\d)", report, re.MULTILINE)] == list(range(left, 4)), report


@pytest.fixture
def small_disk(tmp_path):
    """The output_dir of the runs on a file system with room for one checkpoint."""
    directory = tmp_path / "out"
    directory.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2600k", "tmpfs", directory], capture_output=True, text=True)
    if made.returncode:
        needs.missing(f"no file system can be mounted here: {made.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


def test_a_full_disk_ends_the_run_on_all_machines_and_leaves_the_last_checkpoint(machines, accel, small_disk, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    hosts = machines(2)
    config = train_runs.config(tmp_path, 2, **{"max_steps": 100000, "checkpoint": {"every": 5}, "launch.grace_period": 5})
    ended = finish(machines.launch(hosts, config), 120)
    assert codes(ended) == [6, 6], said_by(ended)
    for said in said_by(ended):
        assert re.search(r"error: (rank 0 could not save .*)?(a checkpoint takes .*checkpoint_\d+.* has .* left|.*No space left on device)", said), said
    saved = sorted((small_disk / "checkpoints").glob("checkpoint_*"))
    assert saved
    accel("verify", saved[-1])
