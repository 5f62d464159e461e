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
    """Returns whether the model's loss compares the logits of a position with the label of the next one. It is None if
    neither that nor the opposite explains the loss. `forward(labels)` gives (loss, logits) in evaluation mode.

    The losses of two sets of labels are subtracted, so that parts of the loss without labels are gone."""
    if labels.dim() != 2:
        return None
    others = labels.flip(0, 1).roll(1, 1)
    first, second = forward(labels), forward(others)
    found = first[0] - second[0]
    # A loss that ignored all labels would fit anything.
    if found.abs() < 1e-6:
        return None
    shifted = cross_entropy(first[1][:, :-1], labels[:, 1:]) - cross_entropy(second[1][:, :-1], others[:, 1:])
    same = cross_entropy(first[1], labels) - cross_entropy(second[1], others)
    tolerance = 1e-4 * max(1.0, float(first[0].abs()))
    fits_shifted, fits_same = (found - shifted).abs() < tolerance, (found - same).abs() < tolerance
    return bool(fits_shifted) if fits_shifted != fits_same else None
