"""Writes a checkpoint with Megatron-Core's own code: a GPT and its optimizer, as `torch_dist`.

Usage: megatron_writer.py DIRECTORY OPTIMIZERS. With several optimizers each has a part of the parameters, as Megatron gives the
experts of a mixture one of their own. What `merge-weights` is to write is beside it, in DIRECTORY.pt: Megatron's own view of the
weights, before they were written.
"""

import os
import sys

import torch


def without_gpu():
    """Megatron-Core asks for a GPU in places where a CPU would do."""
    torch.cuda.synchronize = lambda *arguments: None
    torch.cuda.current_device = lambda: "cpu"


def optimizer_over(parameters):
    """Megatron's optimizer around torch's, with moments as after a step."""
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer

    inner = torch.optim.AdamW(parameters)
    for parameter in parameters:
        inner.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": torch.rand_like(parameter),
                                  "exp_avg_sq": torch.rand_like(parameter)}
    # Its own constructor adds a number on the GPU, which it does not save.
    outer = FP32Optimizer.__new__(FP32Optimizer)
    MegatronOptimizer.__init__(outer, inner, OptimizerConfig(optimizer="adam", lr=1e-3), lambda *arguments: None)
    return outer


def weights_of(sharded):
    """The tensors by their keys. A layer's weight is one row of that of all layers."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    found = {}
    for tensor in nested_values(sharded):
        if not isinstance(tensor, ShardedTensor):
            continue
        whole = found.setdefault(tensor.key, torch.zeros(tensor.global_shape))
        whole[tuple(tensor.global_offset[:tensor.prepend_axis_num])] = tensor.data.detach()
    return found


def main(directory, optimizers):
    without_gpu()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}.store", rank=0, world_size=1)
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import ChainedOptimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel()
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True,
                               pipeline_dtype=torch.float32)
    model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=16)
    parameters = list(model.parameters())
    parts = [optimizer_over(parameters[i::optimizers]) for i in range(optimizers)]
    optimizer = parts[0] if optimizers == 1 else ChainedOptimizer(parts)
    weights = model.sharded_state_dict()
    torch.save(weights_of(weights), f"{directory}.pt")
    dist_checkpointing.save({**weights, "optimizer": optimizer.sharded_state_dict({**weights})}, directory)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.makedirs(sys.argv[1])
    main(sys.argv[1], int(sys.argv[2]))
