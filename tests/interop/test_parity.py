"""The same model, data and optimizer give the same losses in accel and in torch's fully_shard, step by step."""

import functools
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

import train_runs


def reference(peer, directory, processes, **options):
    spec = {
        "model": train_runs.SIZES, "path": str(directory / "gpt.pt"), "data": str(train_runs.TEXT), "batch_size": 4,
        "accumulate": 1, "lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "no_decay": ["bias", "norm"],
        "warmup_steps": 4, "min_lr_ratio": 0.1, "max_steps": 20, "max_grad_norm": 1.0, "out": str(directory / "reference.json"),
        **options,
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    peer(processes, "fsdp_reference.py", directory / "spec.json")
    return json.loads((directory / "reference.json").read_text())


def metrics_of_pt2(accel, directory, config, *flags):
    """Trains the same model as a program of torch.export, with the same configuration, and returns its metrics."""
    (directory / "out").rename(directory / "out_of_torchscript")
    accel("launch", config, *flags, "--set", f"training.model.path={directory / 'gpt.pt2'}")
    found = {key: train_runs.metrics(directory, key) for key in ("loss", "grad_norm")}
    shutil.rmtree(directory / "out")
    (directory / "out_of_torchscript").rename(directory / "out")
    return found


def worst(ours, theirs):
    assert len(ours) == len(theirs) == 20
    return max(abs(a - b) for a, b in zip(ours, theirs))


def bound_in(dtype, losses):
    """Returns a bound of the difference of losses in a dtype of 16 bits, if all that differs is the last bit of a few float32
    weights. Such a bit changes the rounding of single numbers, and the mean over the tokens is far below one rounding."""
    return torch.finfo(getattr(torch, dtype)).eps / 16 * max(losses)


def begin_equal(ours, theirs):
    """Whether the first two losses are equal. No weight changes between them, because the learning rate of the first step
    is 0. Losses of another dtype are many thousand times further away than this."""
    return all(abs(a - b) < 1e-9 for a, b in zip(ours[:2], theirs[:2], strict=True))


@pytest.mark.long(but="2 ranks")
@pytest.mark.parametrize(
    "processes, reshard, accumulate, checkpointing",
    [(1, True, 1, False), (2, True, 1, False), (3, True, 1, False), (2, False, 1, False), (2, True, 2, False),
     (1, True, 1, True), (2, True, 1, True), (2, False, 2, True)],
    ids=["1 rank", "2 ranks", "3 ranks", "2 ranks, no reshard", "2 ranks, accumulation", "1 rank, checkpointing",
         "2 ranks, checkpointing", "2 ranks, no reshard, accumulation, checkpointing"],
)
def test_losses_equal_fully_shard(accel, peer, tmp_path, processes, reshard, accumulate, checkpointing):
    train_runs.export_pt2(tmp_path / "gpt.pt2", train_runs.export(tmp_path / "gpt.pt"))
    config = train_runs.config(tmp_path, processes, gradient_accumulation_steps=accumulate,
                               **{"fsdp_config.fsdp_reshard_after_forward": reshard,
                                  "fsdp_config.fsdp_activation_checkpointing": checkpointing})
    accel("launch", config)
    for key, values in metrics_of_pt2(accel, tmp_path, config).items():
        assert values == train_runs.metrics(tmp_path, key)
    theirs = reference(peer, tmp_path, processes, reshard=reshard, accumulate=accumulate,
                       activation_checkpointing=checkpointing)
    loss = worst(train_runs.metrics(tmp_path), theirs["loss"])
    norm = worst(train_runs.metrics(tmp_path, "grad_norm"), theirs["grad_norm"])
    print(f"{processes} ranks, reshard {reshard}, accumulation {accumulate}: largest difference of the loss {loss:.1e}, "
          f"of the gradient norm {norm:.1e}")
    assert loss < 2e-5
    assert norm < 1e-3
    # The model learns, so the losses are not equal only because the weights do not change.
    assert theirs["loss"][-1] < theirs["loss"][0] - 1


LAYOUTS = {
    # name: (processes, accumulation, ours, theirs)
    "2 x 2": (4, 1, {"parallelism_config.parallelism_config_dp_replicate_size": 2,
                     "parallelism_config.parallelism_config_dp_shard_size": 2}, {"replicas": 2}),
    "2 x 2, no reshard, accumulation": (4, 2, {"parallelism_config.dp_replicate_size": 2,
                                               "fsdp_config.fsdp_reshard_after_forward": False},
                                        {"replicas": 2, "reshard": False}),
    "2 x 2, checkpointing, accumulation": (4, 2, {"parallelism_config.dp_shard_size": 2,
                                                  "fsdp_config.fsdp_activation_checkpointing": True},
                                           {"replicas": 2, "activation_checkpointing": True}),
    "2 x 2, gloo": (4, 1, {"parallelism_config.dp_shard_size": 2, "launch.backend": "gloo"}, {"replicas": 2}),
    "HYBRID_SHARD, 2 x 2": (4, 1, {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_sharding_strategy": "HYBRID_SHARD",
                                   "parallelism_config.dp_shard_size": 2}, {"replicas": 2}),
    "kept by 2 of 4 ranks": (4, 1, {"fsdp_config.fsdp_reshard_after_forward": 2}, {"reshard": 2}),
    "kept by 2 of 4 ranks, checkpointing, accumulation": (
        4, 2, {"fsdp_config.fsdp_reshard_after_forward": 2, "fsdp_config.fsdp_activation_checkpointing": True},
        {"reshard": 2, "activation_checkpointing": True}),
    "2 x 1": (2, 1, {"parallelism_config.dp_replicate_size": 2}, {"ddp": True}),
    "NO_SHARD": (2, 1, {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_sharding_strategy": "NO_SHARD"}, {"ddp": True}),
    "MULTI_CPU": (3, 1, {"distributed_type": "MULTI_CPU"}, {"ddp": True}),
    "MULTI_CPU, accumulation": (2, 2, {"distributed_type": "MULTI_CPU"}, {"ddp": True}),
}


@pytest.mark.long(but="2 x 2")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_of_every_layout_of_ranks_equal_pythons(accel, peer, tmp_path, layout):
    """Replicas of shards equal fully_shard on a mesh of two dimensions, and replicas alone equal DDP. Units that
    reshard to a smaller group of ranks equal fully_shard."""
    processes, accumulate, ours, theirs = LAYOUTS[layout]
    train_runs.export(tmp_path / "gpt.pt")
    run = accel("launch", train_runs.config(tmp_path, processes, gradient_accumulation_steps=accumulate, **ours))
    replicas = processes if "ddp" in theirs else theirs.get("replicas", 1)
    shards = "1 rank," if replicas == processes else f"{processes // replicas} ranks,"
    assert f"units over {shards} in {replicas} replicas" in run.stderr if replicas > 1 else "replicas" not in run.stderr
    theirs = reference(peer, tmp_path, processes, accumulate=accumulate, **theirs)
    loss = worst(train_runs.metrics(tmp_path), theirs["loss"])
    norm = worst(train_runs.metrics(tmp_path, "grad_norm"), theirs["grad_norm"])
    print(f"{layout}: largest difference of the loss {loss:.1e}, of the gradient norm {norm:.1e}")
    assert loss < 2e-5
    assert norm < 1e-3
    assert theirs["loss"][-1] < theirs["loss"][0] - 1


# It matches a tied module, a whole module inside a unit, and modules with and without weight decay.
IGNORED = r"tokens|blocks\.0\.attention|blocks\.\d\.norm2|blocks\.1\.up"


@pytest.mark.long(but="1 rank")
@pytest.mark.parametrize(
    "processes, accumulate, ours, theirs",
    [(1, 1, {}, {}), (2, 1, {}, {}), (3, 1, {}, {}),
     (4, 1, {"parallelism_config.dp_replicate_size": 2}, {"replicas": 2}),
     (4, 2, {"parallelism_config.dp_replicate_size": 2, "fsdp_config.fsdp_activation_checkpointing": True},
      {"replicas": 2, "activation_checkpointing": True}),
     (2, 2, {"fsdp_config.fsdp_reshard_after_forward": False}, {"reshard": False}),
     (2, 1, {"model.broadcast_from_rank0": True}, {}),
     (2, 1, {"fsdp_config.fsdp_offload_params": True, "launch.backend": "gloo"}, {})],
    ids=["1 rank", "2 ranks", "3 ranks", "2 x 2", "2 x 2, checkpointing, accumulation", "2 ranks, no reshard, accumulation",
         "2 ranks, from rank 0", "2 ranks, offload, gloo"])
def test_ignored_modules_are_trained_with_the_mean_of_all_ranks(accel, peer, tmp_path, processes, accumulate, ours, theirs):
    """The peer is fully_shard with ignored_params. The peer also averages the gradients of these parameters over all
    ranks, which a user of fully_shard has to add."""
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, processes, gradient_accumulation_steps=accumulate,
                                      **{"fsdp_config.fsdp_ignored_modules": IGNORED}, **ours))
    theirs = reference(peer, tmp_path, processes, accumulate=accumulate, ignored=IGNORED, **theirs)
    loss = worst(train_runs.metrics(tmp_path), theirs["loss"])
    norm = worst(train_runs.metrics(tmp_path, "grad_norm"), theirs["grad_norm"])
    print(f"{processes} ranks: largest difference of the loss {loss:.1e}, of the gradient norm {norm:.1e}")
    assert loss < 2e-5
    assert norm < 1e-3
    assert theirs["loss"][-1] < theirs["loss"][0] - 1


OFFLOAD = {"fsdp_config.fsdp_offload_params": True}
OFFLOAD_ALL = {**OFFLOAD, "fsdp_config.fsdp_activation_checkpointing": True,
               "fsdp_config.fsdp_activation_checkpointing_offload": True}
PARAMS = "shards, gradients and optimizer state"


@pytest.mark.long
@pytest.mark.parametrize(
    "processes, options, said, theirs",
    [(2, OFFLOAD, PARAMS, {"offload": True}),
     (1, {**OFFLOAD, "fsdp_config.fsdp_version": 1}, PARAMS, {"offload": True}),
     (2, OFFLOAD_ALL, PARAMS + ", and saved activations of checkpointed modules", {"offload": True, "activation_checkpointing": True}),
     (2, {**OFFLOAD_ALL, "fsdp_config.fsdp_offload_params": False, "fsdp_config.fsdp_version": 1},
      "saved activations of checkpointed modules", {"activation_checkpointing": True})],
    ids=["2 ranks", "1 rank, version 1", "2 ranks, activations too", "2 ranks, activations alone, version 1"])
def test_offloading_on_cpu_ranks_changes_no_loss(accel, peer, tmp_path, processes, options, said, theirs):
    """The same holds in Python, where fully_shard takes CPUOffloadPolicy on the CPU."""
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, processes))
    plain = train_runs.metrics(tmp_path), train_runs.metrics(tmp_path, "grad_norm")
    (tmp_path / "out/metrics.jsonl").unlink()
    run = accel("launch", train_runs.config(tmp_path, processes, **options))
    assert f"offload: {said} are in the host's memory" in run.stderr
    ours = train_runs.metrics(tmp_path), train_runs.metrics(tmp_path, "grad_norm")
    if "activation_checkpointing" not in theirs:
        assert ours == plain
    assert worst(ours[0], reference(peer, tmp_path, processes, **theirs)["loss"]) < 2e-5


def units_of(stderr):
    return int(re.search(r"in (\d+) units", stderr).group(1))


@pytest.mark.long
@pytest.mark.parametrize("least", [48, 2304, 9000, 12288, 20000])
def test_units_by_size_equal_accelerates(accel, peer, tmp_path, least):
    """Version 2 makes as many units as fully_shard does with Accelerate's policy, and has the same losses. The
    embedding and the head share a weight of 12288 elements. If they are units of their own, Python's losses change,
    but accel's do not."""
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, **{"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
                                            "fsdp_config.fsdp_min_num_params": least})
    ours = units_of(accel("launch", config).stderr)
    theirs = reference(peer, tmp_path, 2, min_num_params=least)
    assert ours == theirs["units"] > 1
    if least < 12288:
        # accel's losses are those of any other way to wrap the model.
        theirs = reference(peer, tmp_path, 2)
    assert worst(train_runs.metrics(tmp_path), theirs["loss"]) < 2e-5


class Wrapped(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize("least", [48, 2304, 9000, 30000])
def test_units_by_size_in_version_1(accel, tmp_path, least):
    """Version 1 makes as many units as FullyShardedDataParallel would."""
    model = train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 1, max_steps=1, **{"fsdp_config.fsdp_version": 1,
                                                            "fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
                                                            "fsdp_config.fsdp_min_num_params": least})
    ours = units_of(accel("launch", config).stderr)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=least)
    _recursive_wrap(model, policy, Wrapped, set(), set(), only_wrap_children=True)
    assert ours == 1 + sum(isinstance(module, Wrapped) for module in model.modules())


BFLOAT16 = {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16", "output_dtype": "bfloat16"}


@pytest.mark.long(but="1 rank")
@pytest.mark.parametrize(
    "processes, options, precision, spec",
    [(1, {}, BFLOAT16, {}),
     (2, {}, BFLOAT16, {}),
     (3, {"gradient_accumulation_steps": 2}, BFLOAT16, {"accumulate": 2}),
     (2, {"fsdp_config.fsdp_reduce_dtype": "fp32", "gradient_accumulation_steps": 2},
      {**BFLOAT16, "reduce_dtype": "float32"}, {"accumulate": 2}),
     (2, {"fsdp_config.fsdp_activation_checkpointing": True}, BFLOAT16, {"activation_checkpointing": True}),
     (2, {"fsdp_config.fsdp_reshard_after_forward": False}, BFLOAT16, {"reshard": False})],
    ids=["1 rank", "2 ranks", "3 ranks, accumulation", "gradients in float32", "checkpointing", "no reshard"],
)
def test_losses_in_bfloat16_equal_fully_shard(accel, peer, tmp_path, processes, options, precision, spec):
    """Later than in the first two steps the optimizers differ in the last bit of a few weights, and rounding to 8 bits
    makes this difference large."""
    train_runs.export_pt2(tmp_path / "gpt.pt2", train_runs.export(tmp_path / "gpt.pt"))
    config = train_runs.config(tmp_path, processes, **options)
    accel("launch", config, "--mixed-precision", "bf16")
    ours = train_runs.metrics(tmp_path)
    assert metrics_of_pt2(accel, tmp_path, config, "--mixed-precision", "bf16")["loss"] == ours
    theirs = reference(peer, tmp_path, processes, precision=precision, **spec)["loss"]
    (tmp_path / "out/metrics.jsonl").unlink()
    accel("launch", train_runs.config(tmp_path, processes, **{**options, "fsdp_config.fsdp_reduce_dtype": None}))
    full = train_runs.metrics(tmp_path)
    print(f"{processes} ranks, {options}: largest difference of the loss from fully_shard {worst(ours, theirs):.1e}, "
          f"from float32 {worst(ours, full):.1e}")
    assert begin_equal(ours, theirs) and not begin_equal(full, theirs)
    assert worst(ours, theirs) < bound_in("bfloat16", theirs)
    assert worst(ours, full) < 5e-2


@pytest.mark.long
def test_a_model_in_bfloat16_is_trained_in_float32(accel, peer, tmp_path):
    model = train_runs.export(tmp_path / "gpt.pt")
    torch.jit.script(model.to(torch.bfloat16)).save(str(tmp_path / "gpt.pt"))
    config = train_runs.config(tmp_path, **{"checkpoint.every": 20})
    refused = accel("launch", config, code=6).stderr
    assert "is bfloat16; parameters are trained in float32 only" in refused
    assert "train it with distributed_type: FSDP and mixed_precision: bf16" in refused
    said = accel("launch", config, "--mixed-precision", "bf16").stderr
    assert "trainable parameters of 16 bits are trained and saved in float32: " in said
    theirs = reference(peer, tmp_path, 2, precision=BFLOAT16)["loss"]
    assert worst(train_runs.metrics(tmp_path), theirs) < bound_in("bfloat16", theirs)
    accel("merge-weights", tmp_path / "out/checkpoints/checkpoint_20", tmp_path / "merged")
    saved = load_file(tmp_path / "merged/model.safetensors")
    assert saved and {tensor.dtype for tensor in saved.values()} == {torch.float32}
