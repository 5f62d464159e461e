"""Units that do more than return a result: their side results get gradients, or an error names the unit."""

import json
import math

import pytest
import torch

import side_models
import train_runs

LENGTH, BATCH, STEPS, LR = 32, 4, 4, 3e-3
# A few roundings of the loss in each step. Without its gradient a weight would differ by AdamW's step, which is about LR.
BOUND = STEPS * 4 * torch.finfo(torch.float32).eps * math.log(256)
CHECKPOINTING = {"fsdp_config.fsdp_activation_checkpointing": True}
BF16 = {"mixed_precision": "bf16"}


def export(path, model, block):
    torch.manual_seed(0)
    module = getattr(side_models, model)(getattr(side_models, block))
    torch.jit.script(module).save(str(path))
    return module


def eager(module, ranks):
    """Runs the same training in eager Python, one rank's batch after another. Returns (losses, gradient norms)."""
    module.train()
    tokens = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        total = 0.0
        for rank in range(ranks):
            first = (step * ranks + rank) * BATCH
            rows = torch.stack([tokens[k * LENGTH:k * LENGTH + LENGTH + 1] for k in range(first, first + BATCH)])
            loss = module(rows[:, :-1], rows[:, 1:]) / ranks
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None]).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def config(directory, ranks, **options):
    top = {key: options.pop(key) for key in list(options) if key == "mixed_precision"}
    path = train_runs.config(directory, ranks, **{
        "max_steps": STEPS, "max_grad_norm": None, "optimizer.weight_decay": 0.0, "optimizer.no_decay": [],
        "lr_scheduler": {"type": "constant"}, "model.inputs": ["input_ids", "labels"], "model.loss": "model",
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": options.pop("block"), **options})
    path.write_text(json.dumps({**json.loads(path.read_text()), **top}))
    return path


RESULTS = [("Returned", "ReturnsIt"), ("Kept", "KeepsIt"), ("InADict", "PutsItIntoADict"), ("InAList", "PutsItIntoAList"),
           ("ReturnedParameters", "ReturnsAParameter"), ("Kept", "KeepsItInABuffer"), ("Plain", "KeepsItsInput"),
           ("SetsAttributes", "ReadsAnAttribute"), ("CallsTwice", "AddsUp"), ("ChangesUnits", "IsChanged"),
           ("Plain", "ReadsItsData"), ("Plain", "HelpsItself"), ("Plain", "UnusedFork"), ("Plain", "Autocasts")]


@pytest.mark.long(but="ReturnsIt-1-")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model, block", RESULTS, ids=[block for _, block in RESULTS])
def test_gradients_come_through_all_that_a_unit_gives(accel, tmp_path, model, block, ranks, checkpointing):
    losses, norms = eager(export(tmp_path / "gpt.pt", model, block), ranks)
    options = CHECKPOINTING if checkpointing else {}
    refused = {"PutsItIntoADict": "'blocks.0' changes one of its arguments", "PutsItIntoAList": "'blocks.0' changes one of its arguments",
               "KeepsItInABuffer": "'blocks.1' stores a tensor in 'balance', so its gradient would be lost",
               "IsChanged": "'gain' in 'blocks.1' is changed in place after the module has run"}
    if checkpointing and block in refused:
        said = accel("launch", config(tmp_path, ranks, block=block, **options), code=6).stderr
        assert f"activation checkpointing: {refused[block]}" in said
        return
    accel("launch", config(tmp_path, ranks, block=block, **options), env={"ACCEL_POISON": "1"})
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, abs=BOUND)
    assert train_runs.metrics(tmp_path, "grad_norm") == pytest.approx(norms, abs=BOUND)


@pytest.mark.long(but="CountsInABuffer-")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("block", ["CountsInABuffer", "CountsInAnAttribute", "SwitchesAutocastOff"])
def test_state_is_changed_once_a_step_and_seen_as_it_was(accel, tmp_path, block, checkpointing):
    losses, norms = eager(export(tmp_path / "gpt.pt", "Plain", block), 1)
    accel("launch", config(tmp_path, 1, block=block, **(CHECKPOINTING if checkpointing else {})))
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, abs=BOUND)
    assert train_runs.metrics(tmp_path, "grad_norm") == pytest.approx(norms, abs=BOUND)


@pytest.mark.long(but="changed parameter")
@pytest.mark.parametrize("model, block, options, what", [
    ("Plain", "ClampsAParameter", {}, "parameter 'blocks.0.linear.weight' is changed in place while the model runs"),
    ("Plain", "ClampsItsData", {}, "parameter 'blocks.0.linear.weight' is changed in place while the model runs"),
    ("Plain", "ClampsDataInAFunction", {}, "parameter 'blocks.0.linear.weight' is changed in place while the model runs"),
    ("Plain", "ZeroesAChunkOfItsData", {}, "parameter 'blocks.0.linear.weight' is changed in place while the model runs"),
    ("Plain", "ScalesDetachedData", {}, "parameter 'blocks.0.linear.weight' is changed in place while the model runs"),
    ("Plain", "LooksUpWithMaxNorm", {}, "module 'blocks.0.table' looks up rows with max_norm"),
    ("Plain", "LooksUpInABagWithMaxNorm", {}, "module 'blocks.0' looks up rows with max_norm"),
    ("Plain", "Forks", {}, "module 'blocks.0' calls torch.jit.fork"),
    ("Plain", "IsHooked", {}, "module 'blocks.0' has a forward hook of its own"),
    ("InADict", "PutsItIntoADict", BF16, "mixed precision: 'blocks.0' changes one of its arguments"),
], ids=["changed parameter", "changed data", "in a function", "a chunk", "in a list", "max_norm", "max_norm of a bag", "fork", "hook", "casted dict"])
def test_what_would_be_wrong_without_a_word_is_refused(accel, tmp_path, model, block, options, what):
    export(tmp_path / "gpt.pt", model, block)
    said = accel("launch", config(tmp_path, 2, block=block, **options), code=6).stderr
    assert what in said and "hint: " in said


@pytest.mark.parametrize("block, options", [
    ("ClampsItsData", BF16),
    ("ScalesDetachedData", {**BF16, "fsdp_config.fsdp_version": 1}),
], ids=["bf16", "bf16, version 1"])
def test_a_change_of_data_is_refused_where_one_shard_is_a_copy(accel, tmp_path, block, options):
    export(tmp_path / "gpt.pt", "Plain", block)
    said = accel("launch", config(tmp_path, 1, block=block, **options), code=6).stderr
    assert "parameter 'blocks.0.linear.weight' is changed in place while the model runs" in said and "hint: " in said


@pytest.mark.parametrize("block", ["ClampsAParameter", "ClampsItsData"])
def test_a_parameter_that_every_rank_has_whole_may_be_changed_in_place(accel, tmp_path, block):
    losses, _ = eager(export(tmp_path / "gpt.pt", "Plain", block), 2)
    accel("launch", config(tmp_path, 2, block=block, distributed_type="MULTI_CPU"))
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, abs=BOUND)


def test_ranks_that_evaluate_in_other_orders_are_told(accel, tmp_path):
    """Without prefetching, each rank gathers the units in the order that its own batch chooses."""
    export(tmp_path / "gpt.pt", "ChoosesByData", "Adds")
    evaluation = {"data.eval": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": LENGTH}, "eval_every": STEPS}
    said = accel("launch", config(tmp_path, 2, block="Adds", **{"fsdp_config.fsdp_forward_prefetch": False}, **evaluation), code=6)
    assert "the evaluation: the ranks gathered or reduced the model's units in different orders" in said.stderr
    assert train_runs.metrics(tmp_path, "eval_loss") == []


def test_a_model_without_a_forward_is_refused(accel, tmp_path):
    torch.jit.script(side_models.OnlyGenerates()).save(str(tmp_path / "gpt.pt"))
    said = accel("launch", config(tmp_path, 1, block=None, **{"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"}), code=2).stderr
    assert "the model has no method 'forward'" in said
