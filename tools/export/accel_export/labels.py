"""What a model's own loss does with labels: whether the label of a position is compared with the logits before it."""

import torch

from .inputs import Input

IGNORED = -100


def example_labels(logits, inputs):
    """Returns an input `labels` for a model that gives `logits`: a class for each position or for each sample."""
    classes = logits.shape[-1]
    shape = logits.shape[:-1]
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(max(classes, 1), shape, generator=generator)
    if len(shape) not in (1, 2):
        return None
    return Input("labels", labels, ("batch", *(length_like(size, inputs) for size in shape[1:])))


def length_like(size, inputs):
    """Returns the name of the dimension that has `size`, the decoder's before others."""
    names = {name: item.example.shape[dim] for item in inputs for dim, name in enumerate(item.dims) if name and name != "batch"}
    fitting = [name for name, length in names.items() if length == size]
    return next((name for name in fitting if name.startswith("decoder")), fitting[0] if fitting else None)


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def are_shifted(forward, labels):
    """Returns whether the model's loss compares the logits of a position with the label of the next one, and what the loss has
    beside that. The first is None if neither that nor the opposite explains the loss, and the second is 0 if it is rounding.
    `forward(labels)` gives (loss, logits) with the same random numbers each time.

    The losses of two sets of labels are subtracted, so that parts of the loss without labels are gone."""
    if labels.dim() != 2:
        return None, 0.0
    others = labels.flip(0, 1).roll(1, 1)
    first, second = forward(labels), forward(others)
    found = first[0] - second[0]
    # A loss that ignored all labels would fit anything.
    if found.abs() < 1e-6:
        return None, 0.0
    tolerance = 1e-4 * max(1.0, float(first[0].abs()))
    beside = {}
    for shifts in (True, False):
        rests = [loss - (cross_entropy(logits[:, :-1], labels[:, 1:]) if shifts else cross_entropy(logits, labels))
                 for (loss, logits), labels in ((first, labels), (second, others))]
        if (rests[0] - rests[1]).abs() < tolerance:
            beside[shifts] = float(rests[0])
    if len(beside) != 1:
        return None, 0.0
    (shifts, more), = beside.items()
    return shifts, more if abs(more) > tolerance / 10 else 0.0
