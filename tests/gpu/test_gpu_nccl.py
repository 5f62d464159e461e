"""Each collective of NCCL that accel has, and both ends of a group. Trainings reach only some of them."""

import pytest

from gpu_runs import collectives


@pytest.mark.long(but="sim-1-shut_down")
@pytest.mark.parametrize("end", ["shut_down", "destroy"])
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.gpus(2)), pytest.param(3, marks=pytest.mark.gpus(3))])
def test_each_collective_of_nccl(accel, accel_path, accelerator, end, ranks):
    gpus = ",".join(map(str, range(ranks)))
    said = collectives(accel, accel_path, "nccl", "gpu", end, ranks=ranks, where=("--gpu-ids", gpus))
    # libtorch says so of a group that it aborts.
    if accelerator == "cuda":
        assert ("destroy_process_group" in said) == (end == "destroy")
