"""Every optimizer on CUDA beside CPU ranks, whose numbers are torch's (tests/interop/test_optimizers.py)."""

import pytest

import train_runs
from gpu_runs import CPU, GPU, launch, worst

# The settings, and how far losses may be apart after 10 steps: Lion's sign and Muon's bfloat16 make more of a rounding.
CASES = {
    "adam": ({"type": "adam", "lr": 3e-3}, 2e-4),
    "amsgrad": ({"type": "adamw", "lr": 3e-3, "amsgrad": True}, 2e-4),
    "sgd": ({"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}, 2e-4),
    "adagrad": ({"type": "adagrad", "lr": 1e-2}, 2e-4),
    "rmsprop": ({"type": "rmsprop", "lr": 1e-3, "momentum": 0.5, "centered": True}, 2e-3),
    "lion": ({"type": "lion", "lr": 3e-4}, 2e-2),
    "muon": ({"type": "muon", "lr": 2e-2, "groups": [{"match": "^(tokens|positions|head)", "optimizer": "adamw", "lr": 3e-3}]}, 2e-2),
}


@pytest.mark.long(but="sim-1-adam")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_equal_those_of_a_cpu(accel, tmp_path, case, ranks):
    settings, bound = CASES[case]
    train_runs.export(tmp_path / "gpt.pt")
    options = {"optimizer": {"no_decay": ["bias", "norm"], **settings}, "max_steps": 10}
    cpu, _ = launch(accel, tmp_path, where=CPU, ranks=ranks, **options)
    gpu, _ = launch(accel, tmp_path, ranks=ranks, **options)
    assert worst(gpu, cpu) < bound
    assert gpu["loss"][-1] < gpu["loss"][0] - 0.1


@pytest.mark.parametrize("options", [{"fsdp_config.fsdp_offload_params": True}, {"launch.backend": "nccl"}], ids=["offload", "nccl"])
def test_muon_with_shards_in_the_hosts_memory_and_over_nccl(accel, tmp_path, options):
    train_runs.export(tmp_path / "gpt.pt")
    settings, bound = CASES["muon"]
    plain, _ = launch(accel, tmp_path, where=GPU, optimizer=settings, max_steps=10)
    other, _ = launch(accel, tmp_path, where=GPU, optimizer=settings, max_steps=10, **options)
    assert worst(plain, other) < bound
