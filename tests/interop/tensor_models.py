"""Small language models of transformers for tensor parallelism: programs of torch.export in which no size says how many heads
there are, so that they are right for a part of the heads, too. And what transformers' own training of a model is compared with."""

import json

import torch
import train_runs
import transformers
from torch.export import Dim

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "vocab_size": 256, "max_position_embeddings": 64, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
# The plans of transformers, with the embedding and the head.
LAYERS = {"self_attn.q_proj": "colwise", "self_attn.k_proj": "colwise", "self_attn.v_proj": "colwise", "self_attn.o_proj": "rowwise",
          "mlp.gate_proj": "colwise", "mlp.up_proj": "colwise", "mlp.down_proj": "rowwise"}
NORMS = {"self_attn.q_norm": "replicated_with_grad_allreduce", "self_attn.k_norm": "replicated_with_grad_allreduce"}
LLAMA = {f"layers.*.{module}": style for module, style in LAYERS.items()}
QWEN3 = {**LLAMA, **{f"layers.*.{module}": style for module, style in NORMS.items()}}
# A training that torch's AdamW does as well. The gradients of some biases of keys are zero but for rounding errors: a small eps
# would make whole steps of them.
OPTIMIZER = {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-5}
JUDGED = {"optimizer": {"type": "adamw", **OPTIMIZER}, "lr_scheduler": {"type": "constant"}, "max_grad_norm": None}
VOCABULARY = {"embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}


def free_heads(program, heads):
    """Sizes of repeat_kv, which are numbers of heads, become -1: of `expand` the size that is there, and of the `reshape` from
    [b, kv, repeats, s, d] to [b, heads, s, d] the heads."""
    aten = torch.ops.aten
    for node in program.graph.nodes:
        if node.op != "call_function" or not node.args or not hasattr(node.args[0], "meta"):
            continue
        value = node.args[0].meta.get("val")
        if node.target == aten.expand.default and value.dim() == 5:
            node.args = (node.args[0], [node.args[1][0], -1, *node.args[1][2:]])
        elif node.target in (aten.reshape.default, aten.view.default) and value.dim() == 5:
            assert node.args[1][1] == heads
            node.args = (node.args[0], [node.args[1][0], -1, *node.args[1][2:]])


def export(path, family, **sizes):
    """Writes the model to `path`, which ends in .pt2, and returns it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **sizes})
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    with torch.no_grad():  # Norms and biases are not 1 and 0, so that a mix-up shows.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    forward = model.forward
    model.forward = lambda input_ids: forward(input_ids=input_ids, use_cache=False, return_dict=False)[0]
    program = torch.export.export(model, (torch.zeros(2, 16, dtype=torch.long),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},),
                                  strict=False)
    model.forward = forward
    free_heads(program, config.num_attention_heads)
    torch.export.save(program, path)
    return model


def train_with_transformers(peer, directory, tp, steps, shards=1):
    """Trains the model in `directory`/model as JUDGED says, on ranks among which transformers cuts it, and shards it. Returns
    what tensor_parallel_peer.py writes."""
    spec = {"model": str(directory / "model"), "data": str(train_runs.TEXT), "length": 32, "batch_size": 4,
            "shards": shards, "steps": steps,
            "optimizer": OPTIMIZER, "out": str(directory / "peer.pt")}
    (directory / "spec.json").write_text(json.dumps(spec))
    peer(shards * tp, "tensor_parallel_peer.py", directory / "spec.json")
    return torch.load(directory / "peer.pt", weights_only=True)
