"""A model with running statistics, which soon differ between ranks, and a buffer that forward reads in training."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 16)
        self.norm = torch.nn.BatchNorm1d(16, momentum=0.5)
        self.head = torch.nn.Linear(16, 256)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        if self.training:
            x = x * (1 + torch.tanh(self.seen))  # `seen` depends on the earlier batches.
            self.seen.mul_(0.5).add_((input_ids[:, 0].float().mean() - 100) / 20)
        return self.head(torch.tanh(self.norm(x.flatten(0, 1)).view_as(x)))
