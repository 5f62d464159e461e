"""Log files of ranks are rotated by size, and no line of them is lost or torn (launch.log_max_size)."""

import re

# Each rank writes lines of 100 bytes with its rank and their number.
SCRIPT = """awk -v rank=$RANK -v lines=$1 'BEGIN { for (i = 0; i < lines; i++) {
    line = sprintf("%d:%09d:%087d\\n", rank, i, i); printf "%s", line; if (i % 100 == 0) printf "%s", line >"/dev/stderr" } }'"""
LINE_BYTES = 100


def line_of(rank, number):
    return f"{rank}:{number:09d}:{number:087d}\n"


def launch(accel, tmp_path, ranks, lines, *settings):
    flags = [part for setting in settings for part in ("--set", setting)]
    accel("launch", "--cpu", "--num-processes", ranks, "--main-process-port", 0, "--tee", f"0:0,{ranks - 1}:0",
          "--log-dir", tmp_path / "logs", *flags, "--", "bash", "-c", SCRIPT, "bash", lines, cwd=tmp_path)
    return [tmp_path / f"logs/attempt_0/rank_{rank}" for rank in range(ranks)]


def files_of(folder, name):
    """The files of a stream, the oldest first."""
    numbers = sorted((int(path.suffix[1:]) for path in folder.glob(f"{name}.*")), reverse=True)
    assert numbers == list(range(len(numbers), 0, -1))
    return [folder / f"{name}.{number}" for number in numbers] + [folder / name]


def test_no_line_of_100_mb_is_lost(accel, tmp_path):
    lines = 1_000_000
    (folder,) = launch(accel, tmp_path, 1, lines, "launch.log_max_size=3MB", "launch.log_files=100")
    files = files_of(folder, "stdout.log")
    assert len(files) >= 33
    number = 0
    for path in files:
        assert path.stat().st_size <= 3_000_000 + LINE_BYTES
        with path.open() as file:
            for line in file:
                assert line == line_of(0, number)
                number += 1
    assert number == lines


def test_the_newest_files_stay(accel, tmp_path):
    lines = 100_000
    folders = launch(accel, tmp_path, 2, lines, "launch.log_max_size=1MB", "launch.log_files=2")
    for rank, folder in enumerate(folders):
        files = files_of(folder, "stdout.log")
        assert [path.name for path in files] == ["stdout.log.2", "stdout.log.1", "stdout.log"]
        text = "".join(path.read_text() for path in files)
        kept = len(text) // LINE_BYTES
        assert 20_000 <= kept <= 30_100
        assert text == "".join(line_of(rank, number) for number in range(lines - kept, lines))
        # stderr is below the limit.
        assert files_of(folder, "stderr.log") == [folder / "stderr.log"]
        assert (folder / "stderr.log").read_text() == "".join(line_of(rank, number) for number in range(0, lines, 100))


def test_default_is_one_file(accel, tmp_path):
    (folder,) = launch(accel, tmp_path, 1, 100_000)
    assert sorted(path.name for path in folder.glob("std*")) == ["stderr.log", "stdout.log"]
    assert (folder / "stdout.log").stat().st_size == 100_000 * LINE_BYTES


def test_a_new_run_removes_the_rotated_files_of_an_earlier_one(accel, tmp_path):
    launch(accel, tmp_path, 1, 10_000, "launch.log_max_size=100kB")
    (folder,) = launch(accel, tmp_path, 1, 10, "launch.log_max_size=100kB")
    assert files_of(folder, "stdout.log") == [folder / "stdout.log"]


def test_a_size_that_is_none_is_refused(accel, tmp_path):
    said = accel("launch", "--cpu", "--set", "launch.log_max_size=much", "--", "true", code=2, cwd=tmp_path).stderr
    assert re.search(r"'launch.log_max_size' must be a size, such as 100MB; found 'much'", said)
