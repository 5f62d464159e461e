"""A head that is computed with its cross entropy some tokens at a time, against F.linear and F.cross_entropy of torch."""

import json

import pytest
import torch
import train_runs
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, LENGTH, CLASSES, WIDTH = 5, 4, 6, 29, 8
WEIGHTS = (torch.arange(CLASSES) % 5 * 0.5 + 0.25).tolist()
IGNORED = 3


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self, tied: bool = False, bias: bool = False, classes: int = CLASSES):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(classes, WIDTH)
        self.block = Block(WIDTH)
        self.head = nn.Linear(WIDTH, classes, bias=bias)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids):
        return self.head(self.block(self.tokens(input_ids)))


class Scaled(Net):
    def forward(self, input_ids):
        return self.head(self.block(self.tokens(input_ids))) * 0.5


def data_of(samples, length=LENGTH, classes=CLASSES):
    """Tokens, and labels of which samples count more or fewer; a batch has one at least."""
    torch.manual_seed(1)
    ids = torch.randint(0, classes, (samples, length))
    labels = torch.randint(0, classes, (samples, length))
    labels[torch.rand(samples, length) < torch.linspace(0, 0.8, samples)[:, None]] = -100
    labels[::BATCH, 0] = 3
    return ids, labels


def configure(tmp_path, processes, model, tensors, settings, pt2=False, **training):
    path = tmp_path / ("net.pt2" if pt2 else "net.pt")
    if pt2:
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        torch.export.save(torch.export.export(model, (ids,), strict=False), path)
    else:
        torch.jit.script(model).save(str(path))
    save_file(tensors, tmp_path / "data.safetensors")
    return train_runs.config(tmp_path, processes, **{
        "model": {"path": str(path), "fused_head": "always", **settings},
        "data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")}, "data.batch_size": BATCH,
        "optimizer": {"type": "sgd", "lr": 0.5}, "lr_scheduler": {"type": "constant"}, "max_steps": STEPS, "max_grad_norm": 0.5,
        "checkpoint": {"every": STEPS, "resume": "none"}, **training})


def weights_after(accel, tmp_path, steps=STEPS):
    accel("merge-weights", tmp_path / f"out/checkpoints/checkpoint_{steps}/pytorch_model_fsdp_0", tmp_path / "merged")
    return load_file(tmp_path / "merged/model.safetensors")


def train(model, ids, labels, batches_of_step, step_loss, forward=None):
    """Trains like accel: step_loss(LOGITS, LABELS) is the loss of the batches of a step, in the order of the data."""
    forward = forward or model
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    losses, norms, at = [], [], 0
    for _ in range(STEPS):
        parts = []
        for _ in range(batches_of_step):
            parts.append((forward(ids[at : at + BATCH]).flatten(0, 1).float(), labels[at : at + BATCH].flatten()))
            at += BATCH
        optimizer.zero_grad()
        loss = step_loss(*zip(*parts))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def mean_of(loss):
    return lambda logits, labels: sum(map(loss, logits, labels)) / len(labels)


def require_near(accel, tmp_path, model, losses, norms, abs=2e-5):
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, abs=abs)
    assert train_runs.metrics(tmp_path, "grad_norm") == pytest.approx(norms, abs=5 * abs)
    ours = weights_after(accel, tmp_path)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.detach(), rtol=0, atol=5 * abs)


def z_loss(logits, labels):
    return F.cross_entropy(logits, labels) + 0.02 * logits[labels != -100].logsumexp(-1).pow(2).mean()


# The model's options, the settings, and torch's loss of a batch.
CASES = {
    "untied": ({}, {}, F.cross_entropy),
    "tied": ({"tied": True}, {}, F.cross_entropy),
    "bias": ({"bias": True}, {}, F.cross_entropy),
    "ignore_index": ({"tied": True}, {"ignore_index": IGNORED},
                     lambda logits, labels: F.cross_entropy(logits, labels.masked_fill(labels == -100, IGNORED),
                                                            ignore_index=IGNORED)),
    "label_smoothing": ({"bias": True}, {"label_smoothing": 0.1},
                        lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.1)),
    "class_weights": ({}, {"class_weights": WEIGHTS},
                      lambda logits, labels: F.cross_entropy(logits, labels, torch.tensor(WEIGHTS))),
    "z_loss": ({"tied": True}, {"z_loss": 0.02}, z_loss),
}


@pytest.mark.long(but="untied-1")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_torch(accel, tmp_path, name, processes):
    options, settings, loss = CASES[name]
    ids, labels = data_of(STEPS * BATCH * processes)
    model = Net(**options)
    stored = labels.masked_fill(labels == -100, IGNORED) if "ignore_index" in settings else labels
    accel("launch", configure(tmp_path, processes, model, {"input_ids": ids, "labels": stored}, settings))
    require_near(accel, tmp_path, model, *train(model, ids, labels, processes, mean_of(loss)))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("mean", ["tokens", "batches"])
def test_micro_batches_add_up(accel, tmp_path, mean, processes):
    ids, labels = data_of(STEPS * BATCH * processes * 2)
    model = Net(tied=True)
    accel("launch", configure(tmp_path, processes, model, {"input_ids": ids, "labels": labels}, {}, loss_mean=mean,
                              gradient_accumulation_steps=2))

    def by_tokens(logits, labels):
        return F.cross_entropy(torch.cat(logits), torch.cat(labels))

    require_near(accel, tmp_path, model, *train(model, ids, labels, 2 * processes,
                                                by_tokens if mean == "tokens" else mean_of(F.cross_entropy)))


@pytest.mark.parametrize("frozen", ["head", "tokens|block"])
def test_what_is_frozen_stays(accel, tmp_path, frozen):
    """A frozen head, as beside an adapter, passes the gradient on. A head alone has frozen hidden states."""
    ids, labels = data_of(STEPS * BATCH * 2)
    model = Net(bias=True)
    accel("launch", configure(tmp_path, 2, model, {"input_ids": ids, "labels": labels}, {},
                              **{"optimizer.groups": [{"match": f"^({frozen})", "frozen": True}]}))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.split(".")[0] not in frozen)
    require_near(accel, tmp_path, model, *train(model, ids, labels, 2, mean_of(F.cross_entropy)))


@pytest.mark.parametrize("kind", ["MULTI_CPU", "FSDP"])
@pytest.mark.parametrize("tied", [False, True])
def test_bfloat16(accel, tmp_path, kind, tied):
    """Autocast without sharding, and FSDP version 2 with parameters in bfloat16, where the head is a unit of its own if it
    is not tied. The bound is that of a few roundings to 8 bits of logits and gradients of about 1."""
    ids, labels = data_of(STEPS * BATCH * 2)
    model = Net(tied=tied, bias=True)
    accel("launch", configure(tmp_path, 2, model, {"input_ids": ids, "labels": labels}, {}, distributed_type=kind,
                              mixed_precision="bf16", checkpoint={"every": 0, "resume": "none"}))

    def in_autocast(ids):
        with torch.autocast("cpu", torch.bfloat16):
            return model(ids)

    def in_bfloat16(ids):
        return torch.func.functional_call(model, {name: p.bfloat16() for name, p in model.named_parameters()}, (ids,))

    losses, norms = train(model, ids, labels, 2, mean_of(F.cross_entropy), in_autocast if kind == "MULTI_CPU" else in_bfloat16)
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, rel=2**-7)
    # The loss itself is not rounded: the mean of two ranks' losses would have at most nine bits.
    assert any(loss * 2**8 % 1 != 0 for loss in train_runs.metrics(tmp_path))
    assert train_runs.metrics(tmp_path, "grad_norm") == pytest.approx(norms, rel=2**-5)


def test_a_program_of_torch_export(accel, tmp_path):
    ids, labels = data_of(STEPS * BATCH * 2)
    model = Net(tied=True)
    accel("launch", configure(tmp_path, 2, model, {"input_ids": ids, "labels": labels}, {}, pt2=True,
                              **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Block"}))
    require_near(accel, tmp_path, model, *train(model, ids, labels, 2, mean_of(F.cross_entropy)))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_evaluation_is_that_of_torch(accel, tmp_path, processes):
    ids, labels = data_of(BATCH * processes)
    held_ids, held_labels = data_of(3 * BATCH * processes + 1)
    save_file({"input_ids": held_ids, "labels": held_labels}, tmp_path / "held.safetensors")
    model = Net(bias=True)
    config = configure(tmp_path, processes, model, {"input_ids": ids, "labels": labels}, {}, max_steps=1, eval_every=1,
                       **{"optimizer.lr": 0.0, "checkpoint": {"every": 1},
                          "data.eval": {"format": "tensors", "path": str(tmp_path / "held.safetensors")}})
    accel("launch", config)
    with torch.no_grad():
        logits = model(held_ids).flatten(0, 1)
    counted = held_labels.flatten() != -100
    loss = F.cross_entropy(logits, held_labels.flatten()).item()
    accuracy = (logits.argmax(-1) == held_labels.flatten())[counted].float().mean().item()
    assert train_runs.metrics(tmp_path, "eval_loss") == pytest.approx([loss], abs=1e-5)
    assert train_runs.metrics(tmp_path, "eval_accuracy") == pytest.approx([accuracy], abs=1e-6)
    [result] = json.loads(accel("evaluate", config, "--json").stdout)["results"]
    assert result["loss"] == pytest.approx(loss, abs=1e-5)
    assert result["accuracy"] == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.long
def test_large_logits_need_less_memory_without_being_asked(accel, tmp_path):
    """The logits are 164 MB here. As a whole they exist together with their gradient."""
    classes, length = 40_000, 256
    ids, labels = data_of(STEPS * BATCH, length, classes)
    peaks = {}
    for head in ("auto", "never"):
        directory = tmp_path / head
        directory.mkdir()
        model = Net(tied=True, classes=classes)
        accel("launch", configure(directory, 1, model, {"input_ids": ids, "labels": labels}, {"fused_head": head}))
        peaks[head] = max(train_runs.metrics(directory, "max_rss_bytes"))
        require_near(accel, directory, model, *train(model, ids, labels, 1, mean_of(F.cross_entropy)))
    assert peaks["auto"] < peaks["never"] - 100e6


def test_a_model_without_such_a_head_is_refused(accel, tmp_path):
    ids, labels = data_of(STEPS * BATCH)
    config = configure(tmp_path, 1, Scaled(), {"input_ids": ids, "labels": labels}, {})
    said = accel("launch", config, code=6).stderr
    assert "fused_head is always, but output 0 of the model is not that of a linear: 'forward' makes it by aten::mul" in said
    config = configure(tmp_path, 1, Net(), {"input_ids": ids, "labels": labels}, {"loss": "nll"})
    assert "'training.model.fused_head: always' needs the loss cross_entropy, not 'nll'" in accel("check", config, code=2).stderr


def test_a_head_that_is_recomputed_is_refused(accel, tmp_path):
    ids, labels = data_of(STEPS * BATCH)
    options = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear", "fsdp_config.fsdp_activation_checkpointing": True}
    config = configure(tmp_path, 1, Net(), {"input_ids": ids, "labels": labels}, {}, **options)
    assert "'head' is recomputed in backward" in accel("launch", config, code=6).stderr
    accel("launch", configure(tmp_path, 1, Net(), {"input_ids": ids, "labels": labels}, {"fused_head": "auto"}, **options))
