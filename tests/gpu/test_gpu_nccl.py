"""NCCL with one rank: each collective that accel has, and both ends of a group. Trainings reach only some of them."""

import pytest

from gpu_runs import collectives


@pytest.mark.parametrize("end", ["shut_down", "destroy"])
def test_each_collective_of_nccl_with_one_rank(accel, accel_path, end):
    said = collectives(accel, accel_path, "nccl", "cuda", end, ranks=1, where=("--gpu-ids", "0"))
    # libtorch says so of a group that it aborts.
    assert ("destroy_process_group" in said) == (end == "destroy")
