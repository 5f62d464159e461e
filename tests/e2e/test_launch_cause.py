"""The report names the rank that failed first, even if several ranks end before the launcher checks."""

import os
import pathlib
import signal
import time

import pytest
from launching import start, wait_for  # noqa: F401  (a fixture)
import train_runs

SCRIPT = """
wait_for() { until [ -e "$1" ]; do sleep 0.01; done; }
tell() { echo '{"message": {"message": "a rank has ended"}}' >"$TORCHELASTIC_ERROR_FILE"; }
: >started.$RANK
case $RANK in
%s
esac
"""

# The shell commands of each rank. A rank waits for the file go.RANK, which the test creates.
CRASH = """
0) wait_for go.0; tell; exit 1 ;;
1) wait_for go.1; kill -SEGV $$ ;;
2) wait_for go.2; tell; : >done.2; sleep 60 ;;
"""
EXITS = """
0) wait_for go.0; exit 4 ;;
1) sleep 60 ;;
2) wait_for go.2; exit 5 ;;
"""


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_who_had_said_what_is_wrong_is_the_cause_though_it_was_still_ending(start):  # noqa: F811
    """The first rank that reports an error is the cause, even if a rank that fails because of it ends earlier."""
    script = """say() { echo "{\\"message\\": {\\"message\\": \\"$1\\"}}" >"$TORCHELASTIC_ERROR_FILE"; }
    if [ $RANK = 1 ]; then say "the cause"; exec sleep 60; else sleep 0.5; say "a peer is gone"; exit 1; fi"""
    code, _, err = start("--cpu", "--num_processes", 2, "--main_process_port", 0, "--", "bash", "-c", script).finish()
    assert code == 6 and "rank 1 of 2 failed: " in err and "error: the cause" in err, err


@pytest.mark.parametrize("steps, order, said", [
    (CRASH, (1, 2, 0), "rank 1 of 3 failed: killed by SIGSEGV"),
    (EXITS, (2, 0), "rank 2 of 3 failed: exit code 5"),
], ids=["a crash that others tell of", "exit codes without a word"])
def test_the_first_is_the_cause_when_all_are_seen_at_once(start, tmp_path, steps, order, said):  # noqa: F811
    run = start("--cpu", "--num_processes", 3, "--main_process_port", 0, "--", "bash", "-c", SCRIPT % steps)
    wait_for(lambda: all((tmp_path / f"started.{rank}").exists() for rank in range(3)))
    pids = [train_runs.worker_of(rank, run.pid) for rank in range(3)]
    os.kill(run.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(run.pid) == "T")
    for rank in order:
        (tmp_path / f"go.{rank}").touch()
        wait_for(lambda rank=rank: state_of(pids[rank]) == "Z" or (tmp_path / f"done.{rank}").exists())
        time.sleep(0.05)  # The clock of file times is coarse. The error files need different times.
    os.kill(run.pid, signal.SIGCONT)
    code, _, err = run.finish()
    assert code == 6 and said in err, err
