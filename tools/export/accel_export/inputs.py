"""Inputs of a model: an example tensor each, and which of its dimensions vary together."""

import dataclasses

import torch

from .refused import Refused


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a dimension is while the model is recorded, and in the two checks."""

    recorded: int
    checked: tuple[int, int]
    given: bool = False  # The user has said that this size is the one to train with.


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of forward. `dims` names its dimensions; those of one name are equal, and None is a fixed size."""

    name: str
    example: torch.Tensor
    dims: tuple[str | None, ...]

    def at(self, sizes, generator):
        """Returns a tensor of other sizes (a dict by name), made of the values of the example."""
        tensor = self.example
        for dim, name in enumerate(self.dims):
            if name is not None:
                index = torch.arange(sizes[name]) * tensor.shape[dim] // sizes[name]
                tensor = tensor.index_select(dim, index)
        # Flags such as those of a mask keep their order, and numbers such as tokens are drawn anew.
        if not tensor.is_floating_point() and tensor.dtype != torch.bool and self.example.max() > 1:
            values = self.example.flatten()
            tensor = values[torch.randint(values.numel(), tensor.shape, generator=generator)]
        return tensor.clone()

    def shape_at(self, sizes):
        """Returns a tensor of other sizes on the meta device, which takes no memory."""
        shape = [size if name is None else sizes[name] for name, size in zip(self.dims, self.example.shape)]
        return torch.empty(shape, dtype=self.example.dtype, device="meta")

    def __str__(self):
        return f"{self.name} [{', '.join(name or str(size) for name, size in zip(self.dims, self.example.shape))}]"


def tensors(inputs, sizes, seed):
    """Returns a tensor for each input."""
    generator = torch.Generator().manual_seed(seed)
    return [item.at(sizes, generator) for item in inputs]


def default_dims(name, example):
    """Dimension 0 is the batch, and dimension 1 of integers is the length."""
    dims = [None] * example.dim()
    if dims:
        dims[0] = "batch"
    if len(dims) > 1 and not example.is_floating_point():
        dims[1] = "length"
    return tuple(dims)


def sizes_of(inputs):
    """Returns a Size for each name of a dimension, from the examples. Raises Refused if they contradict."""
    sizes = {}
    for item in inputs:
        for name, size in zip(item.dims, item.example.shape):
            if name is not None and sizes.setdefault(name, size) != size:
                raise Refused(f"example_inputs: dimension '{name}' has size {sizes[name]} in one input and {size} in '{item.name}'\n"
                              "hint: give examples of one size, or another name in dims")
    return {name: Size(size, (size + 1, 2 * size + 3)) for name, size in sizes.items()}
