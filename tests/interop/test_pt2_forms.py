"""Programs of torch.export whose outputs are dataclasses, whose operators change activations in place, and whose tensors are
views: imported they are the same model, and they train as the eager one."""

import dataclasses

import pytest
import torch
import train_runs
from pt2_models import FREE, IDS, assert_same_model, export
from test_pt2_training import config, loss_of, text


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    cache: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="accel_test.Output")


class Outputs(torch.nn.Module):
    def __init__(self, keeps):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.1)
        self.keeps = keeps

    def forward(self, x):
        y = self.linear(x)
        return Output(self.dropout(y), x + 1 if self.keeps else None, y)


@pytest.mark.parametrize("keeps, names", [(True, ["logits", "cache", "hidden"]), (False, ["logits", "hidden"])])
def test_fields_of_a_dataclass_are_outputs(accel, tmp_path, keeps, names):
    """A field that is None is left out."""
    model = Outputs(keeps).train()
    export(model, tmp_path / "model.pt2", torch.zeros(2, 8), dynamic=({0: torch.export.Dim.AUTO},))
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    assert_same_model(imported, model, [torch.randn(3, 8)])
    x = torch.randn(3, 8)
    found, expected = imported(x), model(x)  # Both are in evaluation mode.
    assert list(found) == names
    assert all(torch.equal(tensor, getattr(expected, name)) for name, tensor in found.items())


class InPlace(torch.nn.Module):
    """Changes activations, never a parameter or a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        y = self.linear(x)
        y.add_(1).mul_(2)
        y[..., 0] = 3
        y[y > 2.5] = 0.5
        y[..., 4:].transpose(0, 1).mul_(0.25)
        counts = torch.zeros_like(y)
        counts.index_put_((torch.tensor([0]),), y[0:1] * 2, accumulate=True)
        counts.scatter_(-1, torch.zeros_like(y[..., :1], dtype=torch.long), 1.0)
        counts.masked_fill_(y == 0.5, -1.0)
        return self.dropout(torch.relu_(y + counts))


def test_operators_that_change_activations_in_place(accel, tmp_path):
    model = InPlace().train()
    free = torch.export.Dim.AUTO
    export(model, tmp_path / "model.pt2", torch.zeros(2, 6, 8), dynamic=({0: free, 1: free},))
    accel("import", "model.pt2", "model.pt")
    assert_same_model(torch.jit.load(tmp_path / "model.pt"), model, [torch.randn(2, 6, 8), torch.randn(5, 3, 8)])


class Views(torch.nn.Module):
    """Parameters that are two disjoint parts of one storage, of which one is transposed, a transposed buffer, and an
    expanded one."""

    def __init__(self):
        super().__init__()
        storage = torch.randn(20, 8) * 0.3
        self.above = torch.nn.Parameter(storage[:8].t())
        self.below = torch.nn.Parameter(storage[12:])
        self.register_buffer("steps", (torch.arange(16.0) / 16).view(2, 8).t())
        self.register_buffer("once", torch.full((1,), 0.5).expand(8))
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(x @ self.above @ self.below * self.steps.sum(1) * self.once * 2)


def test_views_with_strides_and_parts_of_one_storage(accel, tmp_path):
    model = Views().train()
    export(model, tmp_path / "model.pt2", torch.zeros(2, 8), dynamic=({0: torch.export.Dim.AUTO},))
    accel("import", "model.pt2", "model.pt")
    imported = torch.jit.load(tmp_path / "model.pt")
    assert all(torch.equal(imported.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert_same_model(imported, model, [torch.randn(5, 8)])
    with torch.no_grad():
        imported.above.zero_()
    assert torch.equal(imported.below, model.below)


def test_a_program_may_have_any_name_but_must_be_alone(accel, tmp_path):
    """torch.export.save calls the program `model`, and package_pt2 whatever it is told."""
    from torch.export.pt2_archive._package import package_pt2

    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
    program = torch.export.export(model, (torch.zeros(2, 8),))
    package_pt2(tmp_path / "net.pt2", exported_programs={"net.v2": program})
    accel("import", "net.pt2", "net.pt")
    assert_same_model(torch.jit.load(tmp_path / "net.pt"), model, [torch.randn(2, 8)])
    other = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    torch.save(other, tmp_path / "other.pt")
    accel("load", "other.pt", "--into", "net.pt2", "--out", "loaded.pt2")
    accel("diff", "other.pt", "loaded.pt2")
    package_pt2(tmp_path / "two.pt2", exported_programs={"b": program, "a": program})
    package_pt2(tmp_path / "none.pt2", exported_programs={})
    for command in (["inspect"], ["import", "--force"], ["merge-weights"]):
        arguments = [] if command == ["inspect"] else ["out.pt"]
        said = accel(*command, "two.pt2", *arguments, code=1).stderr
        assert "'two.pt2': holds 2 programs, 'a', 'b', and accel reads files with one" in said.replace(f"{tmp_path}/", "")
        assert "holds no program of torch.export" in accel(*command, "none.pt2", *arguments, code=1).stderr


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.views = Views()
        self.inner = InPlace()
        self.views.dropout.p = self.inner.dropout.p = 0.0

    def forward(self, x):
        return x + self.inner(self.views(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 8)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.head = torch.nn.Linear(8, 256)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return Output(logits=self.head(x), hidden=x)


@pytest.mark.long(but="False")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_of_it_trains_as_the_eager_model(accel, tmp_path, checkpointing):
    torch.manual_seed(0)
    model = Model().train()
    export(model, tmp_path / "model.pt2", IDS, dynamic=FREE)
    steps, length = 4, 24
    accel("launch", config(tmp_path, "model.pt2", steps, length, **{
        "model.output": "logits", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer",
        "fsdp_config.fsdp_activation_checkpointing": checkpointing}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    losses = []
    for windows in text(steps * 8, length).split(4):
        loss = loss_of(lambda ids: model(ids).logits, windows)
        (loss / 2).backward()
        losses.append(loss.item())
        if len(losses) % 2 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert train_runs.metrics(tmp_path) == pytest.approx([sum(losses[i:i + 2]) / 2 for i in range(0, 2 * steps, 2)], rel=1e-5)
