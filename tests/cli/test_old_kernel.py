"""The launcher on a kernel that lacks the newer system calls, such as that of RHEL 8. A filter takes them away."""

import ctypes
import errno
import os
import struct
import subprocess

# pidfd_open (Linux 5.3), close_range (5.9) and all later ones have greater numbers.
FIRST_AFTER_LINUX_4_18 = 424
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def take_system_calls_away():
    """Makes system calls that are newer than Linux 4.18 fail with ENOSYS, in this process and its children."""
    instructions = b"".join(struct.pack("HBBI", *instruction) for instruction in [
        (0x20, 0, 0, 0),  # Load the number of the call.
        (0x35, 0, 1, FIRST_AFTER_LINUX_4_18),  # If it is less, skip the next line.
        (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
        (0x06, 0, 0, 0x7FFF0000),
    ])
    code = ctypes.create_string_buffer(instructions)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def launch(accel_path, directory, script):
    command = [accel_path, "launch", "--cpu", "--num_processes", "2", "--", "sh", "-c", script]
    return subprocess.run(command, cwd=directory, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True,
                          timeout=300, stdin=subprocess.DEVNULL, preexec_fn=take_system_calls_away)


def test_program_runs_to_its_end(accel_path, tmp_path):
    result = launch(accel_path, tmp_path, "echo rank $RANK >&2")
    assert (result.returncode, sorted(result.stderr.splitlines())) == (0, ["[rank1] rank 1", "rank 0"])


def test_failure_of_a_rank_ends_the_others(accel_path, tmp_path):
    result = launch(accel_path, tmp_path, "[ $RANK = 0 ] && exec sleep 300; exit 3")
    assert result.returncode == 6, result.stderr
    assert "rank 1 of 2 failed: exit code 3" in result.stderr
    assert "rank 0: killed by SIGTERM (Terminated)" in result.stderr


COUNT_DESCRIPTORS = """
for status in /proc/[0-9]*/status; do
  grep -q "^PPid:.$PPID\\$" $status && grep -q accel-guardian $status && guardian=${status%/status}
done
for try in $(seq 200); do
  count=$(ls $guardian/fd | wc -l)
  [ $count = 1 ] && break
  sleep 0.05
done
echo $count
"""


def test_guardian_keeps_no_descriptor_but_its_own(accel_path, tmp_path):
    """The caller may wait for the end of a pipe that the launcher and its guardian inherit."""
    command = [accel_path, "launch", "--cpu", "--num_processes", "1", "--", "sh", "-c", COUNT_DESCRIPTORS]
    ends = os.pipe()
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                            pass_fds=ends, preexec_fn=take_system_calls_away)
    for end in ends:
        os.close(end)
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr
