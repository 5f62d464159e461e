"""The file system that stands for two hosts behaves as network file systems do."""

import errno
import fcntl
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading

import pytest
from launching import wait_for
from two_hosts import two_hosts  # noqa: F401

HOLDER = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+b")
if sys.argv[2] == "ofd":
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
elif sys.argv[2] == "posix":
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
else:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def held_by_a_process(path, kind):
    """A process that holds a lock of the file until its stdin ends."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def ofd(file, command, kind):
    """Returns the kind of the lock that is in the way."""
    answer = fcntl.fcntl(file, command, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))
    return struct.unpack("hhqqi4x", answer)[0]


def is_free(path):
    with open(path, "r+b") as file:
        try:
            ofd(file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        # Not by closing the file, which the file system hears of a moment later.
        ofd(file, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
        return True


def test_hosts_see_what_the_other_one_does(two_hosts):
    first, second = two_hosts("cache=0")
    (first.path / "folder").mkdir()
    (first.path / "folder/file").write_bytes(b"x" * 300_000)
    os.symlink("file", first.path / "folder/symbolic")
    os.link(first.path / "folder/file", first.path / "folder/hard")
    assert sorted(os.listdir(second.path / "folder")) == ["file", "hard", "symbolic"]
    assert (second.path / "folder/symbolic").read_bytes() == b"x" * 300_000
    with open(second.path / "folder/file", "ab") as file:
        file.write(b"end")
    os.truncate(second.path / "folder/hard", 300_002)
    os.utime(second.path / "folder/file", (1, 2))
    os.chmod(second.path / "folder/file", 0o600)
    seen = os.stat(first.path / "folder/hard")
    assert (seen.st_size, seen.st_mtime, seen.st_mode & 0o777, seen.st_nlink) == (300_002, 2, 0o600, 2)
    os.rename(second.path / "folder", second.path / "renamed")
    os.unlink(second.path / "renamed/hard")
    assert sorted(os.listdir(first.path / "renamed")) == ["file", "symbolic"]
    with open(second.path / "renamed/file", "rb") as file:
        os.fsync(file)
        (second.path / "renamed/symbolic").unlink()
        (second.path / "renamed/file").unlink()
        assert file.read(3) == b"xxx"  # Its own host keeps a removed file for those who have it open.
    (second.path / "renamed").rmdir()
    assert os.listdir(two_hosts.folder) == []


def test_a_host_believes_what_it_knows_for_a_while(two_hosts):
    first, second = two_hosts("cache=1000")
    (first.path / "file").write_bytes(b"old")
    # Not by reading, after which the kernel asks for the time of the access.
    assert os.stat(second.path / "file").st_size == 3 and not (second.path / "new").exists()
    (first.path / "file").write_bytes(b"longer")
    (first.path / "new").touch()
    (first.path / "file").rename(first.path / "gone")
    assert os.stat(second.path / "file").st_size == 3 and not (second.path / "new").exists()


def test_a_file_that_another_host_has_removed_is_stale(two_hosts):
    first, second = two_hosts("cache=1000")
    (first.path / "file").write_bytes(b"old")
    with open(second.path / "file", "r+b", buffering=0) as file:
        os.unlink(first.path / "file")
        with pytest.raises(OSError) as stale:
            file.write(b"new")
    assert stale.value.errno == errno.ESTALE


def test_flock_of_a_directory_is_known_to_its_host_alone(two_hosts):
    first, second = two_hosts()
    descriptors = [os.open(host.path, os.O_RDONLY) for host in (first, second, first)]
    for descriptor in descriptors[:2]:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptors[2], fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["ofd", "posix", "flock"])
def test_a_file_lock_is_known_to_both_hosts_and_ends_with_its_holder(two_hosts, kind):
    first, second = two_hosts()
    (first.path / "file").touch()
    holder = held_by_a_process(first.path / "file", kind)
    assert not is_free(first.path / "file") and not is_free(second.path / "file")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    # The kernel tells the file system after the process is gone.
    wait_for(lambda: is_free(second.path / "file"))
    assert is_free(first.path / "file")


def test_an_ofd_lock_survives_another_descriptor_of_its_process_and_a_posix_lock_does_not(two_hosts):
    first, second = two_hosts()
    (first.path / "file").touch()
    with open(first.path / "file", "r+b") as file, open(second.path / "file", "r+b") as other:
        ofd(file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        assert ofd(file, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) == fcntl.F_UNLCK
        assert ofd(other, fcntl.F_OFD_GETLK, fcntl.F_RDLCK) == fcntl.F_WRLCK
        open(first.path / "file", "r+b").close()
        assert not is_free(second.path / "file")
        ofd(file, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
        assert is_free(second.path / "file")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not is_free(second.path / "file")
        open(first.path / "file", "r+b").close()
        assert is_free(second.path / "file")


def test_whoever_waits_for_a_lock_gets_it_from_the_other_host(two_hosts):
    first, second = two_hosts()
    (first.path / "file").touch()
    holder = held_by_a_process(first.path / "file", "ofd")
    with open(second.path / "file", "r+b") as file:
        waiting = threading.Thread(target=lambda: ofd(file, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK))
        waiting.start()
        holder.communicate()
        waiting.join(timeout=30)
        assert not waiting.is_alive() and not is_free(first.path / "file")


def test_locks_go_with_a_host_that_dies(two_hosts):
    first, second = two_hosts()
    (first.path / "file").touch()
    holder = held_by_a_process(first.path / "file", "ofd")
    assert not is_free(second.path / "file")
    first.die()
    assert is_free(second.path / "file")
    holder.communicate()


def test_local_locks_are_known_to_their_host_alone(two_hosts):
    first, second = two_hosts("local_locks")
    (first.path / "file").touch()
    with open(first.path / "file", "r+b") as file:
        ofd(file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        assert not is_free(first.path / "file") and is_free(second.path / "file")


def test_operations_fail_on_demand(two_hosts):
    first, second = two_hosts("cache=0")
    (first.path / "file").touch()
    first.fail(errno.ENOSPC, "write")
    with pytest.raises(OSError) as full:
        (first.path / "other").write_bytes(b"x")
    assert full.value.errno == errno.ENOSPC and os.stat(second.path / "other").st_size == 0
    (second.path / "other").write_bytes(b"x")
    first.clear()
    first.fail(errno.ENOLCK, "lock", name="fi*")
    with open(first.path / "file", "r+b") as file, pytest.raises(OSError) as locking:
        ofd(file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
    assert locking.value.errno == errno.ENOLCK and is_free(first.path / "other")
    first.fail(errno.ESTALE, "all")
    for operation in (os.stat, os.listdir, os.unlink):
        with pytest.raises(OSError) as stale:
            operation(first.path / "file" if operation != os.listdir else first.path)
        assert stale.value.errno == errno.ESTALE
    assert (second.path / "file").exists()
    first.clear()
    assert (first.path / "file").exists()


def test_operations_stall_until_they_are_released(two_hosts):
    first, second = two_hosts("cache=0")
    first.stall("write", "fsync", name="slow")
    (first.path / "fast").write_bytes(b"x")
    writing = threading.Thread(target=lambda: (first.path / "slow").write_bytes(b"late"))
    writing.start()
    first.wait_until_stalled("slow")
    first.stall("write", name="another")
    first.clear("another")
    assert (second.path / "slow").read_bytes() == b"" and writing.is_alive()
    (second.path / "slow").write_bytes(b"from the other host")
    first.clear()
    writing.join(timeout=30)
    assert (second.path / "slow").read_bytes()[:4] == b"late"


def test_a_host_sees_the_folder_where_it_wants(two_hosts, tmp_path):
    first, second = two_hosts()
    (tmp_path / "place").mkdir()
    for host in (first, second):
        command = [*host.shown_at(tmp_path / "place"), "sh", "-c", f"echo {host.path.name} >> {tmp_path}/place/said"]
        subprocess.run(command, check=True)
    assert (two_hosts.folder / "said").read_text() == "host0\nhost1\n"


def test_nothing_is_left_of_a_host_whose_test_has_died(two_hosts, tmp_path):
    host = two_hosts()[0]
    host.stall("write")
    writer = subprocess.Popen(["sh", "-c", f"echo x > {host.path}/file"], stderr=subprocess.DEVNULL)
    host.wait_until_stalled()
    host.process.stdin.close()  # As the end of this process does.
    assert host.process.wait(timeout=30) == 0
    assert writer.wait(timeout=30) != 0
    assert str(host.path) not in pathlib.Path("/proc/mounts").read_text()
