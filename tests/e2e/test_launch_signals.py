"""The launcher leaves no process behind, however it ends and whichever signals the workers ignore."""

import os
import pathlib
import signal
import subprocess
import time

import pytest
from launching import start, wait_for  # noqa: F401  (a fixture)

SLEEP = "touch started.$RANK; exec sleep 60"
# A worker, a child in its process group, and two children in sessions of their own, one of which ignores signals.
FAMILY = "sleep 61 & setsid sleep 62 & (setsid bash -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' &) ; touch started.$RANK; wait"
DEAF = "trap '' TERM INT; touch started.$RANK; while :; do sleep 1; done"

SCRIPTS = {"plain": SLEEP, "family": FAMILY, "deaf": DEAF}


@pytest.fixture
def running(start, tmp_path):  # noqa: F811
    """running(SCRIPT) starts the script on two ranks and returns once both run."""

    def begin(script, *flags, **options):
        run = start("--cpu", "--num_processes", 2, *flags, "--", "bash", "-c", script, **options)
        wait_for(lambda: all((tmp_path / f"started.{rank}").exists() for rank in (0, 1)))
        return run

    return begin


@pytest.mark.parametrize("script", SCRIPTS)
def test_kill_minus_nine(running, script):
    run = running(SCRIPTS[script])
    assert len(run.survivors()) >= 3
    os.kill(run.pid, signal.SIGKILL)
    run.assert_nobody_is_left()
    assert run.finish()[0] == -signal.SIGKILL


def test_kill_minus_nine_removes_the_scratch_files(running, tmp_path):
    (tmp_path / "scratch").mkdir()
    run = running(SLEEP, env={"TMPDIR": str(tmp_path / "scratch")})
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not list((tmp_path / "scratch").iterdir()))


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_end_the_run(running, script, number, code):
    run = running(SCRIPTS[script], "--set", "launch.grace_period=0.3")
    os.kill(run.pid, number)
    returned, _, err = run.finish()
    assert returned == code, err
    assert "killing them" in err if script == "deaf" else f"ted by {number.name}" in err
    assert run.survivors() == []


def test_a_stopped_guardian_keeps_nobody(running):
    run = running(SLEEP)
    children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    guardian = next(int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text() == "accel-guardian\n")
    os.kill(guardian, signal.SIGSTOP)
    os.kill(run.pid, signal.SIGTERM)
    assert run.finish(timeout=10)[0] == 143
    run.assert_nobody_is_left()


def test_timeout_asks_once(tmp_path, accel_path):
    """GNU timeout signals the launcher and then its process group. The launcher treats the two signals as one."""
    polite = "trap 'sleep 0.5; echo saved; exit 0' TERM; touch started.$RANK; while :; do sleep 0.1; done"
    command = ["timeout", "60", accel_path, "launch", "--cpu", "--num_processes", "2", "--", "bash", "-c", polite]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all((tmp_path / f"started.{rank}").exists() for rank in (0, 1)))
    run.terminate()  # GNU timeout now acts as if the time were over.
    out, err = run.communicate(timeout=30)
    assert "saved" in out and "passed on to the workers" in err and "killing the workers" not in err, err


def test_the_second_signal_kills_at_once(running):
    run = running(DEAF, "--set", "launch.grace_period=60")
    begin = time.monotonic()
    os.kill(run.pid, signal.SIGINT)
    time.sleep(1)
    os.kill(run.pid, signal.SIGINT)
    code, _, err = run.finish(timeout=20)
    assert code == 130 and "killing the workers" in err
    assert time.monotonic() - begin < 10
    assert run.survivors() == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_success_and_failure_leave_nobody(start, tmp_path, script):  # noqa: F811
    """The workers exit with success or failure while their children still run."""
    for code, expected in ((0, 0), (5, 6)):
        begin = SCRIPTS[script].replace("wait", "true").replace("exec sleep 60", "true").replace(
            "while :; do sleep 1; done", "true")
        run = start("--cpu", "--num_processes", 2, "--set", "launch.grace_period=0.3", "--", "bash", "-c",
                    f"{begin}; exit {code}")
        assert run.finish()[0] == expected
        assert run.survivors() == []


def test_children_from_before_are_left_alone(accel_path, tmp_path):
    """`job & exec accel launch ...` makes the job a child of the launcher. The launcher does not end it."""
    script = f"(sleep 0.5; touch job.done) & exec '{accel_path}' launch --cpu -- true"
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, timeout=30).returncode == 0
    wait_for((tmp_path / "job.done").exists)


def test_workers_may_end_in_order(running):
    """A worker that saves on SIGTERM gets the time to do so, and its exit code 7 becomes that of the run."""
    run = running("trap 'sleep 0.5; echo saved; exit 7' TERM; touch started.$RANK; while :; do sleep 0.1; done")
    os.kill(run.pid, signal.SIGTERM)
    code, out, _ = run.finish()
    assert code == 7 and out == "saved\n"


def test_usr1_is_passed_on(running):
    run = running("trap 'echo asked; exit 7' USR1; touch started.$RANK; while :; do sleep 0.1; done")
    os.kill(run.pid, signal.SIGUSR1)
    code, out, _ = run.finish()
    assert code == 7 and out == "asked\n"


def test_a_slow_reader_does_not_delay_signals(running, tmp_path):
    """Nobody reads the launcher's output, and the workers print far more than a pipe holds."""
    run = running("touch started.$RANK; exec yes")
    time.sleep(0.5)
    os.kill(run.pid, signal.SIGTERM)
    code, _, _ = run.finish()
    assert code == 143
    assert run.survivors() == []


def test_ctrl_c_on_a_terminal_reaches_workers_once(running):
    """The foreground group gets SIGINT. The workers have groups of their own, so only the launcher signals them."""
    # The script runs only builtins in the foreground, and `wait` answers a signal at once. Bash drops a SIGINT that
    # comes while a command such as `touch` runs, if the command then ends by itself.
    run = running("trap 'echo one; kill $!; exit 1' INT; sleep 60 & : > started.$RANK; wait", start_new_session=True)
    os.killpg(run.pid, signal.SIGINT)
    code, out, _ = run.finish()
    assert code == 130 and out == "one\n"


def test_kill_minus_nine_of_the_launchers_group(running):
    run = running(FAMILY, start_new_session=True)
    os.killpg(run.pid, signal.SIGKILL)
    run.assert_nobody_is_left()


def test_scratch_of_the_dead_is_removed_by_the_next_run(start, tmp_path):  # noqa: F811
    """The launcher and its guardian are killed together, so neither can remove its scratch files."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "accel-somebody-elses").mkdir()
    environment = {"TMPDIR": str(scratch)}
    run = start("--cpu", "--main_process_port", 0, "--", "bash", "-c", "touch started; exec sleep 60", env=environment)
    alive = start("--cpu", "--main_process_port", 0, "--", "bash", "-c", "touch alive; exec sleep 60", env=environment)
    wait_for(lambda: (tmp_path / "started").exists() and (tmp_path / "alive").exists())
    children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    guardians = [int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text() == "accel-guardian\n"]
    assert len(guardians) == 1
    for pid in (*guardians, run.pid):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*guardians, run.pid):
        os.kill(pid, signal.SIGKILL)
    run.finish()
    assert len(list(scratch.iterdir())) == 3
    third = start("--cpu", "--main_process_port", 0, "--", "true", env=environment)
    assert third.finish()[0] == 0
    assert len(list(scratch.iterdir())) == 2  # The living run's directory, and one that accel did not make.
    os.kill(alive.pid, signal.SIGTERM)
    assert alive.finish()[0] == 143
    assert [path.name for path in scratch.iterdir()] == ["accel-somebody-elses"]
