"""Mixed precision without fully_shard equals Accelerate's: autocast in one process, under data parallelism and in FSDP
version 1."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import train_runs
from autocast_peer import fully_sharded, under_autocast
from pt2_models import FREE, export
from test_parity import begin_equal, bound_in, reference, worst

NO = {"distributed_type": "NO"}
MULTI_CPU = {"distributed_type": "MULTI_CPU"}
VERSION_1 = {"fsdp_config.fsdp_version": 1}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
SCALE = 65536.0  # float16 needs a scaled loss; the scale changes nothing in bfloat16.
CHECKPOINTING = {"fsdp_config.fsdp_activation_checkpointing": True}


@pytest.mark.long(but="one process")
@pytest.mark.parametrize(
    "dtype, processes, options, spec",
    [("bfloat16", 1, NO, {"autocast": "bfloat16"}),
     ("bfloat16", 2, {**MULTI_CPU, "gradient_accumulation_steps": 2}, {"autocast": "bfloat16", "accumulate": 2}),
     ("float16", 2, MULTI_CPU, {"autocast": "float16", "scaler": {}}),
     ("bfloat16", 2, VERSION_1, {"fsdp1": "bfloat16"}),
     ("bfloat16", 3, {**VERSION_1, "gradient_accumulation_steps": 2}, {"fsdp1": "bfloat16", "accumulate": 2}),
     ("float16", 2, VERSION_1, {"fsdp1": "float16", "scaler": {}})],
    ids=["one process", "DDP, accumulation", "DDP, float16", "version 1", "version 1, 3 ranks, accumulation",
         "version 1, float16"])
def test_losses_equal_accelerates(accel, peer, tmp_path, dtype, processes, options, spec):
    """Those of float32 differ from the first step on."""
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, processes, **options), "--mixed-precision", PRECISIONS[dtype])
    ours, norms = train_runs.metrics(tmp_path), train_runs.metrics(tmp_path, "grad_norm")
    theirs = reference(peer, tmp_path, processes, **spec)
    (tmp_path / "out/metrics.jsonl").unlink()
    accel("launch", train_runs.config(tmp_path, processes, max_steps=5, **options))
    full = train_runs.metrics(tmp_path)
    norm = abs(norms[0] / theirs["grad_norm"][0] - 1)
    print(f"{dtype}, {processes} ranks, {options}: largest difference of the loss from Python {worst(ours, theirs['loss']):.1e}, "
          f"of the first gradient norm {norm:.1e}; of the first losses of float32 {abs(full[0] - theirs['loss'][0]):.1e} and "
          f"{abs(full[1] - theirs['loss'][1]):.1e}")
    assert begin_equal(ours, theirs["loss"]) and not begin_equal(full, theirs["loss"])
    # Gradients are float32 and their squares are added up in another order. Of 3 ranks accel rounds the mean once, and Python
    # twice, to the dtype.
    assert norm < (100 * torch.finfo(torch.float32).eps if processes < 3 else torch.finfo(getattr(torch, dtype)).eps / 4)
    assert worst(ours, theirs["loss"]) < bound_in(dtype, theirs["loss"])


class TinyRotaryEmbedding(nn.Module):
    """Computes angles of positions in float32 under any autocast, as the rotary embeddings of transformers do."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("frequencies", 1.0 / 10 ** torch.arange(0, width, dtype=torch.float32).div(width))

    def forward(self, length: int) -> torch.Tensor:
        positions = torch.arange(1000, 1000 + length).float()
        return (positions[:, None] @ self.frequencies.float()[None, :]).cos()


class InPython(TinyRotaryEmbedding):
    def forward(self, length: int) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            positions = torch.arange(1000, 1000 + length).float()
            return (positions[:, None] @ self.frequencies.float()[None, :]).cos()


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.linear(x).flatten(0, 1)).view_as(x)


class Net(nn.Module):
    def __init__(self, rotary: type = TinyRotaryEmbedding, width: int = 16):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.rotary = rotary(width)
        self.layer = Layer(width)
        self.second = Layer(width)
        self.head = nn.Linear(width, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        return self.head(self.second(self.layer(x * self.rotary(x.shape[1]))))


def batches(path):
    text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
    windows = torch.stack([text[k:k + 33] for k in range(0, len(text) - 32, 32)])
    return [(group[:, :-1], group[:, 1:]) for group in windows.split(4)]


def mean_loss(model, data):
    """Returns the mean loss of all windows as accel computes it: each batch's mean has the weight of its windows."""
    total, windows = 0.0, 0
    with torch.no_grad():
        for inputs, targets in data:
            total += F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item() * len(inputs)
            windows += len(inputs)
    return total / windows


def net_config(directory, data, **options):
    return train_runs.config(
        directory, 1, data=data, max_steps=1, eval_every=1,
        **{"data.eval": {"format": "text", "path": str(data), "sequence_length": 32}, "checkpoint.every": 1,
           "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer", **options})


@pytest.fixture
def net(tmp_path, one_thread):
    """Exports the model. Returns the same model in Python and a text whose last batch has 2 windows."""
    torch.manual_seed(0)
    model = Net()
    model.layer.norm.weight.data.add_(torch.randn(16) * 0.3)
    torch.jit.script(model).save(str(tmp_path / "gpt.pt"))
    peer = Net(InPython)
    peer.load_state_dict(model.state_dict())
    text = tmp_path / "text.txt"
    text.write_bytes(train_runs.TEXT.read_bytes()[:32 * 14 + 1])
    return peer, text


@pytest.fixture
def one_thread(monkeypatch):
    """The number of threads decides in which order sums are taken, here and in the launched run."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_and_evaluate(model, data):
    """Returns the loss of a step that does not update the weights, its gradient norm and the held-out loss."""
    inputs, targets = data[0]
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    # Recomputation in backward makes Python's batch norms count the batch twice.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    (loss * SCALE).backward()
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    norm = torch.nn.utils.get_total_norm([p.grad.float() / SCALE for p in model.parameters()]).item()
    model.eval()
    return loss.item(), norm, mean_loss(model, data)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_training_and_evaluation_under_autocast_equal_pythons(accel, tmp_path, net, dtype):
    """The losses are equal bit for bit, also with a rotary embedding and running statistics."""
    model, text = net
    accel("launch", net_config(tmp_path, text, **NO), "--mixed-precision", PRECISIONS[dtype])
    loss, norm, held_out = train_and_evaluate(under_autocast(model, dtype), batches(text))
    assert train_runs.metrics(tmp_path) == [pytest.approx(loss, abs=1e-12)]
    assert train_runs.metrics(tmp_path, "grad_norm") == [pytest.approx(norm, rel=1e-5)]
    assert train_runs.metrics(tmp_path, "eval_loss") == [pytest.approx(held_out, abs=1e-12)]


@pytest.fixture
def one_rank():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_buffers_and_batch_norms_in_version_1(accel, tmp_path, net, one_rank, dtype):
    """Buffers have 16 bits in training and 32 in the checkpoint. Batch norms are in float32 throughout, so the second
    layer runs, and is recomputed, only under autocast."""
    model, text = net
    accel("launch", net_config(tmp_path, text, **VERSION_1, **CHECKPOINTING), "--mixed-precision",
          PRECISIONS[dtype])
    peer = fully_sharded(model, dtype, Layer, checkpoints=True)
    assert peer.module.rotary.frequencies.dtype == torch.float32  # The first forward casts the buffer.
    loss, norm, held_out = train_and_evaluate(peer, batches(text))
    assert peer.module.rotary.frequencies.dtype == getattr(torch, dtype)
    assert train_runs.metrics(tmp_path) == [pytest.approx(loss, abs=1e-12)]
    assert train_runs.metrics(tmp_path, "grad_norm") == [pytest.approx(norm, rel=1e-5)]
    assert train_runs.metrics(tmp_path, "eval_loss") == [pytest.approx(held_out, abs=1e-12)]
    accel("merge-weights", tmp_path / "out/checkpoints/checkpoint_1", tmp_path / "merged")
    saved = load_file(tmp_path / "merged/model.safetensors")
    assert {tensor.dtype for name, tensor in saved.items() if "num_batches" not in name} == {torch.float32}
    assert torch.equal(saved["rotary.frequencies"], peer.module.rotary.frequencies.float())
    batch_norm = next(module for module in peer.modules() if isinstance(module, nn.BatchNorm1d))
    torch.testing.assert_close(saved["layer.norm.running_mean"], batch_norm.running_mean, rtol=1e-5, atol=1e-7)
    assert batch_norm.running_mean.dtype == torch.float32


class WithBlocks(Net):
    """Sets autocast for parts of forward. A layer is gathered within a block of the scripted model; torch.export does not
    keep calls of modules within blocks."""

    def __init__(self, layer_within: bool):
        super().__init__(InPython)
        self.layer_within = layer_within

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) * self.rotary(input_ids.shape[1])
        if not self.layer_within:
            x = self.layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if self.layer_within:
                x = self.layer(x)
            gate = x @ self.head.weight[:16]
            with torch.autocast("cpu", enabled=False):
                x = x + gate.float() @ self.head.weight[:16]
        x = self.second(x)
        with torch.autocast("cpu", enabled=False):
            return F.linear(x.float(), self.head.weight, self.head.bias)


@pytest.mark.long(but="scripted-None")
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("way", ["scripted", "exported"])
def test_blocks_of_autocast_in_the_model_equal_pythons(accel, tmp_path, net, way, dtype):
    """Recomputed in backward, and with any mixed precision around the blocks."""
    model = WithBlocks(way == "scripted")
    model.load_state_dict(net[0].state_dict())
    options = {**NO, **CHECKPOINTING}
    if way == "scripted":
        torch.jit.script(model).save(str(tmp_path / "gpt.pt"))
    else:
        export(model, tmp_path / "model.pt2", torch.zeros(2, 16, dtype=torch.long), dynamic=FREE)
        options["model.path"] = str(tmp_path / "model.pt2")
    flags = ("--mixed-precision", PRECISIONS[dtype]) if dtype else ()
    accel("launch", net_config(tmp_path, net[1], **options), *flags)
    peer = under_autocast(model, dtype) if dtype else model
    loss, norm, held_out = train_and_evaluate(peer, batches(net[1]))
    assert train_runs.metrics(tmp_path) == [pytest.approx(loss, abs=1e-12)]
    assert train_runs.metrics(tmp_path, "grad_norm") == [pytest.approx(norm, rel=1e-5)]
    assert train_runs.metrics(tmp_path, "eval_loss") == [pytest.approx(held_out, abs=1e-12)]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 16)
        self.gate = nn.Linear(16, 16)
        self.head = nn.Linear(16, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x * self.gate(x)
        return self.head(x)


def test_a_layer_that_an_exported_model_calls_within_a_block(accel, tmp_path, net):
    """Its call is not in the record, so it has no unit of its own, and the model is the same all the same."""
    torch.manual_seed(0)
    model = Gated()
    export(model, tmp_path / "model.pt2", torch.zeros(2, 16, dtype=torch.long), dynamic=FREE)
    accel("launch", net_config(tmp_path, net[1], **{"model.path": str(tmp_path / "model.pt2"), "checkpoint.every": 100,
                                                   "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"}))
    loss, norm, held_out = train_and_evaluate(model, batches(net[1]))
    assert train_runs.metrics(tmp_path) == [pytest.approx(loss, abs=1e-12)]
    assert train_runs.metrics(tmp_path, "grad_norm") == [pytest.approx(norm, rel=1e-5)]
