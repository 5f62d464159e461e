"""Run on 2 ranks: writes the state dicts of FSDP1 that each rank has for itself into sys.argv[1], by torch.save."""

import pathlib
import sys
import warnings

import ranks_end
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType


def main() -> None:
    warnings.simplefilter("ignore")
    directory = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3))
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), directory / "expected.bin")
    sharded = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    for kind in ("SHARDED", "LOCAL"):
        with FullyShardedDataParallel.state_dict_type(sharded, StateDictType[f"{kind}_STATE_DICT"]):
            state = sharded.state_dict()
        (directory / kind).mkdir(exist_ok=True)
        torch.save({"model": state, "step": 3}, directory / kind / f"model_world_size_2_rank_{dist.get_rank()}.pt")
    ranks_end.leave()


if __name__ == "__main__":
    main()
