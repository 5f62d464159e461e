"""Losses and what they are the mean of, step by step, against torch on one process."""

import shutil

import pytest
import torch
import train_runs
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, LENGTH, CLASSES, ACCUMULATE = 6, 4, 5, 7, 2
SAMPLES = STEPS * BATCH * ACCUMULATE * 2


class Net(nn.Module):
    def __init__(self, out: int):
        super().__init__()
        self.hidden = nn.Linear(3, 16)
        self.head = nn.Linear(16, out)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


class Probabilities(Net):
    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x))).log_softmax(-1)


WEIGHTS = [0.5, 1.0, 2.0, 1.0, 0.25, 3.0, 1.0]

# The model's settings, what the model returns, the kind of targets, and torch's loss of a batch.
CASES = {
    "mse": ({}, Net, "values", F.mse_loss),
    "l1": ({}, Net, "values", F.l1_loss),
    "smooth_l1": ({}, Net, "values", F.smooth_l1_loss),
    "bce_with_logits": ({}, Net, "bits", F.binary_cross_entropy_with_logits),
    "mse of one": ({}, Net, "one", lambda output, targets: F.mse_loss(output.squeeze(-1), targets)),
    "nll": ({"class_weights": WEIGHTS}, Probabilities, "classes",
            lambda output, targets: F.nll_loss(output.flatten(0, 1), targets.flatten(), torch.tensor(WEIGHTS))),
    "cross_entropy": ({"class_weights": WEIGHTS, "label_smoothing": 0.1}, Net, "classes",
                      lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten(), torch.tensor(WEIGHTS),
                                                              label_smoothing=0.1)),
    "cross_entropy with z": ({"z_loss": 0.01}, Net, "classes",
                             lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten()) + 0.01 *
                             output.flatten(0, 1)[targets.flatten() != -100].logsumexp(-1).pow(2).mean()),
    "cross_entropy ignoring 6": ({"ignore_index": 6}, Net, "classes",
                                 lambda output, targets: F.cross_entropy(
                                     output.flatten(0, 1), targets.masked_fill(targets == -100, 6).flatten(), ignore_index=6)),
}


def data_of(kind):
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, LENGTH, 3)
    if kind == "values":
        targets = torch.randn(SAMPLES, LENGTH, CLASSES)
    elif kind == "bits":
        targets = torch.randint(0, 2, (SAMPLES, LENGTH, CLASSES)).float()
    elif kind == "one":
        targets = torch.randn(SAMPLES, LENGTH)
    else:
        targets = torch.randint(0, CLASSES, (SAMPLES, LENGTH))
        # Samples differ in how many labels count, and no batch has none.
        targets[torch.rand(SAMPLES, LENGTH) < torch.linspace(0, 0.8, SAMPLES)[:, None]] = -100
        targets[::BATCH, 0] = 3
    return x, targets


def launch(accel, tmp_path, processes, loss, settings, model, tensors, **training):
    torch.jit.script(model).save(str(tmp_path / "net.pt"))
    save_file(tensors, tmp_path / "data.safetensors")
    accel("launch", train_runs.config(tmp_path, processes, **{
        "model": {"path": str(tmp_path / "net.pt"), "inputs": ["x"], "targets": "y", "loss": loss, **settings},
        "data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")}, "data.batch_size": BATCH,
        "optimizer": {"type": "sgd", "lr": 0.5}, "lr_scheduler": {"type": "constant"}, "max_steps": STEPS, "max_grad_norm": 0.5,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear", **training}))


def peer(model, x, targets, processes, micro_batches, step_loss, forward=None):
    """step_loss(OUTPUTS, TARGETS) is the loss of the micro-batches of all ranks in a step, in the order of the data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, norms, at = [], [], 0
    for _ in range(STEPS):
        parts = []
        for _ in range(processes * micro_batches):
            parts.append(((forward or model)(x[at : at + BATCH]), targets[at : at + BATCH]))
            at += BATCH
        optimizer.zero_grad()
        loss = step_loss([part[0] for part in parts], [part[1] for part in parts])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def require_near(tmp_path, losses, norms):
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, abs=2e-5)
    assert train_runs.metrics(tmp_path, "grad_norm") == pytest.approx(norms, abs=1e-4)


@pytest.mark.long(but="mse")
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_torch(accel, tmp_path, name):
    settings, kind, targets_kind, loss = CASES[name]
    x, targets = data_of(targets_kind)
    torch.manual_seed(0)
    model = kind(1 if targets_kind == "one" else CLASSES)
    stored = targets.masked_fill(targets == -100, 6) if "ignore_index" in settings else targets
    launch(accel, tmp_path, 2, name.split()[0], settings, model, {"x": x, "y": stored})
    require_near(tmp_path, *peer(model, x, targets, 2, 1, lambda outputs, parts: sum(
        loss(output, part) for output, part in zip(outputs, parts)) / len(parts)))


@pytest.mark.long(but="tokens-1")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("mean", ["tokens", "batches"])
def test_what_a_step_is_the_mean_of(accel, tmp_path, mean, processes):
    """tokens is num_items_in_batch of transformers' Trainer: the sum over all labels divided by their number."""
    x, targets = data_of("classes")
    torch.manual_seed(0)
    model = Net(CLASSES)
    launch(accel, tmp_path, processes, "cross_entropy", {}, model, {"x": x, "y": targets},
           loss_mean=mean, gradient_accumulation_steps=ACCUMULATE)

    def by_tokens(outputs, parts):
        total = sum((part != -100).sum() for part in parts)
        return sum(F.cross_entropy(output.flatten(0, 1), part.flatten(), reduction="sum") for output, part in zip(outputs, parts)) / total

    def by_batches(outputs, parts):
        return sum(F.cross_entropy(output.flatten(0, 1), part.flatten()) for output, part in zip(outputs, parts)) / len(parts)

    require_near(tmp_path, *peer(model, x, targets, processes, ACCUMULATE, by_tokens if mean == "tokens" else by_batches))


@pytest.mark.parametrize("mean", ["tokens", "batches"])
def test_a_micro_batch_without_labels_has_no_weight(accel, tmp_path, mean):
    """Also with a z_loss, whose own mean would be 0 / 0."""
    x, targets = data_of("classes")
    targets[BATCH : 2 * BATCH] = -100
    torch.manual_seed(0)
    model = Net(CLASSES)
    launch(accel, tmp_path, 2, "cross_entropy", {"z_loss": 0.01}, model, {"x": x, "y": targets}, loss_mean=mean)

    def loss(outputs, parts):
        kept = [(output.flatten(0, 1)[part.flatten() != -100], part[part != -100]) for output, part in zip(outputs, parts)]
        kept = [pair for pair in kept if len(pair[1])]
        losses = [F.cross_entropy(*pair) + 0.01 * pair[0].logsumexp(-1).pow(2).mean() for pair in kept]
        weights = [len(pair[1]) if mean == "tokens" else 1 for pair in kept]
        return sum(loss * weight for loss, weight in zip(losses, weights)) / sum(weights)

    require_near(tmp_path, *peer(model, x, targets, 2, 1, loss))


@pytest.mark.parametrize("processes", [1, 2])
def test_the_held_out_loss_is_a_mean_by_class_weights(accel, tmp_path, processes):
    x, targets = data_of("classes")
    torch.manual_seed(0)
    model = Net(CLASSES)
    save_file({"x": x[:11], "y": targets[:11]}, tmp_path / "held.safetensors")
    launch(accel, tmp_path, processes, "cross_entropy", {"class_weights": WEIGHTS}, model, {"x": x, "y": targets}, max_steps=1,
           eval_every=1, **{"optimizer.lr": 0.0, "data.eval": {"format": "tensors", "path": str(tmp_path / "held.safetensors")}})
    with torch.no_grad():
        expected = F.cross_entropy(model(x[:11]).flatten(0, 1), targets[:11].flatten(), torch.tensor(WEIGHTS)).item()
    assert train_runs.metrics(tmp_path, "eval_loss") == pytest.approx([expected], abs=1e-6)


class InTuple(Net):
    def forward(self, x):
        hidden = self.hidden(x)
        return hidden.abs().mean(), self.head(torch.tanh(hidden)), hidden.max().unsqueeze(0)


class WithHidden(Net):
    def forward(self, x):
        hidden = self.hidden(x)
        return hidden, self.head(torch.tanh(hidden)), hidden.max()


class InDict(Net):
    def forward(self, x):
        hidden = self.hidden(x)
        return {"size": hidden.abs().mean(), "logits": self.head(torch.tanh(hidden)), "largest": hidden.max()}


@pytest.mark.long(but="InTuple-1-metrics0-never-1")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind, output, metrics, head", [
    (InTuple, 1, {"size": 0, "most": 2}, "never"),
    (InTuple, 1, {"size": 0, "most": 2}, "always"),
    (InDict, "logits", {"size": "size", "most": "largest"}, "always"),
])
def test_scalars_that_forward_returns_are_recorded(accel, tmp_path, kind, output, metrics, head, processes):
    """Each record has the means over ranks, micro-batches and the two steps that it is about."""
    x, targets = data_of("classes")
    torch.manual_seed(0)
    model = kind(CLASSES)
    launch(accel, tmp_path, processes, "cross_entropy", {"output": output, "metrics": metrics, "fused_head": head}, model,
           {"x": x, "y": targets}, gradient_accumulation_steps=ACCUMULATE, log_every=2)
    seen = []

    def logits_of(x):
        outputs = model(x)
        size, logits, most = outputs.values() if isinstance(outputs, dict) else outputs
        seen.append((size.item(), most.item()))
        return logits

    losses, _ = peer(model, x, targets, processes, ACCUMULATE, lambda outputs, parts: sum(
        F.cross_entropy(output.flatten(0, 1), part.flatten()) for output, part in zip(outputs, parts)) / len(parts), logits_of)
    by_record = torch.tensor(seen).double().view(STEPS // 2, -1, 2).mean(1)
    assert train_runs.metrics(tmp_path) == pytest.approx(torch.tensor(losses).view(-1, 2).mean(1).tolist(), abs=2e-5)
    assert train_runs.metrics(tmp_path, "model_size") == pytest.approx(by_record[:, 0].tolist(), abs=2e-5)
    assert train_runs.metrics(tmp_path, "model_most") == pytest.approx(by_record[:, 1].tolist(), abs=1e-4)


class Uneven(Net):
    """The first scalar is infinite for a sample that begins with 9, and the second one exists in training only."""

    def forward(self, x):
        hidden = self.hidden(x)
        scalars = {"logits": self.head(torch.tanh(hidden))}
        if self.training:
            scalars["inverse"] = 1 / (x[:, 0, 0] - 9).abs().min()
            scalars["size"] = hidden.abs().mean()
        return scalars


@pytest.mark.long(but="bad0")
@pytest.mark.parametrize("bad", [(1, 2, 3), (0, 1)])
def test_a_record_has_the_mean_of_the_finite_values(accel, tmp_path, bad):
    """Records are about two steps each. One without any finite value has none, and the other scalar has all of its steps."""
    x, targets = data_of("classes")
    x = x[: STEPS * BATCH].clone()
    for step in bad:
        x[step * BATCH, 0, 0] = 9
    torch.manual_seed(0)
    model = Uneven(CLASSES)
    launch(accel, tmp_path, 1, "cross_entropy", {"output": "logits", "metrics": {"inverse": "inverse", "size": "size"}}, model,
           {"x": x, "y": targets[: len(x)]}, log_every=2, **{"optimizer.lr": 0.0})
    with torch.no_grad():
        seen = [model(part) for part in x.split(BATCH)]
    for name in ("inverse", "size"):
        values = torch.stack([scalars[name] for scalars in seen]).double().view(-1, 2)
        expected = values.where(values.isfinite(), torch.nan).nanmean(1)
        recorded = [torch.nan if value is None else value for value in train_runs.metrics(tmp_path, f"model_{name}")]
        assert recorded == pytest.approx(expected.tolist(), abs=1e-5, nan_ok=True)


@pytest.mark.long
def test_a_run_that_goes_on_within_a_record_has_its_mean(accel, tmp_path):
    x, targets = data_of("classes")
    torch.manual_seed(0)
    model = Uneven(CLASSES)
    options = {"log_every": 4, "checkpoint.every": 3, "checkpoint.resume": "auto"}
    run = ("cross_entropy", {"output": "logits", "metrics": {"size": "size"}}, model, {"x": x, "y": targets})
    launch(accel, tmp_path, 1, *run, max_steps=4, **options)
    expected = train_runs.metrics(tmp_path, "model_size")
    shutil.rmtree(tmp_path / "out/checkpoints/checkpoint_4")
    (tmp_path / "out/metrics.jsonl").write_text("")
    launch(accel, tmp_path, 1, *run, max_steps=4, **options)
    assert train_runs.metrics(tmp_path, "model_size") == expected and len(expected) == 1


def test_an_evaluation_needs_no_scalar_of_the_training(accel, tmp_path):
    x, targets = data_of("classes")
    torch.manual_seed(0)
    model = Uneven(CLASSES)
    save_file({"x": x[:11], "y": targets[:11]}, tmp_path / "held.safetensors")
    launch(accel, tmp_path, 1, "cross_entropy", {"output": "logits", "metrics": {"size": "size"}}, model, {"x": x, "y": targets},
           max_steps=1, eval_every=1, **{
               "optimizer.lr": 0.0, "data.eval": {"format": "tensors", "path": str(tmp_path / "held.safetensors")}})
    with torch.no_grad():
        expected = F.cross_entropy(model(x[:11])["logits"].flatten(0, 1), targets[:11].flatten()).item()
    assert train_runs.metrics(tmp_path, "eval_loss") == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize("metrics, code, said", [
    ({"size": 0}, 6, "training.model.metrics.size is output 0, which has 320 elements, and is not a scalar"),
    ({"size": 3}, 6, "training.model.metrics.size is 3, but forward returns a tuple of 3 elements"),
    ({"loss": 1}, 2, "'training.model.metrics' has output 1 as 'loss', which is training.model.output"),
    ({"a b": 0}, 2, "'training.model.metrics' has the name 'a b'; a name has letters, digits and underscores"),
])
def test_a_metric_that_is_no_scalar_is_refused(accel, tmp_path, metrics, code, said):
    x, targets = data_of("classes")
    torch.jit.script(WithHidden(CLASSES)).save(str(tmp_path / "net.pt"))
    save_file({"x": x, "y": targets}, tmp_path / "data.safetensors")
    config = train_runs.config(tmp_path, 1, **{
        "model": {"path": str(tmp_path / "net.pt"), "inputs": ["x"], "targets": "y", "output": 1, "metrics": metrics},
        "data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")}, "data.batch_size": BATCH,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"})
    assert said in accel("launch", config, code=code).stderr


@pytest.mark.parametrize("settings, said", [
    ({"loss": "mse"}, "mse needs an output of the shape of 'y', which is [4, 5], but forward returns shape [4, 5, 7]"),
    ({"loss": "cross_entropy", "class_weights": [1, 2]}, "training.model.class_weights has 2 weights, and the model has 7 classes"),
])
def test_what_does_not_fit_is_refused(accel, tmp_path, settings, said):
    x, targets = data_of("classes")
    torch.jit.script(Net(CLASSES)).save(str(tmp_path / "net.pt"))
    save_file({"x": x, "y": targets}, tmp_path / "data.safetensors")
    config = train_runs.config(tmp_path, 1, **{
        "model": {"path": str(tmp_path / "net.pt"), "inputs": ["x"], "targets": "y", **settings},
        "data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")}, "data.batch_size": BATCH,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Linear"})
    assert said in accel("launch", config, code=6).stderr
