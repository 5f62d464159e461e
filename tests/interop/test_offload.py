"""Ranks with shards, gradients, optimizer state and saved activations in offloaded storage have the same losses,
gradient norms and checkpoints as ranks without it, bit for bit."""

import json

import parity_table
import pytest
import torch
import torch.nn.functional as F

import train_runs
import zoo_models

JOB = {"steps": 6, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "no_decay": ["bias", "norm"]}
PLAIN = {"reshard": True, "recompute": False, "accumulate": 1, "max_norm": None, "classes": ["Block"], "lr": 3e-3,
         "arguments": 2}
BFLOAT16 = ["bfloat16", "bfloat16"]
CASES = {
    2: {"plain": {}, "accumulation and clipping": {"accumulate": 2, "max_norm": 0.5}, "no reshard": {"reshard": False},
        "checkpointing": {"recompute": True}, "bfloat16": {"precision": BFLOAT16},
        "everything": {"accumulate": 2, "max_norm": 0.5, "recompute": True, "precision": ["bfloat16", "float32"]}},
    4: {"2 x 2": {"replicas": 2, "max_norm": 0.5, "recompute": True}, "kept by 2": {"reshard_size": 2, "recompute": True},
        "4 x 1": {"replicas": 4, "accumulate": 2, "precision": BFLOAT16}},
}


class Loss(torch.nn.Module):
    """A GPT with dropout that returns its loss."""

    def __init__(self):
        super().__init__()
        self.gpt = train_runs.GPT(**train_runs.SIZES, dropout=0.2)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.gpt(inputs).flatten(0, 1).float(), labels.flatten())


@pytest.mark.long(but="2")
@pytest.mark.parametrize("ranks", CASES)
def test_a_storage_apart_changes_no_bit(accel, tmp_path, ranks):
    torch.manual_seed(0)
    torch.jit.script(Loss()).save(str(tmp_path / "model.pt"))
    for rank in range(ranks):
        tensors = [torch.randint(256, (2, 32)) for _ in range(6)]
        torch.jit.script(zoo_models.Inputs(tensors)).save(str(tmp_path / f"inputs{rank}.pt"))
    cases = [{**PLAIN, **options, "model": str(tmp_path / "model.pt"), "inputs": str(tmp_path / "inputs{rank}.pt"),
              "offload": offload, "out": str(tmp_path / f"{name}.{len(offload)}.json"),
              "checkpoint": str(tmp_path / f"{name}.{len(offload)}")}
             for name, options in CASES[ranks].items() for offload in ([], ["params", "activations"])]
    # A process makes its groups of ranks only once.
    for job in [cases] if ranks == 2 else [[case] for case in cases]:
        (tmp_path / "job.json").write_text(json.dumps({**JOB, "cases": job}))
        parity_table.launch(tmp_path, ranks, parity_table.BUILD / "tests/unit/train/parity-tool", tmp_path / "job.json")
    results = set()
    for name in CASES[ranks]:
        plain, apart = (json.loads((tmp_path / f"{name}.{kind}.json").read_text()) for kind in (0, 2))
        assert plain.pop("fetches") == 0
        assert apart.pop("fetches") >= 6 * 3  # Each of six steps fetches at least three units.
        assert plain == apart, name
        assert plain["loss"][-1] < plain["loss"][0] - 0.05, name
        results.add(json.dumps(plain))
        for part in ("pytorch_model_fsdp_0", "optimizer_0"):
            accel("diff", *(tmp_path / f"{name}.{kind}/checkpoint_6/{part}" for kind in (0, 2)))
        merged = [tmp_path / f"{name}.{kind}.merged" for kind in (0, 2)]
        for kind, directory in zip((0, 2), merged):
            accel("merge-weights", tmp_path / f"{name}.{kind}/checkpoint_6", directory)
        assert (merged[0] / "model.safetensors").read_bytes() == (merged[1] / "model.safetensors").read_bytes(), name
    # Resharding and checkpointing do not change a bit; every other option changes the results.
    assert len(results) == len(CASES[ranks]) - (2 if ranks == 2 else 0)
