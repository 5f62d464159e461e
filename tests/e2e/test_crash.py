"""Each command that writes is killed, or fails, at every system call that changes files (src/base/files/fault.hpp). The
source stays unchanged, the target is absent, old or complete, and the next run succeeds and removes leftovers."""

import concurrent.futures
import pathlib
import re
import signal
import tempfile

import pytest
from faults import CASES, Runner, below, beside, scratch, tree, visible

# The modes: SIGKILL instead of a call, after it, or amid its bytes; the call fails; the disk is full from that call on.
MODES = ("kill@{}", "killafter@{}", "torn@{}", "fail@{}:ENOSPC", "fail@{}:EIO", "full@{}")
TRANSFERS = ("write", "copy")

rows = []  # The rows of the table: command, calls, runs of each mode.


class CrashRunner(Runner):
    def check(self, mode, number, call, before, after):
        """Runs the command with one fault. Returns what is wrong afterwards, or None."""
        case = self.case
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            directory = pathlib.Path(name)
            self.prepare(directory)
            result = self.run(directory, fault=mode.format(number))
            raw = tree(directory)
            now = visible(raw)
            source_kept = beside(now, case.target) == beside(before, case.target)
            complete = below(now, case.target) == below(after, case.target)
            old = below(now, case.target) == below(before, case.target)

            def unsealed():
                # The target holds all its earlier files and maybe files of the output, but not the seal.
                mine = below(now, case.target)
                kept = all(mine.get(path) == data for path, data in below(before, case.target).items())
                return case.seal is not None and f"{case.target}/{case.seal}" not in mine and kept

            if not source_kept and not (case.removes_source and complete):
                return "the source or something else is harmed"
            # A target with only empty directories counts as absent.
            absent = not any(not path.endswith("/") for path in below(now, case.target)) and not case.old
            if mode.startswith(("fail", "full")):
                problem = self.check_failure(result, raw, before, after, call)
                if problem:
                    return problem
            else:
                if result.returncode != -signal.SIGKILL:
                    return f"not killed: {result.returncode} {result.stderr}"
                if not (complete or old or absent or unsealed()):
                    return f"the target is a mixture: {sorted(below(now, case.target))}"

            gone = not below(now, case.source)
            again = self.run(directory, *(case.again if complete else ()))
            if gone:
                if again.returncode == 0:
                    return "a removed source was read"
            elif again.returncode != 0 and not (complete and "already there" in again.stderr):
                return f"the next run fails: {again.stderr}"
            final = tree(directory)
            if final != after and not (complete and "already there" in again.stderr and visible(final) == final):
                return f"after the next run: {sorted(final)} instead of {sorted(after)}"
            return None

    def check_failure(self, result, raw, before, after, call):
        if result.returncode == 0:
            # Exit code 0 requires a complete output, and a warning if the cleanup failed.
            if visible(raw) != after:
                return "exit code 0 without the output"
            if raw != after and "warning: " not in result.stderr:
                return "exit code 0, and what is left behind is not told"
            return None
        if result.returncode != 1 or "error: " not in result.stderr:
            return f"exit code {result.returncode}, {result.stderr!r}"
        if not re.search("No space left on device|Input/output error", result.stderr):
            return f"an unclear message: {result.stderr!r}"
        if raw == before or raw == after:
            return None
        if self.case.removes_source and below(raw, self.case.target) == below(after, self.case.target):
            return None
        return f"left behind: {sorted(set(raw) - set(before))}, missing: {sorted(set(before) - set(raw))}"


@pytest.mark.long(but="merge-weights")
@pytest.mark.parametrize("name", CASES)
def test_every_point_in_every_mode(accel_path, fault_template, name):
    case = CASES[name]
    runner = CrashRunner(accel_path, case, fault_template)
    before, after, calls = runner.reference()
    assert calls and below(after, case.target) != below(before, case.target)
    jobs = [
        (mode, number, call)
        for mode in MODES
        for number, call in enumerate(calls, 1)
        if not mode.startswith("torn") or call in TRANSFERS
        # If a command makes many small writes, these two modes try only every eighth of them.
        if call not in TRANSFERS or mode not in ("fail@{}:EIO", "full@{}") or number % 8 == 0 or len(calls) < 40
    ]
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        problems = list(pool.map(lambda job: runner.check(*job, before, after), jobs))
    rows.append((name, len(calls), [sum(job[0] == mode for job in jobs) for mode in MODES]))
    wrong = [f"{mode.format(number)} ({call}): {what}" for (mode, number, call), what in zip(jobs, problems) if what]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module", autouse=True)
def table():
    """Prints the number of runs of each command and mode (pytest -s)."""
    yield
    modes = [mode.split("@")[0] + mode.partition(":")[1] + mode.partition(":")[2] for mode in MODES]
    print("\n" + " | ".join([f"{'command':34}", "calls", *modes, "all"]))
    for name, calls, counts in rows:
        cells = [f"{count:{len(mode)}}" for mode, count in zip(modes, counts)]
        print(" | ".join([f"{name:34}", f"{calls:5}", *cells, f"{sum(counts):3}"]))
    print(f"{sum(sum(counts) for _, _, counts in rows)} runs in all")
