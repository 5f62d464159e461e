"""Learning rates, step by step, against transformers' get_scheduler and the ReduceLROnPlateau and GreedyLR that it makes."""

import json

import pytest
import torch
import train_runs
import transformers

STEPS, LR = 12, 0.02

# Settings of accel, and the specific keyword arguments of get_scheduler.
CASES = {
    "constant": ({}, {}),
    "constant_with_warmup": ({"warmup_steps": 4}, {}),
    "linear": ({"warmup_steps": 3}, {}),
    "cosine": ({"warmup_steps": 3}, {}),
    "cosine waves": ({"warmup_steps": 3, "num_cycles": 1.5}, {"num_cycles": 1.5}),
    "cosine_with_restarts": ({"warmup_steps": 2, "num_cycles": 3}, {"num_cycles": 3}),
    "cosine_with_restarts once": ({}, {}),
    "polynomial": ({"warmup_steps": 2}, {}),
    "polynomial squared": ({"power": 2, "lr_end": 1e-3, "total_steps": 9}, {"power": 2, "lr_end": 1e-3}),
    "inverse_sqrt": ({"warmup_steps": 3}, {}),
    "inverse_sqrt slow": ({"warmup_steps": 3, "timescale": 50}, {"timescale": 50}),
    "inverse_sqrt cold": ({}, {}),
    "cosine_with_min_lr": ({"warmup_steps": 3, "min_lr_ratio": 0.25}, {"min_lr_rate": 0.25}),
    "cosine_warmup_with_min_lr": ({"warmup_steps": 3, "min_lr_ratio": 0.25}, {"min_lr_rate": 0.25}),
    "cosine_warmup_with_min_lr warm": ({"warmup_steps": 4, "min_lr_ratio": 0.25, "warmup_lr_ratio": 0.5},
                                       {"min_lr_rate": 0.25, "warmup_lr_rate": 0.5}),
    "warmup_stable_decay": ({"warmup_steps": 3, "decay_steps": 4}, {"num_decay_steps": 4}),
    "warmup_stable_decay linear": (
        {"warmup_steps": 3, "decay_steps": 4, "decay_type": "linear", "warmup_type": "cosine", "min_lr_ratio": 0.1, "total_steps": 10},
        {"num_decay_steps": 4, "decay_type": "linear", "warmup_type": "cosine", "min_lr_ratio": 0.1}),
    "warmup_stable_decay root": ({"warmup_steps": 3, "decay_steps": 4, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"},
                                 {"num_decay_steps": 4, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"}),
}


def run(accel, tmp_path, scheduler, steps=STEPS, **training):
    accel("launch", train_runs.config(tmp_path, 1, **{
        "max_steps": steps, "optimizer.lr": LR, "lr_scheduler": scheduler, "data.batch_size": 1, **training}))


@pytest.mark.long(but="constant")
@pytest.mark.parametrize("name", CASES)
def test_rates_are_those_of_get_scheduler(accel, tmp_path, name):
    train_runs.export(tmp_path / "gpt.pt", layers=1)
    settings, options = CASES[name]
    run(accel, tmp_path, {"type": name.split()[0], **settings})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = transformers.get_scheduler(
        name.split()[0], optimizer, num_warmup_steps=settings.get("warmup_steps", 0),
        num_training_steps=settings.get("total_steps", STEPS), scheduler_specific_kwargs=options)
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert train_runs.metrics(tmp_path, "lr") == pytest.approx(expected, rel=1e-12, abs=1e-17)


def rates_that_follow_the_loss(accel, tmp_path, kind, options):
    """The rates of 16 steps, of which each is evaluated, in two runs. They are those of Python for the same losses."""
    train_runs.export(tmp_path / "gpt.pt", layers=1)
    (tmp_path / "held.txt").write_bytes(train_runs.TEXT.read_bytes()[-1024:])
    data = {"data.eval": {"format": "text", "path": str(tmp_path / "held.txt"), "sequence_length": 32},
            "eval_every": 1, "checkpoint": {"every": 7, "resume": "auto"}}
    for steps in (7, 16):
        run(accel, tmp_path, {"type": kind, **options}, steps, **data)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = transformers.get_scheduler(kind, optimizer, scheduler_specific_kwargs=options)
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    rates = {record["step"]: record["lr"] for record in records if "lr" in record}
    losses = {record["step"]: record["eval_loss"] for record in records if "eval_loss" in record}
    for step in range(1, 17):
        assert rates[step] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), (step, rates, losses)
        optimizer.step()
        scheduler.step(losses[step])
    return rates


@pytest.mark.long(but="relative")
@pytest.mark.parametrize("options", [{"factor": 0.5, "patience": 1, "cooldown": 1},
                                     {"factor": 0.3, "patience": 0, "threshold": 0.5, "threshold_mode": "abs", "min_lr": 1e-3}],
                         ids=["relative", "absolute"])
def test_a_plateau_is_that_of_torch_and_goes_on(accel, tmp_path, options):
    """The held-out loss rises soon, as the rate is far too high."""
    rates = rates_that_follow_the_loss(accel, tmp_path, "reduce_lr_on_plateau", options)
    assert rates[7] < LR or rates[16] < rates[7]
    assert rates[16] < LR


def test_a_greedy_rate_rises_and_falls_as_that_of_transformers_and_goes_on(accel, tmp_path):
    options = {"factor": 0.7, "patience": 0, "warmup": 1, "cooldown": 1, "max_lr": 0.05}
    rates = rates_that_follow_the_loss(accel, tmp_path, "greedy", options)
    assert max(rates.values()) > LR and min(rates[step + 1] / rates[step] for step in range(1, 16)) < 1


def test_a_greedy_rate_begins_anew_after_falls_at_its_least(accel, tmp_path):
    """The first loss is lower than infinity, and no other is lower by half. The second run begins between falls that count."""
    options = {"factor": 0.6, "patience": 0, "min_lr": 0.005, "reset_start": 4, "threshold": 0.5, "threshold_mode": "rel"}
    rates = rates_that_follow_the_loss(accel, tmp_path, "greedy", options)
    assert [rates[step] for step in (6, 7, 8, 9)] == pytest.approx([0.005, 0.005, 0.005, LR])


@pytest.mark.parametrize("scheduler, said", [
    ({"type": "reduce_lr_on_plateau"}, "follows the held-out loss, and there is no evaluation"),
    ({"type": "greedy"}, "follows the held-out loss, and there is no evaluation"),
    ({"type": "warmup_stable_decay", "warmup_steps": 4}, "'training.lr_scheduler.decay_steps: 0' must be at least 1"),
    ({"type": "polynomial", "lr_end": 1}, "needs an 'lr_end' below the learning rate 0.02"),
    ({"type": "linear", "min_lr_ratio": 0.5}, "is for the types cosine, cosine_with_min_lr,"),
])
def test_a_schedule_that_cannot_be_is_refused(accel, tmp_path, scheduler, said):
    train_runs.export(tmp_path / "gpt.pt", layers=1)
    config = train_runs.config(tmp_path, 1, **{"max_steps": STEPS, "optimizer.lr": LR, "lr_scheduler": scheduler})
    assert said in accel("check", config, code=2).stderr
