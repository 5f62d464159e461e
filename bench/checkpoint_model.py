"""The model of bench/checkpoint.py: as many parameters as wanted, and little to compute with each."""

import torch


class Layer(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Stack(torch.nn.Module):
    """Takes token numbers as floats of any shape [..., width] when it is called from Python."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(width) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tokens(torch.nn.Module):
    """The same layers for a training on tokens: the first 256 of `width` outputs are the logits."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.stack = Stack(width, layers)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.stack(self.embedding(input_ids))[..., :256]
