"""Writes hostile files, and measures what a command does with them."""

import json
import re
import signal
import struct
import subprocess
import sys
import time
import zipfile

# A name with control characters of every kind. Its last line imitates a line of a report.
EVIL = "w\x1b]0;owned\x07\x1b[31m\r\x00\x7f\x9b1m\u202e\nforged: ok"


def write_safetensors(path, names, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))


def write_torch(path, pickled, records=()):
    """Writes a torch.save archive whose pickle is deflated."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        for name, content in records:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)


def pickled_tensors(names):
    """Returns the pickle of {name: a tensor of one float}. The names are bytes and need not be UTF-8."""
    tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
              b"X\x03\x00\x00\x00cpuK\x01tQK\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR")
    items = b"".join(b"X" + struct.pack("<I", len(name)) + name + tensor for name in names)
    return b"\x80\x02}(" + items + b"u."


def unseemly(stream):
    """Returns the control characters in a command's output, and bytes that are not UTF-8."""
    found = [f"{byte:#04x}" for byte in stream if (byte < 0x20 and byte != 0x0A) or byte == 0x7F]
    try:
        text = stream.decode()
    except UnicodeDecodeError as error:
        return found + [str(error)]
    return found + re.findall("[\x80-\x9f\u2028-\u202e\u2066-\u2069]", text)


def seconds_to_end(process, signal_number):
    begin = time.monotonic()
    process.send_signal(signal_number)
    process.wait(timeout=60)
    return time.monotonic() - begin


# ru_maxrss includes the memory that a process has before exec. These tests have torch loaded, so a small process starts
# the command.
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
"""


def run_measured(command, **options):
    """Returns the exit code, stderr, and the process's peak memory in bytes."""
    result = subprocess.run([sys.executable, "-S", "-c", MEASURE, *map(str, command)], capture_output=True, text=True, check=True,
                            **options)
    code, peak = map(int, result.stdout.split())
    return code, result.stderr, peak


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
