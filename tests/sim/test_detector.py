"""The simulated device finds what nothing orders, and nothing else."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
READS = "reads memory that .* nothing orders it after that"
WRITES = "writes memory that .* nothing orders it after that"
# What the device says of each program; None if it is right.
CASES = {
    "read_without_wait": r"aten::mul \(Float \[1000\] at .*\) on stream 'stream .*' " + READS,
    "read_behind_a_wait": None,
    "write_while_another_reads": r"aten::add_ .*on stream 'default 0' " + WRITES,
    "write_while_another_writes": "aten::zero_ .*" + WRITES,
    "event_before_the_write": "aten::mul .*" + READS,
    "wait_of_the_wrong_stream": "aten::mul .*" + READS,
    "wait_over_a_third_stream": None,
    "wait_of_the_host": None,
    "view_of_the_same_memory": "aten::mul .*" + READS,
    "target_of_a_list_operator": r"aten::mul .* reads memory that aten::_foreach_add_",
    "freed_while_another_stream_reads": r"aten::fill_ .*" + WRITES,
    "freed_and_the_stream_recorded": None,
    "freed_behind_a_wait": None,
    "gradient_of_another_stream": None,
    "mixed_devices": "is on the CPU and another on the simulated device",
    "two_devices": "aten::add: a tensor is on sim:1 and another on device 0",
    "work_of_another_device": r"aten::mul .* on stream 'stream .*' " + READS,
    "another_device_behind_a_wait": None,
    "two_streams_over_pinned_memory": r"copy to device \(4000 bytes of pinned memory at .*" + READS,
    "two_streams_over_pinned_memory_behind_a_wait": None,
    "fresh_memory_is_nan": None,
    "equal_bits_of_operators": None,
}
ENDING = {
    "host_reads_the_target_of_a_copy": "the host reads or writes pinned memory that copy to host .*has not waited for it",
    "host_reads_the_target_behind_a_wait": None,
    "host_writes_the_source_of_a_copy": "the host writes pinned memory that copy to device .*has not waited for it",
    "host_reads_the_source_of_a_copy": None,
    "host_reads_the_end_of_a_part": "the host reads or writes pinned memory that copy to host ",
    "host_reads_device_memory": "the host reads or writes memory of the device",
}


def run(*args):
    return subprocess.run([sys.executable, HERE / "cases.py", *args], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def said(made_once):
    directory = made_once("sim_cases", lambda directory: (directory / "said.json").write_text(run().stdout))
    return json.loads((directory / "said.json").read_text())


def test_each_program_has_a_verdict(said):
    assert set(said) == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_an_access_is_reported_if_nothing_orders_it(said, case):
    if CASES[case] is None:
        assert said[case] == ""
    else:
        assert re.search(CASES[case], said[case]), said[case]


@pytest.mark.long(but="host_reads_the_target_of_a_copy")
@pytest.mark.parametrize("case", ENDING)
def test_an_access_of_the_host_ends_the_process(case):
    result = run(case)
    if ENDING[case] is None:
        assert result.returncode == 0, result.stderr
    else:
        assert result.returncode != 0
        assert re.search(ENDING[case], result.stderr), result.stderr
