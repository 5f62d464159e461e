"""Models whose units do more than return a result. Each has an embedding, two units derived from Block, and a head."""

from typing import Dict, List, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 16


class Model(nn.Module):
    """The base of the models. Subclasses add the side results of their units to the loss."""

    def __init__(self, block):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList([block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, 256)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x).reshape(-1, 256), labels.reshape(-1))


class Plain(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, labels)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, 4)


class ReturnsIt(Block):
    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        y = x + torch.tanh(self.linear(x))
        share = F.softmax(self.router(y), -1).mean((0, 1))
        return y, (share * share).sum() * 4


class Returned(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        extra = torch.zeros(())
        for block in self.blocks:
            x, more = block(x)
            extra = extra + more
        return self.loss(x, labels) + extra


class KeepsIt(Block):
    """Stores its balance loss in an attribute, as many mixture-of-experts layers do."""

    def __init__(self):
        super().__init__()
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.linear(x))
        share = F.softmax(self.router(y), -1).mean((0, 1))
        self.balance = (share * share).sum() * 4
        return y


class Kept(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        extra = torch.zeros(())
        for block in self.blocks:
            x = block(x)
            extra = extra + block.balance
        return self.loss(x, labels) + extra


class KeepsItInABuffer(KeepsIt):
    def __init__(self):
        super().__init__()
        del self.balance
        self.register_buffer("balance", torch.zeros(()))


class PutsItIntoADict(Block):
    def forward(self, x: Tensor, extra: Dict[str, Tensor]) -> Tensor:
        y = x + torch.tanh(self.linear(x))
        share = F.softmax(self.router(y), -1).mean((0, 1))
        extra["balance"] = extra["balance"] + (share * share).sum() * 4
        return y


class InADict(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        extra = {"balance": torch.zeros(())}
        for block in self.blocks:
            x = block(x, extra)
        return self.loss(x, labels) + extra["balance"]


class PutsItIntoAList(Block):
    def forward(self, x: Tensor, extra: List[Tensor]) -> Tensor:
        y = x + torch.tanh(self.linear(x))
        share = F.softmax(self.router(y), -1).mean((0, 1))
        extra.append((share * share).sum() * 4)
        return y


class InAList(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        extra: List[Tensor] = []
        for block in self.blocks:
            x = block(x, extra)
        return self.loss(x, labels) + torch.stack(extra).sum()


class CountsInABuffer(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.gain.mul_(1.1)
        return x + torch.tanh(self.router(self.linear(x) * self.gain).sum(-1, keepdim=True))


class CountsInAnAttribute(Block):
    calls: int
    seen: List[int]

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = [1]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        return x + torch.tanh(self.router(self.linear(x) * (1.0 + 0.1 * self.calls * len(self.seen))).sum(-1, keepdim=True))


class ReturnsAParameter(Block):
    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True)), self.router.bias


class ReturnedParameters(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        extra = torch.zeros(())
        for block in self.blocks:
            x, bias = block(x)
            extra = extra + bias.square().sum()
        return self.loss(x, labels) + extra


class ClampsAParameter(Block):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.clamp_(-0.1, 0.1)
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class ClampsItsData(Block):
    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data[0].clamp_(-0.1, 0.1)
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


def shrink(weight: Tensor):
    weight.data.clamp_(-0.1, 0.1)


class ClampsDataInAFunction(Block):
    def forward(self, x: Tensor) -> Tensor:
        shrink(self.linear.weight)
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class ZeroesAChunkOfItsData(Block):
    def forward(self, x: Tensor) -> Tensor:
        _, second = self.linear.weight.data.chunk(2)
        second.zero_()
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class ScalesDetachedData(Block):
    def forward(self, x: Tensor) -> Tensor:
        for weight in [self.linear.weight.detach(), self.linear.bias]:
            weight.data.mul_(0.5)
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class ReadsItsData(Block):
    def forward(self, x: Tensor) -> Tensor:
        shift = self.linear.weight.data.mean().add_(0.5)
        return x + shift * torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class LooksUpWithMaxNorm(Block):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, WIDTH, max_norm=0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(torch.zeros(1, dtype=torch.long))
        return x + rows * torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class LooksUpInABagWithMaxNorm(LooksUpWithMaxNorm):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nn.functional.embedding_bag(torch.zeros(1, 1, dtype=torch.long), self.table.weight, max_norm=0.5)
        return x + rows * torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class Forks(Block):
    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.linear, x)
        return x + torch.tanh(self.router(torch.jit.wait(future)).sum(-1, keepdim=True))


class SwitchesAutocastOff(Block):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = self.linear(x)
        return x + torch.tanh(self.router(y).sum(-1, keepdim=True))


class Autocasts(Block):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return x + torch.tanh(self.router(y.float()).sum(-1, keepdim=True))


class IsHooked(Block):
    def __init__(self):
        super().__init__()

        def double(module, args: Tuple[Tensor], result: Tensor) -> Tensor:
            return result * 2

        self.register_forward_hook(double)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class ChoosesByData(Plain):
    """In evaluation, each rank's batch decides which unit runs first."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        if not self.training and int(input_ids[0, 0]) % 2 == 0:
            x = self.blocks[1](x)
            x = self.blocks[0](x)
        else:
            for block in self.blocks:
                x = block(x)
        return self.loss(x, labels)


class Adds(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class KeepsItsInput(Block):
    def __init__(self):
        super().__init__()
        self.last = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class ReadsAnAttribute(Block):
    """Reads an attribute that the model sets, as a decoder reads the encoder's output."""

    def __init__(self):
        super().__init__()
        self.context = torch.zeros(())
        self.gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.router(self.linear(x) * self.context).sum(-1, keepdim=True)) * self.gain


class SetsAttributes(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        context = torch.tanh(x)
        for block in self.blocks:
            block.context = context
            block.gain = 0.5
            x = block(x)
            block.gain = 1.0
            block.context = torch.zeros(())
        return self.loss(x, labels)


class AddsUp(Block):
    def __init__(self):
        super().__init__()
        self.sum = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.linear(x))
        share = F.softmax(self.router(y), -1).mean((0, 1))
        self.sum = self.sum + (share * share).sum() * 4
        return y


class CallsTwice(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        total = torch.zeros(())
        for block in self.blocks:
            block.sum = torch.zeros(())
            x = block(block(x))
            total = total + block.sum
        return self.loss(x, labels) + total


class IsChanged(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.router(self.linear(x) * self.gain.clone()).sum(-1, keepdim=True))


class ChangesUnits(Model):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for block in self.blocks:
            block.gain.fill_(1.0)
            x = block(x)
            block.gain.mul_(2.0)
        return self.loss(x, labels)


class HelpsItself(Block):
    def weight(self) -> Tensor:
        return self.linear.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.router(x @ self.weight()).sum(-1, keepdim=True))


class UnusedFork(Block):
    @torch.jit.export
    def generate(self, x: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(self.linear, x))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.router(self.linear(x)).sum(-1, keepdim=True))


class OnlyGenerates(Block):
    @torch.jit.export
    def generate(self, x: Tensor) -> Tensor:
        return self.linear(x)
