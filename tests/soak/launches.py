"""Runs misbehaving programs under the launcher, also with unusual signal settings and closed descriptors. Every failure
is reported, every run ends, no process remains, and the logs have every line that a rank has written."""

import os
import pathlib
import random
import signal
import sys
import time
import uuid

import commands
import sources

sys.path.insert(0, str(sources.TESTS))

LINES = 3000
COUNTING = f'i=0; while [ $i -lt {LINES} ]; do echo "line $i"; i=$((i+1)); done; : > $RANK.counted; '

# The shell code of a rank, and the run's exit code after it: 0, 6 or 7. None means that the rank runs until stopped.
ACTS = {
    "exit 0": 0, "exit 9": 6, "exit 7": 7, "exit 255": 6, "kill -SEGV $$": 6, "kill -KILL $$": 6, "kill -ABRT $$": 6,
    "kill -PIPE $$": 6, "kill -TERM $$": 6, "exec /nonexistent/program": 6, "ulimit -t 1; while :; do :; done": 6,
    "sleep 60": None, "exec sleep 60": None, "trap '' TERM INT HUP; while :; do sleep 0.1; done": None,
    "kill -STOP $$; sleep 60": None, "exec sleep 60 >&- 2>&- <&-": None,
    "head -c 3000000 /dev/zero | tr '\\0' x; exit 0": 0, "yes | head -200000; exit 0": 0, "printf '\\033]0;t\\007\\377'; exit 0": 0,
    f"{COUNTING}exit 0": 0, f"{COUNTING}kill -SEGV $$": 6, f"{COUNTING}kill -KILL $$": 6, f"{COUNTING}exec sleep 60": None,
    "yes error | head -100000 >&2; exit 3": 6, "cat; exit 0": 0, "exec >&- 2>&-; exit 4": 6,
}
COMPANY = {  # The processes that a rank starts before its act.
    "": "", "child": "sleep 300 &", "daemon": "setsid sleep 300 & ", "deaf daemon": "(setsid bash -c 'trap \"\" TERM INT HUP; "
    "while :; do sleep 1; done' &);", "double fork": "(setsid sh -c 'sleep 300 & sleep 300' &) ;",
    "many": "for i in 1 2 3 4 5 6 7 8; do sleep 300 & done;",
}
IGNORED = [(), (), (signal.SIGCHLD,), (signal.SIGTERM, signal.SIGPIPE), (signal.SIGHUP,), (signal.SIGCHLD, signal.SIGUSR1)]
BLOCKED = [(), (), (signal.SIGCHLD,), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)]
CLOSED = [(), (), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


class Launches:
    name = "launch"

    def __init__(self, accel: pathlib.Path, work: pathlib.Path):
        self.accel = accel

    def one(self, rng: random.Random, directory: pathlib.Path):
        ranks = rng.choice((1, 2, 2, 3, 5))
        acts = [rng.choice(list(ACTS)) for _ in range(ranks)]
        company = [rng.choice(list(COMPANY)) for _ in range(ranks)]
        for rank in range(ranks):
            (directory / f"{rank}.sh").write_text(f"{COMPANY[company[rank]]}\n: > {rank}.started\n{acts[rank]}\n")
        ignored, blocked, closed = rng.choice(IGNORED), rng.choice(BLOCKED), rng.choice(CLOSED)
        stop = rng.choice((None, None, signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP))
        # A run with a rank that does not end needs a signal.
        if stop in (None, *ignored) and None in map(ACTS.get, acts) and 6 not in map(ACTS.get, acts):
            stop = signal.SIGTERM
        # A rank whose output nobody reads blocks until a signal ends the run. An ignored signal is lost if it arrives
        # before main, so it does not count.
        unread = stop in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL) and stop not in ignored
        output = rng.choice(("file", "file", "tty", "pipe")) if unread else "file"

        def prepare():
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            for fd in closed:
                os.close(fd)

        mark = f"ACCEL_SOAK_MARK={uuid.uuid4()}"
        name, value = mark.split("=")
        (directory / "tmp").mkdir()
        running = commands.Running(
            [self.accel, "launch", "--cpu", "--num_processes", ranks, "--set", "launch.grace_period=0.5", "--log-dir", "logs", "--",
             "sh", "-c",
             "exec sh $RANK.sh"], directory, {name: value, "TMPDIR": str(directory / "tmp")}, prepare, output)
        if stop:
            # An ignored signal is lost if it arrives before main, and then some runs never end. So wait for rank 0.
            deadline = time.monotonic() + 10 if stop in ignored else 0
            while not (directory / "0.started").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(rng.choice((0, 0.02, 0.1, 0.5)))
            running.send(stop)
        result = running.finish(30)
        variant = f"{stop.name if stop else 'left alone'}"
        problem = self.judge(acts, stop, ignored, closed, result) or commands.left_behind(mark) or self.lines(directory, acts, stop)
        # A signal may end the launcher before it takes signals, when the guardian may not exist yet. The next launcher
        # removes leftovers.
        if result.code < 0:
            commands.run([self.accel, "launch", "--cpu", "--", "true"], directory, environment={"TMPDIR": str(directory / "tmp")})
        problem = problem or self.scratch(directory, stop)
        story = f"ranks: {list(zip(company, acts))}\nignored {ignored}, blocked {blocked}, closed {closed}, sent {stop}, output to a {output}"
        return variant, problem and f"{problem}\n{story}\n{result.text[-2000:]}"

    @staticmethod
    def lines(directory, acts, stop):
        """What the logs lack of what ranks have written."""
        for rank, act in enumerate(acts):
            log = directory / f"logs/attempt_0/rank_{rank}/stdout.log"
            if not act.startswith(COUNTING) or not log.exists():
                continue
            *whole, rest = log.read_text().split("\n")
            if whole != [f"line {number}" for number in range(len(whole))]:
                return f"a line of rank {rank} is lost or torn: {log}"
            if stop == signal.SIGKILL:  # The launcher cannot read what is in the pipe any more.
                continue
            if rest or (directory / f"{rank}.counted").exists() and len(whole) != LINES:
                return f"rank {rank} has written {LINES} lines, and its log has {len(whole)} and {rest!r}"
        return None

    @staticmethod
    def scratch(directory, stop):
        deadline = time.monotonic() + 5
        while left := os.listdir(directory / "tmp"):
            if time.monotonic() > deadline:
                return f"left in the temporary folder: {left}"
            time.sleep(0.05)
        return None

    @staticmethod
    def judge(acts, stop, ignored, closed, result):
        if result.hung:
            return "the launcher does not end"
        endings = {ACTS[act] for act in acts}
        # Without a signal, the first failure decides the exit code and ends the ranks that still run.
        if 6 in endings:
            natural = {6}
        elif 7 in endings:
            natural = {7} if endings == {7} else {7, 6}  # The other ranks may not exit within the grace period.
        else:
            natural = set() if None in endings else {0}  # Only a signal ends a run with a None.
        # The exit codes after a signal: that of the launcher, or the signal itself if it came before main.
        told = {signal.SIGTERM: {143, -15}, signal.SIGHUP: {129, -1}, signal.SIGINT: {130, -2}, signal.SIGKILL: {-9}}
        allowed = natural if stop is None else natural | told[stop] | {6, 7}
        if stop in ignored and stop == signal.SIGHUP:  # The launcher keeps SIGHUP ignored, as under nohup.
            allowed = natural
        if closed and 1 in closed or 2 in closed:
            allowed = allowed | {1}
        if result.code not in allowed:
            return f"exit code {result.code}, expected one of {sorted(allowed)}"
        if 0 in (result.code,) and 6 in endings and stop is None:
            return "a failure became a success"
        return None
