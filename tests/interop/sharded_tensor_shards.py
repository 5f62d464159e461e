"""Writes the files that two ranks save of ShardedTensors: sharded_tensor_shards.py DIRECTORY."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._shard.sharded_tensor as sharded
import torch.multiprocessing


def part_of(tensor, rank):
    rows = tensor.shape[0] // 2
    offsets = [rank * rows] + [0] * (tensor.dim() - 1)
    shard = sharded.Shard.from_tensor_and_offsets(tensor[rank * rows : (rank + 1) * rows].clone(), offsets, rank)
    return sharded.init_from_local_shards([shard], *tensor.shape)


def save(rank, directory):
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    state = {"w": part_of(torch.arange(12.0).view(4, 3), rank), "b": part_of(torch.arange(4.0), rank)}
    torch.save({"model": state, "step": 3}, f"{directory}/model_rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(save, (sys.argv[1],), 2)
