"""A model that returns its loss multiplied by SCALE.

The modules are declared in the order of backward. DistributedDataParallel orders the parameters of its one bucket as
their gradients arrive. So its matrices have the same order as in accel's flat buffer, and PowerSGD draws the same first
factors for the same parameters. Two pairs of matrices have the same shape. The scale does not affect Adam, but it makes
most gradients too small for the precision of float16.
"""

import torch
import torch.nn.functional as F

SCALE = 2.0**-13


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(32, 256)
        self.norm = torch.nn.LayerNorm(32)
        self.down = torch.nn.Linear(64, 32)
        self.gate = torch.nn.Linear(32, 64)
        self.up = torch.nn.Linear(32, 64)
        self.tokens = torch.nn.Embedding(256, 32)
        self.scale = SCALE

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        hidden = torch.tanh(self.up(x)) * torch.sigmoid(self.gate(x))
        logits = self.head(self.norm(x + self.down(hidden)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) * self.scale
