"""Programs that misbehave under the launcher, and launchers that are started badly: every failure is told, every run ends, and no
process stays behind."""

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
import train_runs  # noqa: E402

# Shell that a rank runs; what its ending means for the run: exit code 0, 6 or 7, or None where it goes on until it is stopped.
ACTS = {
    "exit 0": 0, "exit 9": 6, "exit 7": 7, "exit 255": 6, "kill -SEGV $$": 6, "kill -KILL $$": 6, "kill -ABRT $$": 6,
    "kill -PIPE $$": 6, "kill -TERM $$": 6, "exec /nonexistent/program": 6, "ulimit -t 1; while :; do :; done": 6,
    "sleep 60": None, "exec sleep 60": None, "trap '' TERM INT HUP; while :; do sleep 0.1; done": None,
    "kill -STOP $$; sleep 60": None, "exec sleep 60 >&- 2>&- <&-": None,
    "head -c 3000000 /dev/zero | tr '\\0' x; exit 0": 0, "yes | head -200000; exit 0": 0, "printf '\\033]0;t\\007\\377'; exit 0": 0,
    "yes error | head -100000 >&2; exit 3": 6, "cat; exit 0": 0, "exec >&- 2>&-; exit 4": 6,
}
COMPANY = {  # What the rank starts before it does that.
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
        # Somebody has to end a run that goes on.
        if stop in (None, *ignored) and None in map(ACTS.get, acts) and 6 not in map(ACTS.get, acts):
            stop = signal.SIGTERM
        # Who prints waits for a reader, until somebody ends the run.
        # A signal that was ignored when the launcher began is lost if it comes before main.
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
            [self.accel, "launch", "--cpu", "--num_processes", ranks, "--set", "launch.grace_period=0.5", "--", "sh", "-c",
             "exec sh $RANK.sh"], directory, {name: value, "TMPDIR": str(directory / "tmp")}, prepare, output)
        if stop:
            # What is ignored before main is lost, and nothing else would end some runs.
            deadline = time.monotonic() + 10 if stop in ignored else 0
            while not (directory / "0.started").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(rng.choice((0, 0.02, 0.1, 0.5)))
            running.send(stop)
        result = running.finish(30)
        variant = f"{stop.name if stop else 'left alone'}"
        problem = self.judge(acts, stop, ignored, closed, result) or commands.left_behind(mark)
        if stop == signal.SIGKILL:  # It may come before there is a guardian; the next launcher removes what is left then.
            commands.run([self.accel, "launch", "--cpu", "--", "true"], directory, environment={"TMPDIR": str(directory / "tmp")})
        problem = problem or self.scratch(directory, stop)
        story = f"ranks: {list(zip(company, acts))}\nignored {ignored}, blocked {blocked}, closed {closed}, sent {stop}, output to a {output}"
        return variant, problem and f"{problem}\n{story}\n{result.text[-2000:]}"

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
        # With everything left alone the first failure decides; a rank that goes on waits for one.
        if 6 in endings:
            natural = {6}
        elif 7 in endings:
            natural = {7} if endings == {7} else {7, 6}  # The others may not follow within the grace period.
        else:
            natural = set() if None in endings else {0}  # Somebody has to end it.
        # Whoever closes the pipe's other end may be told of it.
        told = {signal.SIGTERM: {143, -15}, signal.SIGHUP: {143, -1}, signal.SIGINT: {130, -2}, signal.SIGKILL: {-9}}
        allowed = natural if stop is None else natural | told[stop] | {6, 7}
        if stop in ignored and stop == signal.SIGHUP:  # As under nohup.
            allowed = natural
        if closed and 1 in closed or 2 in closed:
            allowed = allowed | {1}
        if result.code not in allowed:
            return f"exit code {result.code}, expected one of {sorted(allowed)}"
        if 0 in (result.code,) and 6 in endings and stop is None:
            return "a failure became a success"
        return None
