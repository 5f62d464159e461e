"""Pictures of uint8 train a model that takes floats, as torch trains it on the same pictures divided by 255."""

import json

import pytest
import torch
import train_runs
from safetensors.torch import save_file

STEPS, BATCH, PROCESSES = 4, 8, 2
SHAPE, CLASSES = (1, 8, 8), 10


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.head = torch.nn.Linear(4 * 36, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(pictures).relu().flatten(1))


def classifier():
    torch.manual_seed(0)
    return Classifier()


def scripted(path):
    torch.jit.script(classifier()).save(str(path))


def exported(path):
    example = torch.zeros(4, *SHAPE)
    torch.export.save(torch.export.export(classifier(), (example,), dynamic_shapes=({0: torch.export.Dim.AUTO},)), path)


def tables():
    """The pictures as bytes and as torch makes floats of them. Labels of uint8 stay the numbers of classes in either."""
    torch.manual_seed(1)
    count = STEPS * BATCH * PROCESSES
    pictures = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (count,)).to(torch.uint8)
    return {"bytes": {"pictures": pictures, "labels": labels}, "floats": {"pictures": pictures.to(torch.float32) / 255, "labels": labels}}


def trained_in_torch(pictures, labels):
    """The losses of plain torch on all samples of a step."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH * PROCESSES, (step + 1) * BATCH * PROCESSES)
        loss = torch.nn.functional.cross_entropy(model(pictures[rows]), labels[rows].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name, write", [("model.pt", scripted), ("model.pt2", exported)])
def test_pictures_of_uint8_train_as_their_floats(accel, tmp_path, name, write):
    write(tmp_path / name)
    losses = {}
    for kind, fields in tables().items():
        directory = tmp_path / kind
        directory.mkdir()
        save_file(fields, directory / "data.safetensors")
        source = {"format": "tensors", "path": str(directory / "data.safetensors")}
        config = train_runs.config(directory, PROCESSES, **{
            "distributed_type": "MULTI_CPU", "model.path": str(tmp_path / name), "model.inputs": ["pictures"],
            "model.uint8_divisor": 255, "data.train": source, "data.eval": source, "eval_every": STEPS, "data.batch_size": BATCH,
            "data.shuffle": False, "optimizer": {"type": "adamw", "lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.0},
            "lr_scheduler": {"type": "constant"}, "max_grad_norm": None, "max_steps": STEPS})
        accel("launch", config)
        losses[kind] = [*train_runs.metrics(directory), *train_runs.metrics(directory, "eval_loss")]
    assert len(losses["bytes"]) == STEPS + 1
    assert losses["bytes"] == losses["floats"]
    # The order of the sums is another one in two ranks: a few roundings of float32.
    assert losses["bytes"][:STEPS] == pytest.approx(trained_in_torch(**tables()["floats"]), rel=1e-5)


class Masked(Classifier):
    """Leaves out pictures by a mask of integers, and adds a table by numbers."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(256, CLASSES)

    def forward(self, pictures, mask, number):
        return super().forward(pictures) * mask + self.table(number)


def test_masks_and_numbers_of_uint8_are_not_divided(accel, tmp_path):
    """The program says which of its inputs are integers. Tokens of uint8 become the int64 that it takes."""
    torch.manual_seed(0)
    example = (torch.zeros(4, *SHAPE), torch.ones(4, 1, dtype=torch.long), torch.zeros(4, dtype=torch.long))
    free = {0: torch.export.Dim.AUTO}
    torch.export.save(torch.export.export(Masked(), example, dynamic_shapes=(free, free, free)), tmp_path / "masked.pt2")
    torch.manual_seed(1)
    fields = tables()
    count = len(fields["bytes"]["labels"])
    own = {"mask": torch.randint(0, 2, (count, 1), dtype=torch.uint8), "number": torch.randint(0, 256, (count,), dtype=torch.uint8)}
    fields["bytes"].update(own)
    fields["floats"].update({name: tensor.long() for name, tensor in own.items()})
    losses = {}
    for kind in ("bytes", "floats"):
        directory = tmp_path / kind
        directory.mkdir()
        save_file(fields[kind], directory / "data.safetensors")
        config = train_runs.config(directory, PROCESSES, **{
            "distributed_type": "MULTI_CPU", "model.path": str(tmp_path / "masked.pt2"), "model.broadcast_from_rank0": True,
            "model.inputs": ["pictures", "mask", "number"], "model.uint8_divisor": 255, "data.batch_size": BATCH, "max_steps": STEPS,
            "data.train": {"format": "tensors", "path": str(directory / "data.safetensors")}})
        divided = ["pictures"] if kind == "bytes" else []
        assert json.loads(accel("check", "--json", config).stdout)["training_data"]["divided_fields"] == divided
        says = f"training.model.uint8_divisor divides {'pictures' if divided else 'no field'}\n"
        assert says in accel("check", config).stdout and says in accel("launch", config).stderr
        losses[kind] = train_runs.metrics(directory)
    assert len(losses["bytes"]) == STEPS and losses["bytes"] == losses["floats"]
