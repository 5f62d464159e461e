"""Parameters without a gradient do not change, as in torch's AdamW, which skips those whose grad is None."""

import json

import pytest
import torch
from safetensors.torch import load_file

import train_runs
from missing_gradients_model import Net
from test_train_checkpoint import read_with_dcp

LENGTH, BATCH, STEPS = 32, 2, 20
DDP = {"distributed_type": "MULTI_CPU"}


@pytest.mark.long(but="1 rank")
@pytest.mark.parametrize(
    "processes, accumulate, by_data, layout",
    [(1, 1, False, {}), (2, 1, False, {}), (3, 1, False, {}), (2, 3, False, {}), (2, 1, False, {"launch.backend": "gloo"}),
     (2, 1, False, DDP), (2, 1, True, DDP)],
    ids=["1 rank", "2 ranks", "3 ranks", "2 ranks, accumulation", "2 ranks, gloo", "DDP", "DDP, on some ranks"])
def test_parameters_without_a_gradient_stay_as_they_are(accel, peer, tmp_path, processes, accumulate, by_data, layout):
    torch.manual_seed(0)
    model = Net(by_data)
    torch.jit.script(model).save(str(tmp_path / "net.pt"))
    options = {} if layout == DDP else {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer"}
    run = accel("launch", train_runs.config(tmp_path, processes, **{
        "model.path": str(tmp_path / "net.pt"), "data.batch_size": BATCH, "max_steps": STEPS, "max_grad_norm": 1.0,
        "optimizer.weight_decay": 0.3, "optimizer.no_decay": [], "lr_scheduler": {"type": "constant"},
        "gradient_accumulation_steps": accumulate, "checkpoint": {"every": STEPS, "resume": "none"}, **options, **layout}))
    spec = {"path": str(tmp_path / "net.pt"), "data": str(train_runs.TEXT), "length": LENGTH, "batch_size": BATCH,
            "accumulate": accumulate, "lr": 3e-3, "weight_decay": 0.3, "max_steps": STEPS, "by_data": by_data,
            "ddp": layout == DDP, "out": str(tmp_path / "theirs.pt")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    peer(processes, "missing_gradients_peer.py", tmp_path / "spec.json")
    theirs = torch.load(tmp_path / "theirs.pt", weights_only=True)

    def worst(ours, others):
        return max(abs(a - b) for a, b in zip(ours, others, strict=True))

    loss = worst(train_runs.metrics(tmp_path), theirs["loss"])
    norm = worst(train_runs.metrics(tmp_path, "grad_norm"), theirs["grad_norm"])
    last = tmp_path / f"out/checkpoints/checkpoint_{STEPS}"
    accel("merge-weights", last, tmp_path / "merged")
    ours = load_file(tmp_path / "merged/model.safetensors")
    weights = max((ours[name] - tensor).abs().max().item() for name, tensor in theirs["weights"].items())
    print(f"largest differences: loss {loss:.1e}, gradient norm {norm:.1e}, weights {weights:.1e}")
    assert loss < 2e-5 and norm < 1e-4 and weights < 1e-5

    states = read_with_dcp(last / "optimizer_0")
    for name, tensor in model.named_parameters():
        state = {key: states[f"optimizer.state.{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        expected = theirs["states"].get(name, {key: torch.zeros_like(value) for key, value in state.items()})
        assert state["step"] == expected["step"], name
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(state[key], expected[key], atol=1e-6), f"{name} {key}"
        if "unused" in name:
            assert state["step"] == 0 and torch.equal(ours[name], tensor)
    steps = int(states["optimizer.state.second.up.weight.step"])
    if by_data:
        assert set(theirs["ranks_with"]) == {0, 1, 2}  # The number of ranks that run `second`.
        assert steps == sum(ranks > 0 for ranks in theirs["ranks_with"])
    else:
        assert steps == (STEPS // 2 if accumulate == 1 else STEPS)
    assert "3 trainable parameters had no gradient in any step and are unchanged: " in run.stderr
