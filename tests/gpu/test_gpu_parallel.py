"""Tensor and sequence parallelism on GPUs, whose collectives run inside forward and backward, beside CPU ranks."""

import json

import numpy
import pytest
import torch
from safetensors.numpy import save_file

import train_runs
from gpu_runs import CPU, GPU, gpus, launch, real_gpus, worst

# As in test_gpu_ranks.py.
CLOSE = 2e-4
NARROW = 3e-2
POISON = {"ACCEL_POISON": "1"}
WIDTH, HEAD, LENGTH, STEPS = 48, 12, 32, 6


class Attention(torch.nn.Module):
    """The number of heads is that which the outputs of the projections have."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q_norm = torch.nn.LayerNorm(HEAD)
        self.head: int = HEAD

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[0], x.shape[1]
        q = self.q_norm(self.q(x).view(batch, length, -1, self.head)).transpose(1, 2)
        k = self.k(x).view(batch, length, -1, self.head).transpose(1, 2)
        v = self.v(x).view(batch, length, -1, self.head).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.mix = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        y = self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))
        return x + y + torch.sin(self.mix(y))


class Net(torch.nn.Module):
    """A token sees those before it in its own document."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(256, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(3)])
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        document = (position_ids == 0).cumsum(-1)
        is_same = document.unsqueeze(1) == document.unsqueeze(2)
        mask = (is_same & (position_ids.unsqueeze(1) <= position_ids.unsqueeze(2))).unsqueeze(1)
        x = self.tokens(input_ids) + self.places(position_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


# Each style, and so each collective of tensor parallelism.
STYLES = {"attention.q": "colwise", "attention.k": "colwise", "attention.v": "colwise", "attention.out": "rowwise",
          "attention.q_norm": "replicated_with_grad_allreduce", "up": "colwise", "down": "rowwise", "mix": "rowwise_split_input"}
PLAN = {**{f"layers.*.{module}": style for module, style in STYLES.items()},
        "tokens": "embedding_rowwise", "places": "embedding_colwise", "head": "colwise_gather_output"}
TP = {"parallelism_config.tp_size": 2, "parallel.tp_plan": PLAN}
SP = {"parallelism_config.sp_size": 2}
CHECKPOINTED = {"fsdp_config.fsdp_activation_checkpointing": True}
ACTIVATIONS = {**CHECKPOINTED, "fsdp_config.fsdp_activation_checkpointing_offload": True}
PARAMS = {"fsdp_config.fsdp_offload_params": True}
BF16 = ["--mixed-precision", "bf16"]

# Name: ranks, flags, options.
CASES = {
    "tp": (2, [], TP),
    "dp x tp, accumulation": (4, [], {**TP, "parallelism_config.dp_shard_size": 2, "gradient_accumulation_steps": 2}),
    "replicas x tp, checkpointing": (4, [], {**TP, **CHECKPOINTED, "parallelism_config.dp_replicate_size": 2}),
    "tp, bf16": (2, BF16, TP),
    "tp, gloo": (2, [], {**TP, "launch.backend": "gloo"}),
    "tp, offload, accumulation": (2, [], {**TP, **PARAMS, "gradient_accumulation_steps": 2}),
    "sp": (2, [], SP),
    "dp x sp, accumulation": (4, [], {**SP, "parallelism_config.dp_shard_size": 2, "gradient_accumulation_steps": 2}),
    "sp, bf16, checkpointing": (2, BF16, {**SP, **CHECKPOINTED}),
    "sp, offload, offloaded activations": (2, [], {**SP, **PARAMS, **ACTIVATIONS}),
    "sp, gloo": (2, [], {**SP, "launch.backend": "gloo"}),
}


@pytest.fixture(scope="module")
def source(made_once):
    """A directory with the model and with documents of the text, of several lengths."""

    def make(directory):
        torch.manual_seed(0)
        torch.jit.script(Net()).save(str(directory / "net.pt"))
        lengths = numpy.array([20, 12, 30, 2, 32, 17, 15] * 20)
        ids = numpy.frombuffer(train_runs.TEXT.read_bytes()[: lengths.sum()], dtype="uint8").astype("uint16")
        save_file({"input_ids": ids, "label_mask": numpy.ones(len(ids), "uint8"), "lengths": lengths}, directory / "data.safetensors",
                  metadata={"format": "accel.documents"})

    return made_once("gpu_parallel", make)


def waits_of_the_host(trace):
    """How often the host waits for the simulated device in each step, with what it does before the first one and behind
    the last one. A step ends with the kernels of the optimizer, of which there is one for each kind of parameters."""
    # The rank ends without closing the list.
    events = json.loads(trace.read_text().rstrip().rstrip(",") + "]")
    steps, ended = [0], False
    for event in events:
        if event["ph"] != "X":
            continue
        if event["name"] == "aten::_fused_adamw_":
            ended = True
        elif event["tid"] == 9999:
            steps = [*steps, 1] if ended else [*steps[:-1], steps[-1] + 1]
            ended = False
    return steps


@pytest.mark.long(but="sim-tp")
@pytest.mark.parametrize("case", CASES)
def test_ranks_that_share_samples_equal_cpu_ranks(accel, accelerator, source, tmp_path, case):
    """The simulated device computes with the kernels of a CPU, so that in float32 nothing differs. Only the squares of the
    norm are added in another order, for which nothing is clipped. With too few GPUs the ranks share one, over Gloo."""
    ranks, flags, options = CASES[case]
    where = gpus(ranks) if accelerator == "sim" or real_gpus() >= ranks else GPU
    options = {
        "model": {"path": str(source / "net.pt"), "inputs": ["input_ids", "position_ids"], "fused_head": "never"},
        "data.train": {"format": "documents", "path": str(source / "data.safetensors"), "sequence_length": LENGTH, "packing": "best_fit"},
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer", "max_steps": STEPS, "max_grad_norm": 1e9, **options}
    env = {**POISON, "ACCEL_SIM_TRACE": str(tmp_path / "trace")}
    gpu, said = launch(accel, tmp_path, *flags, where=where, ranks=ranks, env=env, **options)
    assert f"backend {'gloo' if where is GPU else options.get('launch.backend', 'nccl')}" in said
    # CPU ranks come last: the device names what is not waited for, and they have wrong numbers (tests/sim/mutations.py).
    cpu, _ = launch(accel, tmp_path, *flags, where=CPU, ranks=ranks, **options)
    if accelerator == "sim" and not flags:
        assert gpu["loss"] == cpu["loss"]
    if accelerator == "sim" and not {"gloo", "offload"} & set(case.split(", ")):
        # With tensor parallelism the first two steps compare gradients on the host.
        assert waits_of_the_host(tmp_path / "trace/rank_0.json")[2:STEPS] == [1] * (STEPS - 2)
    assert worst(gpu, cpu) < (NARROW if flags else CLOSE)
    assert gpu["loss"][-1] < gpu["loss"][0] - 0.1
