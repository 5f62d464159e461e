"""A batch whose loss is NaN ends the run, or its step is skipped without an effect on the other steps."""

import re

import torch
from safetensors.torch import save_file

import train_runs

WINDOW, BATCH, STEPS = 32, 4, 8
BAD_STEP = 3


class Net(torch.nn.Module):
    """Byte 7 gives inf - inf, a NaN whose sign bit x86 sets. The other bytes give finite values."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 16)
        self.head = torch.nn.Linear(16, 256)
        with torch.no_grad():
            self.tokens.weight[7] = float("inf")

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        features = self.tokens(input_ids)
        return self.head(torch.tanh(features) + (features - features))


def run(accel, directory, ranks, bad, code=0, flags=(), **training):
    """Runs STEPS good steps, and a bad one between them if `bad`. Returns losses, learning rates, skips and stderr."""
    directory.mkdir()
    torch.manual_seed(0)
    torch.jit.script(Net()).save(directory / "gpt.pt")
    generator = torch.Generator().manual_seed(1)
    step = WINDOW * BATCH * ranks
    data = bytearray(torch.randint(32, 127, (STEPS * step + 1,), generator=generator).to(torch.uint8).numpy().tobytes())
    if bad:
        at = (BAD_STEP - 1) * step
        # The first byte of the bad step is also a label of the step before.
        data[at:at] = bytes(data[at:at + 1]) + b"\a" * WINDOW + bytes(data[at + WINDOW + 1:at + step])
    (directory / "text").write_bytes(data)
    config = train_runs.config(directory, ranks, directory / "text", max_steps=STEPS + bad, **{
        "fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "lr_scheduler": {"type": "linear", "warmup_steps": 4, "total_steps": 20},
        **training})
    said = accel("launch", config, *flags, code=code).stderr
    return train_runs.metrics(directory), train_runs.metrics(directory, "lr"), train_runs.metrics(directory, "skipped"), said


def test_the_other_steps_are_those_of_a_run_without_it(accel, tmp_path):
    """One rank's window is bad. Both ranks skip the step, and the learning rate schedule does not count it."""
    losses, rates, _, _ = run(accel, tmp_path / "good", 2, bad=False)
    ours, our_rates, skipped, said = run(accel, tmp_path / "bad", 2, bad=True, skip_nonfinite=True)
    assert ours.pop(BAD_STEP - 1) is None
    our_rates.pop(BAD_STEP - 1)
    assert skipped == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert ours == losses
    assert our_rates == rates
    assert f"step {BAD_STEP}: the loss is nan and the gradient norm is nan; " in said and "; no weight is changed" in said
    assert "grad norm nan" in said and "-nan" not in said


def test_the_mean_of_several_steps_leaves_it_out(accel, tmp_path):
    losses, _, _, _ = run(accel, tmp_path / "each", 1, bad=True, skip_nonfinite=True)
    means, _, _, _ = run(accel, tmp_path / "thirds", 1, bad=True, skip_nonfinite=True, log_every=3)
    finite = [[loss for loss in losses[first:first + 3] if loss is not None] for first in (0, 3, 6)]
    assert [len(third) for third in finite] == [2, 3, 3]
    assert means == [sum(third) / len(third) for third in finite]


FLOAT16 = ("--mixed-precision", "fp16")


def test_it_leaves_the_scale_of_float16_alone(accel, tmp_path):
    """A smaller scale does not cure bad data, and it loses small gradients."""
    losses, _, skipped, _ = run(accel, tmp_path / "bad", 1, bad=True, flags=FLOAT16, skip_nonfinite=True)
    assert skipped == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert losses[BAD_STEP - 1] is None
    assert set(train_runs.metrics(tmp_path / "bad", "scale")) == {65536.0}


def test_a_run_without_a_step_of_the_optimizer_says_so(accel, tmp_path):
    scaler = {"init_scale": 2.0**60}
    _, _, skipped, said = run(accel, tmp_path / "idle", 1, bad=False, flags=FLOAT16, grad_scaler=scaler)
    assert skipped == [1] * STEPS
    assert f"none of the {STEPS} steps changed a weight: in each the loss or a gradient was infinite or NaN" in said
    assert "changed a weight" not in run(accel, tmp_path / "good", 1, bad=False)[3]


def test_otherwise_it_ends_the_run(accel, tmp_path):
    losses, _, skipped, said = run(accel, tmp_path / "bad", 1, bad=True, code=6)
    assert len(losses) == BAD_STEP - 1
    assert skipped == []
    assert f"step {BAD_STEP}: the loss is nan" in said
    assert "training.skip_nonfinite: true" in said


def test_a_hundred_in_a_row_end_it_too(accel, tmp_path):
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.head.bias[0] = float("inf")
        net.head.bias[1] = float("-inf")
    torch.jit.script(net).save(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=200, skip_nonfinite=True, **{"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP"})
    said = accel("launch", config, code=6).stderr
    assert "as in the 100 steps before, which were skipped" in said
    assert "step 101:" in said
    assert len(train_runs.metrics(tmp_path)) == 100


class Layer(torch.nn.Module):
    """Takes a square root, which a negative number does not have."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x) * self.scale - 1


class Roots(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Layer(), Layer(), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)))


def test_the_cause_is_named(accel, tmp_path):
    """The inputs come before the units, and on any rank: the third micro-batch of a step is of the second one."""
    torch.jit.script(Roots()).save(tmp_path / "gpt.pt")

    def error(value):
        x = torch.full((64, 8), 5.0)
        x[13, 3] = value
        save_file({"x": x, "labels": torch.arange(64) % 4}, tmp_path / "data.safetensors")
        config = train_runs.config(tmp_path, 2, max_steps=2, gradient_accumulation_steps=2, **{
            "data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")}, "model.inputs": ["x"],
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layer"})
        said = accel("launch", config, code=6).stderr
        return re.search(r"step 1: the loss is nan and the gradient norm is nan; (.*)", said)[1]

    assert error(float("nan")) == f"'x' of data file '{tmp_path}/data.safetensors', sample 13 has a NaN"
    assert error(0.25).endswith("the first result of a unit that is not is that of 'second'")
