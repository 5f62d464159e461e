"""Ranks that run different units in a step get an error. Otherwise units of equal size would be mixed up."""

import pytest
import torch

import train_runs


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.up(x))


class Net(torch.nn.Module):
    """Each rank draws at random which of two units runs first, or which one runs alone."""

    def __init__(self, both: bool):
        super().__init__()
        self.both = both
        self.tokens = torch.nn.Embedding(256, 16)
        self.left = Expert()
        self.right = Expert()
        self.head = torch.nn.Linear(16, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        if float(torch.rand([1])) < 0.5:
            x = self.left(x)
            if self.both:
                x = self.right(x)
        else:
            x = self.right(x)
            if self.both:
                x = self.left(x)
        return self.head(x)


@pytest.mark.long(but="sharded-shm-in another order")
@pytest.mark.parametrize("both", [True, False], ids=["in another order", "on some ranks only"])
@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("fsdp", [
    {"fsdp_config.fsdp_reshard_after_forward": False},
    {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_sharding_strategy": "NO_SHARD"},
], ids=["sharded", "whole"])
def test_ranks_that_run_other_units_are_told(accel, tmp_path, both, backend, fsdp):
    torch.jit.script(Net(both)).save(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, **{
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Expert", "launch.backend": backend, **fsdp})
    said = accel("launch", config, code=6).stderr
    assert "the ranks gathered or reduced the model's units in different orders" in said
    assert "hint: every rank has to run the same units in each step" in said


def test_one_rank_may_do_as_it_likes(accel, tmp_path):
    torch.jit.script(Net(both=False)).save(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, 1, **{"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Expert"}))
    assert len(train_runs.metrics(tmp_path)) == 20
