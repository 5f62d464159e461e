"""Writes the DTensor files of 6 ranks on a 2 x 3 mesh into sys.argv[1], rank after rank, with torch's own splitting."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD = (2, 3)
PLACEMENTS = {
    "hybrid": [Replicate(), Shard(0)],
    "hybrid_columns": [Shard(1), Replicate()],
    "grid": [Shard(0), Shard(1)],
    "twice": [Shard(0), Shard(0)],
    "strided": [_StridedShard(0, split_factor=3), Shard(0)],
    "uneven": [_StridedShard(1, split_factor=3), Shard(1)],
    "everywhere": [Replicate(), Replicate()],
}


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    full = {name: torch.arange(13.0 * 11).reshape(13, 11) + 1000 * i for i, name in enumerate(PLACEMENTS)}
    full["uneven"] = torch.arange(40.0).reshape(4, 10)
    torch.save(full, directory / "expected.zip")
    for rank in range(WORLD[0] * WORLD[1]):
        dist.init_process_group("fake", rank=rank, world_size=WORLD[0] * WORLD[1], store=FakeStore())
        mesh = init_device_mesh("cpu", WORLD, mesh_dim_names=("dp", "tp"))
        state = {}
        for name, placements in PLACEMENTS.items():
            local = full[name]
            for dim, placement in enumerate(placements):
                if not isinstance(placement, Replicate):
                    pieces, _ = placement._split_tensor(local, WORLD[dim], with_padding=False)
                    local = pieces[mesh.get_coordinate()[dim]]
            shape = full[name].shape
            state[name] = DTensor.from_local(
                local.clone(), mesh, placements, run_check=False, shape=shape, stride=full[name].stride()
            )
        torch.save(state, directory / f"pytorch_model_fsdp_0_rank{rank}.bin")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
