"""A model in which some parameters have no gradient: in every step, in every second step, or on some ranks."""

import torch


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 16)
        self.unused = torch.nn.Parameter(torch.randn(5, 7))  # It lies between two modules that are used.
        self.down = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, by_data: bool):
        super().__init__()
        self.by_data = by_data
        self.unused = torch.nn.Parameter(torch.randn(33))
        self.tokens = torch.nn.Embedding(256, 16)
        self.first = Layer()
        self.second = Layer()
        self.head = torch.nn.Linear(16, 256)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.first(self.tokens(input_ids))
        takes_second = int(input_ids[0, 0]) % 2 == 0 if self.by_data else int(self.steps) % 2 == 0
        if takes_second:
            x = self.second(x)
        self.steps.add_(1)
        return self.head(x)
