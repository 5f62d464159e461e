"""float16 with a scaled loss has the same scales, skipped steps and losses in accel and in Python."""

import json

import pytest
import torch

import train_runs
from gpt import GPT
from test_parity import begin_equal, bound_in, reference, worst

FLOAT16 = {"param_dtype": "float16", "reduce_dtype": "float16", "output_dtype": "float16"}


def lines(directory):
    read = [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]
    return [line for line in read if "loss" in line]


@pytest.mark.long(but="1 rank")
@pytest.mark.parametrize(
    "processes, options, precision, spec",
    [(1, {}, FLOAT16, {}),
     (2, {}, FLOAT16, {}),
     (3, {"gradient_accumulation_steps": 2}, FLOAT16, {"accumulate": 2}),
     (4, {"parallelism_config.dp_shard_size": 2}, FLOAT16, {"replicas": 2}),
     (2, {"fsdp_config.fsdp_reduce_dtype": "fp32", "gradient_accumulation_steps": 2},
      {**FLOAT16, "reduce_dtype": "float32"}, {"accumulate": 2}),
     (2, {"fsdp_config.fsdp_activation_checkpointing": True}, FLOAT16, {"activation_checkpointing": True}),
     (2, {"launch.backend": "gloo"}, FLOAT16, {})],
    ids=["1 rank", "2 ranks", "3 ranks, accumulation", "2 x 2", "gradients in float32", "checkpointing", "gloo"],
)
def test_losses_equal_fully_shard(accel, peer, tmp_path, processes, options, precision, spec):
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, processes, **options), "--mixed-precision", "fp16")
    ours = train_runs.metrics(tmp_path)
    theirs = reference(peer, tmp_path, processes, precision=precision, scaler={}, **spec)
    # At the first scale the largest gradients sometimes overflow.
    assert [line["scale"] for line in lines(tmp_path)] == theirs["scale"]
    norm = max(abs(line["grad_norm"] / theirs["grad_norm"][line["step"] - 1] - 1)
               for line in lines(tmp_path) if not line["skipped"])
    (tmp_path / "out/metrics.jsonl").unlink()
    accel("launch", train_runs.config(tmp_path, processes, **{**options, "fsdp_config.fsdp_reduce_dtype": None}))
    equal = theirs["scale"].index(32768.0) if 32768.0 in theirs["scale"] else 20  # Steps before the first skip.
    float32 = train_runs.metrics(tmp_path)
    full = max(abs(a - b) for a, b in zip(ours[:equal], float32))
    print(f"{processes} ranks, {options}: largest difference of the loss from fully_shard "
          f"{worst(ours, theirs['loss']):.1e}, of the gradient norm {norm:.1e}, of the loss from float32 {full:.1e}")
    assert begin_equal(ours, theirs["loss"]) and not begin_equal(float32, theirs["loss"])
    assert worst(ours, theirs["loss"]) < bound_in("float16", theirs["loss"])
    assert norm < torch.finfo(torch.float16).eps
    assert full < 1e-2  # After a skipped step the weights of float32 differ in any case.


@pytest.mark.long(but="1")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_overflows_skip_the_steps_that_they_skip_in_python(accel, peer, tmp_path, processes):
    """The scale starts far too high and grows again every 3 steps. Every state of the scaler is compared."""
    train_runs.export(tmp_path / "gpt.pt")
    scaler = {"init_scale": 2.0**26, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3}
    config = train_runs.config(tmp_path, processes, grad_scaler=scaler, **{"checkpoint.every": 20})
    stderr = accel("launch", config, "--mixed-precision", "fp16").stderr
    theirs = reference(peer, tmp_path, processes, precision=FLOAT16, scaler=scaler)
    ours = lines(tmp_path)
    assert [line["scale"] for line in ours] == theirs["scale"]
    skipped = [line["step"] for line in ours if line["skipped"]]
    print(f"{processes} ranks: skipped {skipped}, scales {theirs['scale']}")
    assert len(ours) - len(skipped) == theirs["taken"]
    # Steps are skipped at the start, and again after the scale has grown.
    assert skipped[0] == 1 and len(skipped) > 3 and 20 > max(skipped) > 8
    assert worst([line["loss"] for line in ours], theirs["loss"]) < 5e-4
    assert ours[0]["loss"] == pytest.approx(theirs["loss"][0], abs=1e-9)
    # A skipped step does not advance the schedule.
    rates = [line["lr"] for line in ours if line["step"] not in skipped]
    assert rates[:5] == pytest.approx([3e-3 * step / 4 for step in range(5)])
    assert all(line["grad_norm"] is None for line in ours if line["skipped"])
    assert f"step  1/20  loss {ours[0]['loss']:.4f}  lr 0.00e+00" in stderr
    assert "  scale 1.67772e+07  1 step skipped  " in stderr

    scaler_file = tmp_path / "out/checkpoints/checkpoint_20/scaler.json"
    peer = torch.amp.GradScaler("cpu")
    peer.load_state_dict(json.loads(scaler_file.read_text()))
    assert peer.state_dict() == theirs["scaler"]
    accel("verify", scaler_file.parent)
    scaler_file.unlink()
    assert "scaler.json" in accel("verify", scaler_file.parent, code=3).stdout


def test_steps_skipped_between_two_lines_are_counted(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, log_every=10, grad_scaler={"init_scale": 2.0**20})
    stderr = accel("launch", config, "--mixed-precision", "fp16").stderr
    first, second = lines(tmp_path)
    assert first["skipped"] >= 2 > second["skipped"]
    assert first["scale"] == 2.0 ** (20 - first["skipped"])
    assert second["scale"] == first["scale"] / 2 ** second["skipped"]
    assert f"  scale {first['scale']:g}  {first['skipped']} steps skipped  " in stderr


class Undifferentiable(GPT):
    """A model whose loss is finite and whose gradient never is."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(positions)
        return self.head(self.norm(x + torch.sqrt(x * 0)))


def test_gradients_that_no_scale_helps_are_an_error_that_names_the_step(accel, tmp_path):
    torch.manual_seed(0)
    torch.jit.script(Undifferentiable(**train_runs.SIZES)).save(str(tmp_path / "gpt.pt"))
    config = train_runs.config(tmp_path, 2, grad_scaler={"backoff_factor": 0.001},
                               **{"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP",
                                  "fsdp_config.fsdp_transformer_layer_cls_to_wrap": None})
    stderr = accel("launch", config, "--mixed-precision", "fp16", "--max-restarts", 2, code=6).stderr
    assert "not restarted: a restart would fail in the same way" in stderr
    assert "step 4: gradients are infinite or NaN in float16, although the loss is multiplied by only 6.55e-05" in stderr
    assert "hint: try mixed_precision: bf16" in stderr


def test_a_loss_that_is_not_finite_is_an_error(accel, tmp_path):
    model = train_runs.export(tmp_path / "gpt.pt")
    with torch.no_grad():
        model.blocks[0].up.bias.fill_(6e4)
        model.blocks[0].down.weight.fill_(1.0)
    torch.jit.script(model).save(str(tmp_path / "gpt.pt"))
    stderr = accel("launch", train_runs.config(tmp_path, 2), "--mixed-precision", "fp16", code=None).stderr
    assert "step 1: the loss is nan and the gradient norm is nan" in stderr
