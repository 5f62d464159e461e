"""Running statistics under MULTI_CPU equal DistributedDataParallel's, which broadcasts rank 0's before forward."""

import json

import pytest
import torch
from safetensors.torch import load_file

import train_runs
from ddp_buffers_model import Net

LENGTH, BATCH, STEPS = 32, 2, 12


@pytest.mark.long(but="2 ranks")
@pytest.mark.parametrize("processes, accumulate", [(2, 1), (3, 1), (2, 2)], ids=["2 ranks", "3 ranks", "2 ranks, accumulation"])
def test_running_statistics_are_those_of_rank_0(accel, peer, tmp_path, processes, accumulate):
    """Every rank evaluates with the statistics, so the loss shows whether they are rank 0's or the rank's own."""
    torch.manual_seed(0)
    torch.jit.script(Net()).save(str(tmp_path / "net.pt"))
    held_out = tmp_path / "held_out.txt"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[-(processes * BATCH * 3 * LENGTH + 1):])
    base = {"model.path": str(tmp_path / "net.pt"), "data.batch_size": BATCH, "max_steps": STEPS, "max_grad_norm": None,
            "data.eval": {"format": "text", "path": str(held_out), "sequence_length": LENGTH}, "eval_every": STEPS,
            "optimizer.weight_decay": 0.0, "optimizer.no_decay": [], "lr_scheduler": {"type": "constant"},
            "gradient_accumulation_steps": accumulate, "checkpoint": {"every": STEPS, "resume": "none"}}
    found = {}
    for kind, options in (("ddp", {"distributed_type": "MULTI_CPU"}),
                          ("each its own", {"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP",
                                            "fsdp_config.fsdp_transformer_layer_cls_to_wrap": None})):
        accel("launch", train_runs.config(tmp_path, processes, output_dir=str(tmp_path / kind), **base, **options))
        lines = [json.loads(line) for line in (tmp_path / kind / "metrics.jsonl").read_text().splitlines()]
        found[kind] = {key: [line[key] for line in lines if key in line] for key in ("loss", "eval_loss")}
    spec = {"path": str(tmp_path / "net.pt"), "data": str(train_runs.TEXT), "eval": str(held_out), "length": LENGTH,
            "batch_size": BATCH, "accumulate": accumulate, "lr": 3e-3, "max_steps": STEPS, "out": str(tmp_path / "theirs.json")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    peer(processes, "ddp_buffers_peer.py", tmp_path / "spec.json")
    theirs = json.loads((tmp_path / "theirs.json").read_text())

    def worst(losses):
        return max(abs(a - b) for a, b in zip(losses, theirs["loss"], strict=True))

    # forward reads a buffer, so the loss depends on which rank's buffer it is and when it was broadcast.
    print(f"loss: ours {worst(found['ddp']['loss']):.1e}, with each rank's own buffer {worst(found['each its own']['loss']):.1e}")
    assert worst(found["ddp"]["loss"]) < 2e-5 < 2e-4 < worst(found["each its own"]["loss"])
    (ours,), (own,) = found["ddp"]["eval_loss"], found["each its own"]["eval_loss"]
    print(f"held-out loss: {ours}, DDP's {theirs['eval_loss']}, with each rank's own statistics {own}")
    assert abs(ours - theirs["eval_loss"]) < 2e-5 < 2e-4 < abs(own - theirs["eval_loss"])
    assert all(mean == theirs["means"][0] for mean in theirs["means"])
    accel("merge-weights", tmp_path / f"ddp/checkpoints/checkpoint_{STEPS}", tmp_path / "merged")
    saved = load_file(tmp_path / "merged/model.safetensors")["norm.running_mean"]
    assert torch.allclose(saved, torch.tensor(theirs["means"][0]), atol=1e-5)
