"""The kinds of checkpoints in the zoo, which zoo_write.py writes, and the properties of each."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    title: str
    path: str = "pytorch_model_fsdp_0"  # The path below the zoo's directory `name`.
    in_safetensors: bool = True  # Whether safetensors supports its dtypes.
    extras: bool = False  # Whether it holds more than the model.

    def __str__(self) -> str:
        return self.name


KINDS = [
    Kind("dcp-rows", "DCP, `Shard(0)`, uneven, empty shards"),
    Kind("dcp-columns", "DCP, `Shard(1)`"),
    Kind("dcp-replicated", "DCP, `Replicate()`"),
    Kind("dcp-rows-rows", "DCP, 2-D mesh, `[Shard(0), Shard(0)]`"),
    Kind("dcp-rows-columns", "DCP, 2-D mesh, `[Shard(0), Shard(1)]`"),
    Kind("dcp-columns-rows", "DCP, 2-D mesh, `[Shard(1), Shard(0)]`"),
    Kind("dcp-replicate-shard", "DCP, 2-D mesh, `[Replicate(), Shard(0)]`"),
    Kind("dcp-shard-replicate", "DCP, 2-D mesh, `[Shard(1), Replicate()]`"),
    Kind("dcp-fsdp-tp", "DCP, FSDP2 over tensor parallelism"),
    Kind("dcp-dtypes", "DCP, every dtype", in_safetensors=False),
    Kind("dcp-sharded-dtypes", "DCP, every dtype, sharded", in_safetensors=False),
    Kind("dcp-layouts", "DCP, 0-dim, empty, non-contiguous"),
    Kind("dcp-threads", "DCP, three files a rank"),
    Kind("dcp-file-per-tensor", "DCP, a file a tensor"),
    Kind("dcp-no-collectives", "DCP, `__R.metadata` without `.metadata`"),
    Kind("dcp-zstd", "DCP, zstd streams"),
    Kind("dcp-extras", "DCP, extras beside the model", extras=True),
    Kind("accelerate-sharded", "Accelerate, SHARDED (FSDP2)"),
    Kind("accelerate-sharded-bf16", "Accelerate, SHARDED (FSDP2), bf16"),
    Kind("accelerate-dtensor-bin", "Accelerate, a `.bin` of DTensors a rank", "pytorch_model_fsdp_0_rank0.bin"),
    Kind("accelerate-dtensor-bin-bf16", "Accelerate, a `.bin` of DTensors a rank, bf16", "pytorch_model_fsdp_0_rank0.bin"),
    Kind("accelerate-full", "Accelerate, FULL", "pytorch_model_fsdp.bin"),
    Kind("accelerate-full-bf16", "Accelerate, FULL, bf16", "pytorch_model_fsdp.bin"),
    Kind("hf-dcp-rows", "DCP's safetensors, `Shard(0)`"),
    Kind("hf-dcp-rows-columns", "DCP's safetensors, 2-D mesh"),
    Kind("hf-dcp-replicated", "DCP's safetensors, replicated"),
    Kind("bin-state-dict", "`torch.save` of a state dict", "pytorch_model_fsdp.bin"),
    Kind("bin-views", "`torch.save`, shared storages, views, Parameters", "model.bin"),
    Kind("bin-dtypes", "`torch.save`, every dtype", "model.bin", in_safetensors=False),
    Kind("bin-nested", "`torch.save`, nested, pickle protocol 4", "checkpoint.pt", extras=True),
    Kind("safetensors-file", "safetensors, every dtype", "model.safetensors"),
    Kind("safetensors-index", "safetensors with index, of transformers", ""),
    Kind("torchscript-scripted", "TorchScript, scripted", "model.pt"),
    Kind("torchscript-traced", "TorchScript, traced", "model.pt"),
    Kind("torchscript-bf16", "TorchScript, bf16", "model.pt"),
]  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}
