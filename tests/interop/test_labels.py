"""Which labels count in a training, what those do that do not, and which are refused. torch is the judge."""

import json

import pytest
import torch
import train_runs
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

CLASSES, WIDTH = 160, 4
OPTIMIZER = {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
IGNORED = -100


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.linear(x)


class OwnLoss(Linear):
    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.linear(x), labels)


class Copier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(CLASSES, CLASSES)

    def forward(self, input_ids):
        return self.table(input_ids)


class Shifts(Copier):
    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.table(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.fixture
def launch(accel, tmp_path):
    """launch(MODEL, FIELDS, KEYS) trains a model on the table of these fields and on the same as held-out data."""
    def run(model, fields, processes=2, code=0, **keys):
        torch.jit.script(model).save(str(tmp_path / "gpt.pt"), _extra_files=keys.pop("notes", {}))
        save_file(fields, tmp_path / "data.safetensors")
        source = {"format": "tensors", "path": str(tmp_path / "data.safetensors")}
        config = train_runs.config(tmp_path, processes, **{
            "model.inputs": ["x"], "data.batch_size": 1, "data.train": source, "data.eval": source, "eval_every": keys.get("max_steps", 2),
            "max_steps": 2, "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"},
            "optimizer": {"type": "adamw", **OPTIMIZER}, "lr_scheduler": {"type": "constant"}, "max_grad_norm": 0.5, **keys})
        return accel("launch", config, code=code).stderr

    return run


def train(model, x, labels, steps, micro_batches, batch):
    """The training in torch. A micro-batch without a label that counts has no weight, and a step of such ones alone is
    skipped. Returns losses, gradient norms and the held-out loss."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses, norms = [], []
    for step in range(steps):
        begins = [(step * micro_batches + i) * batch for i in range(micro_batches)]
        means = [cross_entropy(model(x[b:b + batch]).flatten(0, -2), labels[b:b + batch].flatten())
                 for b in begins if (labels[b:b + batch] != IGNORED).any()]
        if not means:
            losses.append(None)
            norms.append(0.0)
            continue
        loss = sum(means) / len(means)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return losses, norms, cross_entropy(model(x).flatten(0, -2), labels.flatten()).item()


def require_equal(directory, expected):
    losses, norms, held_out = expected
    assert train_runs.metrics(directory) == [loss if loss is None else pytest.approx(loss, rel=1e-5) for loss in losses]
    assert train_runs.metrics(directory, "grad_norm") == pytest.approx(norms, rel=1e-5)
    assert train_runs.metrics(directory, "eval_loss") == [pytest.approx(held_out, rel=1e-5)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16], ids=str)
def test_class_156_counts_in_labels_without_a_sign(launch, tmp_path, dtype):
    """As uint8, -100 is 156. The second micro-batch of rank 0 has no other class."""
    torch.manual_seed(1)
    x = torch.randn(8, WIDTH)
    labels = torch.tensor([3, 156, 0, 155, 156, 156, 159, 156])
    model = Linear()
    said = launch(model, {"x": x, "labels": labels.to(dtype)}, **{"data.batch_size": 2})
    require_equal(tmp_path, train(model, x, labels, steps=2, micro_batches=2, batch=2))
    assert "counts" not in said


# Rows of a label: micro-batches of one row, two of each of two ranks in a step. Step 3 has none.
SOME_COUNT = [1, IGNORED, 7, 7, IGNORED, 2, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED, 9, 3, IGNORED, 159]


@pytest.mark.parametrize("distributed_type", ["FSDP", "MULTI_CPU"])
def test_a_micro_batch_without_a_counting_label_has_no_weight(launch, tmp_path, distributed_type):
    torch.manual_seed(2)
    x, labels = torch.randn(16, WIDTH), torch.tensor(SOME_COUNT)
    model = Linear()
    said = launch(model, {"x": x, "labels": labels}, max_steps=4, gradient_accumulation_steps=2, distributed_type=distributed_type)
    require_equal(tmp_path, train(model, x, labels, steps=4, micro_batches=4, batch=1))
    assert "data.safetensors', sample 1: no label of the 1 samples of this micro-batch counts, all are -100" in said
    assert "step 3: the loss is nan and the gradient norm is 0; in 4 of its 4 micro-batches no label counts" in said
    assert train_runs.metrics(tmp_path, "skipped") == [1]


def test_the_warnings_become_rare(launch):
    labels = torch.full((32,), IGNORED)
    labels[::2] = 1
    said = launch(Linear(), {"x": torch.randn(32, WIDTH), "labels": labels}, max_steps=16)
    warnings = [line for line in said.splitlines() if "of this micro-batch counts" in line]
    assert len(warnings) == 2 and all(line.startswith("[rank1] ") for line in warnings)
    assert "; 10 micro-batches of this rank were so" in warnings[1]


def test_data_without_any_label_end_the_run(launch, tmp_path):
    said = launch(Linear(), {"x": torch.randn(4, WIDTH), "labels": torch.full((4,), IGNORED)}, processes=1, code=6, max_steps=200)
    assert "step 101: the loss is nan" in said and "no label counts, all are -100, as in the 100 steps before" in said
    assert "do the training data have labels?" in said
    (tmp_path / "out").rename(tmp_path / "before")
    said = launch(Linear(), {"x": torch.randn(4, WIDTH), "labels": torch.full((4,), IGNORED)})
    assert "none of the 2 steps changed a weight" in said and "or no label counted" in said


def test_a_model_that_computes_its_own_loss_decides_itself(launch, tmp_path):
    """Its NaN is an error as any other, but the message says what the labels are."""
    fields = {"x": torch.randn(6, WIDTH), "labels": torch.tensor([1, 2, 3, IGNORED, 4, 5])}
    keys = {"model.inputs": ["x", "labels"], "model.loss": "model", "max_steps": 3}
    said = launch(OwnLoss(), fields, code=6, **keys)
    assert "step 2: the loss is nan" in said and "in 1 of its 2 micro-batches no label counts, all are -100" in said
    (tmp_path / "out").rename(tmp_path / "before")
    launch(OwnLoss(), fields, skip_nonfinite=True, **keys)
    assert train_runs.metrics(tmp_path, "skipped") == [0, 1, 0]


def test_labels_that_are_the_inputs_are_taken_if_they_are_meant_to_be(launch, tmp_path):
    torch.manual_seed(3)
    ids = torch.randint(CLASSES, (4, 5))
    model, keys = Copier(), {"model.inputs": ["input_ids"]}
    said = launch(model, {"input_ids": ids, "labels": ids.clone()}, code=2, **keys)
    assert "'labels' are the tokens of 'input_ids' themselves" in said and "training.data.check_labels: false" in said
    launch(model, {"input_ids": ids, "labels": ids.clone()}, **keys, **{"data.check_labels": False})
    require_equal(tmp_path, train(model, ids, ids, steps=2, micro_batches=2, batch=1))


def test_labels_that_a_model_would_shift_twice_are_taken_if_they_are_meant_to_be(launch):
    ids = torch.randint(CLASSES, (4, 5))
    fields = {"x": ids, "labels": torch.cat([ids[:, 1:], ids[:, :1]], 1)}
    keys = {"model.inputs": ["x", "labels"], "model.loss": "model", "notes": {"accel.json": json.dumps({"shifts_labels": True})}}
    said = launch(Shifts(), fields, code=2, **keys)
    assert "the model shifts its labels itself" in said and "training.data.check_labels: false" in said
    launch(Shifts(), fields, **keys, **{"data.check_labels": False})

