"""Python programs under the launcher: torch.distributed and Accelerate initialize from its environment."""

import pathlib
import sys

import pytest

PEERS = pathlib.Path(__file__).resolve().parent.parent / "interop"

SUM = """
import sys; sys.path.insert(0, sys.argv[1]); import ranks_end
import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size())
ranks_end.leave()
"""

STATE = """
import sys; sys.path.insert(0, sys.argv[1]); import ranks_end
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
accelerator.print("ranks", accelerator.num_processes, "precision", accelerator.mixed_precision)
ranks_end.leave()
"""


@pytest.mark.parametrize("libuv", [1, 0])
def test_torch_distributed(accel, libuv):
    """Both servers of torch's store may listen on the port that the launcher holds."""
    result = accel("launch", "--cpu", "--num_processes", 3, "--main_process_port", 0, "--", sys.executable, "-c", SUM, PEERS,
                   env={"USE_LIBUV": str(libuv)})
    assert result.stdout == "sum 6.0 of 3\n"


def test_accelerator(accel):
    result = accel("launch", "--cpu", "--num_processes", 2, "--main_process_port", 0, "--mixed_precision", "bf16", "--",
                   sys.executable, "-c", STATE, PEERS)
    assert result.stdout == "ranks 2 precision bf16\n"
