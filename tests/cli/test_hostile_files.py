"""Each command ends soon and reports a file that blocks, never ends, needs all memory, or holds control characters."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time

import pytest
from hostile import EVIL, SIGNALS, pickled_tensors, run_measured, seconds_to_end, unseemly, write_safetensors, write_torch

# The commands that read a file. {bad} is the file under test, and {good} is a valid file.
READERS = {
    "inspect": ["inspect", "{bad}"],
    "verify": ["verify", "{bad}"],
    "diff": ["diff", "{good}", "{bad}"],
    "merge": ["merge-weights", "{bad}", "out"],
    "save": ["save", "{bad}", "out", "--type", "full"],
    "load": ["load", "{bad}", "--into", "{bad}", "--out", "new.pt"],
    "repair": ["repair", "{bad}", "--force"],
}

# Maps a path in a checkpoint to the path that the command is given.
PLACES = {
    "model.safetensors": "model.safetensors",
    "model.pt": "model.pt",
    "dcp/.metadata": "dcp",
    "dcp/__0.metadata": "dcp",
    "set/model.safetensors.index.json": "set",
    "set/model-00001-of-00001.safetensors": "set",
    "local/pytorch_model_fsdp_rank0.bin": "local",
    "local/accel_manifest.json": "local",
}


def make_fifo(path):
    os.mkfifo(path)
    return "is a FIFO"


def make_zero(path):
    path.symlink_to("/dev/zero")
    return "is a character device"


def make_socket(path):
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # The length of a socket's path is limited.
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
    listener.close()
    return "is a socket"


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.safetensors"
    write_safetensors(path, ["w"])
    return path


@pytest.mark.parametrize("make", [make_fifo, make_zero, make_socket])
@pytest.mark.parametrize("command", READERS)
def test_what_is_not_a_regular_file_is_named(accel, tmp_path, good, command, make):
    for number, (place, given) in enumerate(PLACES.items()):
        directory = tmp_path / str(number)
        path = directory / place
        path.parent.mkdir(parents=True)
        if place.startswith("set/model-"):
            (directory / "set/model.safetensors.index.json").write_text('{"weight_map": {"w": "model-00001-of-00001.safetensors"}}')
        if place.endswith("index.json"):
            write_safetensors(directory / "set/model-00001-of-00001.safetensors", ["w"])
        what = make(path)
        arguments = [word.format(bad=directory / given, good=good) for word in READERS[command]]
        begin = time.monotonic()
        result = accel(*arguments, code=None, cwd=directory, timeout=20)
        assert time.monotonic() - begin < 10
        said = result.stderr + result.stdout
        assert result.returncode != 0, f"{place}: {said}"
        if given.startswith("model.") and command != "repair":
            assert what in said, f"{place}: {said}"
        # Some commands reject the path before they read the file.
        others = ("is no directory", "is not a directory", "has no data files", "needs a model file", "holds no checkpoint")
        assert "not a regular file" in said or any(other in said for other in others), f"{place}: {said}"
        if command in ("merge", "diff", "save") and not place.endswith("manifest.json"):
            assert "not a regular file" in said, f"{place}: {said}"


@pytest.mark.parametrize("command", ["plan", "launch"])
def test_an_endless_configuration_ends(accel, tmp_path, command):
    result = accel(command, "/dev/zero", code=2, timeout=20)
    assert "'/dev/zero' has more than 1000000 bytes" in result.stderr


@pytest.mark.parametrize("command", ["plan", "launch"])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_configuration_that_does_not_come_is_waited_for_until_a_signal(accel_path, tmp_path, command, number):
    os.mkfifo(tmp_path / "config.yaml")
    process = subprocess.Popen([accel_path, command, "config.yaml"], cwd=tmp_path, stderr=subprocess.PIPE)
    time.sleep(0.3)
    assert process.poll() is None
    assert seconds_to_end(process, number) < 3
    process.stderr.close()
    assert process.returncode in (SIGNALS[number], -number)


def test_results_that_nobody_reads_are_waited_for_until_a_signal(accel_path, tmp_path):
    write_safetensors(tmp_path / "many.safetensors", [f"layer.{i}.weight" for i in range(20_000)])
    process = subprocess.Popen([accel_path, "inspect", "many.safetensors", "--tensors"], cwd=tmp_path, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
    time.sleep(1)
    assert process.poll() is None
    assert seconds_to_end(process, signal.SIGTERM) < 3
    process.stdout.close()
    assert process.returncode == 143


def sparse_metadata(directory):
    (directory / "ck").mkdir()
    with open(directory / "ck/.metadata", "wb") as file:
        file.truncate(4 << 30)
    return "ck"


def deflated(pickled):
    def make(directory):
        write_torch(directory / "model.pt", pickled)
        return "model.pt"

    return make


def header(text):
    def make(directory):
        (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
        return "model.safetensors"

    return make


def index(directory):
    (directory / "set").mkdir()
    (directory / "set/model.safetensors.index.json").write_bytes(b'{"weight_map": {}, "x": [' + b"[]," * 30_000_000 + b"[]]}")
    return "set"


HUGE = {
    "sparse .metadata": sparse_metadata,
    "lists in a deflated pickle": deflated(b"\x80\x02(" + b"]" * 60_000_000 + b"l."),
    "calls in a deflated pickle": deflated(b"\x80\x02ccollections\nOrderedDict\nq\x00(" + b"h\x00)RNb" * 6_000_000 + b"l."),
    "marks in a deflated pickle": deflated(b"\x80\x02" + b"(" * 60_000_000 + b"l."),
    "header of safetensors": header(b'{"a": [' + b"[]," * 30_000_000 + b"[]]}"),
    "index": index,
}


@pytest.mark.long(but="sparse .metadata")
@pytest.mark.parametrize("kind", HUGE)
def test_metadata_takes_no_more_memory_than_its_limit(accel_path, tmp_path, kind):
    path = HUGE[kind](tmp_path)
    code, stderr, peak = run_measured([accel_path, "inspect", path], cwd=tmp_path)
    assert code == 5, stderr
    assert f"'{path}" in stderr and "bad_alloc" not in stderr
    if not kind.startswith("marks"):
        assert "metadata may take 1.00 GB" in stderr and "hint: " in stderr and "ACCEL_MAX_METADATA" in stderr
    assert peak < 1_400_000_000


def test_the_limit_can_be_set(accel, tmp_path):
    write_safetensors(tmp_path / "some.safetensors", [f"layer.{i}.weight" for i in range(1000)])
    result = accel("inspect", "some.safetensors", code=5, env={"ACCEL_MAX_METADATA": "100kB"})
    assert "metadata may take 100 kB" in result.stderr
    accel("inspect", "some.safetensors", env={"ACCEL_MAX_METADATA": "10MB"})
    assert "ACCEL_MAX_METADATA" in accel("inspect", "some.safetensors", code=2, env={"ACCEL_MAX_METADATA": "much"}).stderr


def evil_files(directory):
    write_safetensors(directory / "a.safetensors", [EVIL, "v"], {"k" + EVIL: EVIL})
    write_safetensors(directory / "b.safetensors", [EVIL + "2", "v"])
    # A file name cannot hold a NUL byte, and zipfile cuts a record's name at one.
    name = EVIL.replace("\x00", "")
    write_torch(directory / "c.pt", pickled_tensors([EVIL.encode() + b"\xff\x9b1m", b"v"]), [("data/0", bytes(4)), (name, b"x")])
    shutil.copy(directory / "a.safetensors", directory / (name + ".safetensors"))
    with open(os.fsencode(directory / "bytes") + b"\xff\x9b.safetensors", "wb") as file:
        file.write((directory / "a.safetensors").read_bytes())
    (directory / "broken.safetensors").write_bytes(struct.pack("<Q", 40) + b'{"' + b"\x1b[31m" * 7 + b'"\n}')
    dcp = directory / "dcp"
    dcp.mkdir()
    (dcp / ".metadata").write_bytes(b"\x80\x02X\x06\x00\x00\x00\x1b[31m\n.")
    (directory / "config.yaml").write_bytes(b'"\\e[31m\\nforged": 1\n')


COMMANDS = [
    ["inspect", "a.safetensors"],
    ["inspect", "c.pt"],
    ["inspect", "dcp"],
    ["inspect", "broken.safetensors"],
    ["inspect", "{file}"],
    ["inspect", "{bytes}"],
    ["verify", "a.safetensors"],
    ["verify", "c.pt"],
    ["verify", "."],
    ["diff", "a.safetensors", "b.safetensors"],
    ["diff", "a.safetensors", "c.pt"],
    ["merge-weights", "c.pt", "out", "--dry-run"],
    ["merge-weights", "a.safetensors", "out"],
    ["merge-weights", "c.pt", "out"],
    ["save", "a.safetensors", "out", "--type", "full", "--dry-run"],
    ["save", "a.safetensors", "out", "--type", "sharded"],
    ["save", "c.pt", "out", "--type", "local"],
    ["load", "a.safetensors", "--into", "c.pt", "--out", "new.pt"],
    ["repair", "dcp"],
    ["plan", "config.yaml"],
    ["config", "c.pt"],
    ["config", "{file}"],
    ["launch", "config.yaml"],
    ["launch", "\x1b[31m\n.yaml"],
    ["\x1b[31m\n"],
]


@pytest.mark.parametrize("json_output", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: ascii(" ".join(command)))
def test_no_name_reaches_the_terminal_or_forges_a_line(accel_path, tmp_path, command, json_output):
    evil_files(tmp_path)
    places = {"file": EVIL.replace("\x00", "") + ".safetensors", "bytes": os.fsdecode(b"bytes\xff\x9b.safetensors")}
    # os.fsencode passes bytes that are not UTF-8 to the command unchanged.
    arguments = [os.fsencode(word.format(**places)) for word in command]
    result = subprocess.run([accel_path, *arguments, *(["--json"] if json_output else [])], cwd=tmp_path, capture_output=True,
                            stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, "NO_COLOR": "1"})
    for stream in (result.stdout, result.stderr):
        assert not unseemly(stream), stream
        assert not [line for line in stream.decode().splitlines() if line.startswith("forged")], stream
    if json_output:
        if result.stdout:
            json.loads(result.stdout)
        elif result.returncode:
            json.loads(result.stderr.splitlines()[-1])


def test_json_has_names_as_they_are(accel, tmp_path):
    evil_files(tmp_path)
    document = json.loads(accel("inspect", "a.safetensors", "--json").stdout)
    assert {tensor["name"] for tensor in document["checkpoints"][0]["tensors"]} == {EVIL, "v"}
    document = json.loads(accel("inspect", "c.pt", "--json").stdout)
    escaped = EVIL + "\\xff\\x9b1m"  # JSON shows the two bytes that are not UTF-8 as escapes.
    assert {tensor["name"] for tensor in document["checkpoints"][0]["tensors"]} == {escaped, "v"}


@pytest.mark.parametrize("command", [["merge-weights", "{source}", "out"], ["save", "{source}", "out", "--type", "full"],
                                     ["save", "{source}", "out", "--type", "sharded"], ["inspect", "{source}"]])
def test_a_file_that_may_not_grow_is_an_error(accel_path, tmp_path, command):
    source = tmp_path / "source.safetensors"
    text = b'{"w":{"dtype":"F32","shape":[100000],"data_offsets":[0,400000]}}'
    source.write_bytes(struct.pack("<Q", len(text)) + text + bytes(400_000))
    work = tmp_path / "work"
    work.mkdir()
    words = [word.format(source=source) for word in command]
    with open(work / "stdout", "wb") as stdout:
        result = subprocess.run(["sh", "-c", 'ulimit -f "$0"; exec "$@"', "0" if command[0] == "inspect" else "100", accel_path, *words],
                                cwd=work, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1, result
    assert ("File too large" in result.stderr and "ulimit -f" in result.stderr) or "cannot write to stdout" in result.stderr
    assert sorted(path.name for path in work.iterdir()) == ["stdout"]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read everything")
def test_a_directory_that_may_not_be_read_is_named_in_our_words(accel_path, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "file").touch()
    closed.chmod(0)
    # The commands get relative paths, because other users cannot enter the directories above.
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    tmp_path.chmod(0o755)
    try:
        for command in (["inspect", "closed"], ["verify", "closed"], ["merge-weights", "closed", "out"], ["diff", "closed", "closed"],
                        ["inspect", "closed/file"], ["repair", "closed"], ["save", "closed", "out", "--type", "full"]):
            result = subprocess.run([*prefix, accel_path, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert result.returncode not in (0, 126, 127), command
            assert "filesystem error" not in result.stderr and "cannot" in result.stderr, result.stderr
            assert "'closed" in result.stderr, result.stderr
    finally:
        closed.chmod(0o700)
