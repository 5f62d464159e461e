"""torch and Accelerate read the checkpoints of accel's training runs and continue training from them."""

import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import train_runs


def load_with_dcp(path, root, like):
    """Returns what torch's DCP reads for the names and shapes of `like`. Every element is NaN before the load."""
    state = {root: {name: torch.full_like(tensor, float("nan")) for name, tensor in like.items()}}
    dcp.load(state, checkpoint_id=str(path), no_dist=True)
    return state[root]


def read_with_dcp(path):
    """Returns all tensors that torch's DCP finds at `path`, by key."""
    metadata = dcp.FileSystemReader(str(path)).read_metadata().state_dict_metadata
    state = {key: torch.full(entry.size, float("nan"), dtype=entry.properties.dtype)
             for key, entry in metadata.items() if hasattr(entry, "chunks")}
    dcp.load(state, checkpoint_id=str(path), no_dist=True)
    return state


KINDS = ("pytorch_model_fsdp_0", "optimizer_0")
HYBRID = {"parallelism_config.dp_replicate_size": 2}
REPLICATED = {"distributed_type": "MULTI_CPU"}


@pytest.mark.long(but="1 rank")
@pytest.mark.parametrize("processes, layout", [(1, {}), (2, {}), (3, {}), (4, HYBRID), (6, HYBRID), (3, REPLICATED)],
                         ids=["1 rank", "2 ranks", "3 ranks", "2 x 2", "2 x 3", "3 x 1"])
def test_torch_loads_what_we_save_bit_for_bit(accel, tmp_path, processes, layout):
    model = train_runs.export(tmp_path / "gpt.pt")
    # A learning rate of 0 leaves every parameter as it was exported.
    accel("launch", train_runs.config(tmp_path, processes, max_steps=1, checkpoint={"every": 1, "resume": "none"},
                                      **{"optimizer.lr": 0, "lr_scheduler": {"type": "constant"}}, **layout))
    last = tmp_path / "out/checkpoints/checkpoint_1"
    expected = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    loaded = load_with_dcp(last / "pytorch_model_fsdp_0", "model", expected)
    assert loaded.keys() == expected.keys()
    for name in expected:
        assert torch.equal(loaded[name], expected[name]), name

    accel("merge-weights", last, tmp_path / "merged", "--keep-tied")
    merged = load_file(tmp_path / "merged/model.safetensors")
    assert merged.keys() == expected.keys()
    for name in expected:
        assert torch.equal(merged[name], expected[name]), name


def test_ignored_modules_are_whole_in_the_checkpoint(accel, tmp_path):
    """Ignoring modules changes only how they are stored. A frozen parameter has no optimizer state, ignored or not."""
    torch.manual_seed(0)
    model = train_runs.GPT(**train_runs.SIZES)
    model.blocks[0].requires_grad_(False)
    torch.jit.script(model).save(str(tmp_path / "gpt.pt"))
    losses = []
    for ignored in ("", r"blocks\.0"):
        result = accel("launch", train_runs.config(
            tmp_path, 2, max_steps=3, checkpoint={"every": 3 if ignored else 0, "resume": "none"},
            **({"fsdp_config.fsdp_ignored_modules": ignored} if ignored else {})))
        assert f"in {len(model.blocks) + (0 if ignored else 1)} units" in result.stderr
        losses.append(train_runs.metrics(tmp_path))
        (tmp_path / "out/metrics.jsonl").unlink()
    assert losses[0] == losses[1]
    last = tmp_path / "out/checkpoints/checkpoint_3"
    frozen = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("blocks.0.")}
    loaded = load_with_dcp(last / "pytorch_model_fsdp_0", "model", frozen)
    for name in frozen:
        assert torch.equal(loaded[name], frozen[name]), name
    state = dcp.FileSystemReader(str(last / "optimizer_0")).read_metadata().state_dict_metadata
    moments = {key for key in state if key.endswith("exp_avg")}
    assert moments and not any(".blocks.0." in key for key in moments)
    metadata = dcp.FileSystemReader(str(last / "pytorch_model_fsdp_0")).read_metadata().state_dict_metadata
    assert all(len(metadata[f"model.{name}"].chunks) == 1 for name in frozen)


IGNORED = r"tokens|blocks\.0\.attention|blocks\.1\.norm2"


@pytest.mark.long(but="2 ranks")
@pytest.mark.parametrize("processes, layout", [(2, {}), (4, HYBRID)], ids=["2 ranks", "2 x 2"])
def test_ignored_modules_that_are_trained_are_in_the_checkpoint_once(accel, tmp_path, processes, layout):
    """The weights and optimizer state of ignored modules are in one piece each. torch's DCP reads what a run on one
    rank saves, and `accel save` converts the checkpoint without a difference."""
    train_runs.export(tmp_path / "gpt.pt")
    ignored = {"fsdp_config.fsdp_ignored_modules": IGNORED}
    found = {}
    for name, ranks, options in (("alone", 1, {"data.batch_size": 4 * processes}), ("all", processes, {**ignored, **layout})):
        accel("launch", train_runs.config(tmp_path, ranks, max_steps=4, output_dir=str(tmp_path / name),
                                          checkpoint={"every": 4, "resume": "none"}, **options))
        last = tmp_path / name / "checkpoints/checkpoint_4"
        accel("verify", last)
        found[name] = {kind: read_with_dcp(last / kind) for kind in KINDS}
    for kind in KINDS:
        ours, alone = found["all"][kind], found["alone"][kind]
        assert ours.keys() == alone.keys()
        for key, value in alone.items():
            assert torch.allclose(ours[key], value, atol=2e-5, rtol=1e-3), key
        metadata = dcp.FileSystemReader(str(last / kind)).read_metadata().state_dict_metadata
        pieces = {key: len(entry.chunks) for key, entry in metadata.items() if hasattr(entry, "chunks")}
        whole = [key for key in pieces if any(part in key for part in ("tokens.", "blocks.0.attention.", "blocks.1.norm2."))]
        assert len(whole) >= 7
        assert all(pieces[key] == 1 for key in whole)
        assert max(pieces.values()) > 1
        accel("save", last / kind, tmp_path / f"{kind}_full", "--type", "full")
        accel("diff", last / kind, next((tmp_path / f"{kind}_full").glob("*.bin")))


def test_accelerate_merges_ours_to_the_same_tensors(accel, tmp_path):
    from accelerate.utils import merge_fsdp_weights
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, 2, max_steps=2, checkpoint={"every": 2, "resume": "none"}))
    last = tmp_path / "out/checkpoints/checkpoint_2"
    merge_fsdp_weights(str(last / "pytorch_model_fsdp_0"), str(tmp_path / "theirs"), safe_serialization=True)
    accel("merge-weights", last, tmp_path / "ours")
    theirs, ours = load_file(tmp_path / "theirs/model.safetensors"), load_file(tmp_path / "ours/model.safetensors")
    # Each merge keeps one of the two tied tensors, not necessarily the same one.
    tied = {"head.weight", "tokens.weight"}
    assert theirs.keys() - tied == ours.keys() - tied and theirs.keys() & tied and ours.keys() & tied
    for name in ours.keys() - tied:
        assert torch.equal(ours[name], theirs[name]), name
    assert torch.equal(ours[(ours.keys() & tied).pop()], theirs[(theirs.keys() & tied).pop()])


@pytest.mark.long(but="2 ranks")
@pytest.mark.parametrize("processes, batch, layout", [(2, 4, {}), (4, 2, HYBRID)], ids=["2 ranks", "2 x 2"])
def test_python_goes_on_training_from_our_checkpoint(accel, peer, tmp_path, processes, batch, layout):
    """fully_shard on two ranks loads the model and optimizer of step 10 and has accel's losses in steps 11 to 20,
    whatever the world size of the checkpoint."""
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", train_runs.config(tmp_path, processes, checkpoint={"every": 10, "resume": "none"},
                                      **{"data.batch_size": batch}, **layout))
    ours = train_runs.metrics(tmp_path)
    spec = {
        "model": train_runs.SIZES, "path": str(tmp_path / "gpt.pt"), "data": str(train_runs.TEXT), "batch_size": 4,
        "accumulate": 1, "lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "no_decay": ["bias", "norm"],
        "warmup_steps": 4, "min_lr_ratio": 0.1, "max_steps": 20, "max_grad_norm": 1.0, "out": str(tmp_path / "out.json"),
        "load": str(tmp_path / "out/checkpoints/checkpoint_10"), "start": 10,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    peer(2, "fsdp_reference.py", tmp_path / "spec.json")
    theirs = json.loads((tmp_path / "out.json").read_text())["loss"]
    assert len(theirs) == 10
    assert max(abs(a - b) for a, b in zip(ours[10:], theirs)) < 2e-5


@pytest.mark.long(but="2 x 2")
@pytest.mark.parametrize("layout", [HYBRID, REPLICATED], ids=["2 x 2", "4 x 1"])
def test_replicas_write_each_byte_once_and_each_its_part(accel, tmp_path, layout):
    """Replicas write as many bytes as fully sharded ranks, spread as evenly."""
    train_runs.export(tmp_path / "gpt.pt")
    sizes = {}
    for name, options in (("sharded", {}), ("replicas", layout)):
        accel("launch", train_runs.config(tmp_path, 4, max_steps=1, output_dir=str(tmp_path / name),
                                          checkpoint={"every": 1, "resume": "none"}, **options))
        files = (tmp_path / name / "checkpoints/checkpoint_1").glob("*_0/__*_0.distcp")
        sizes[name] = {str(file.relative_to(tmp_path / name)): file.stat().st_size for file in files}
        accel("verify", tmp_path / name / "checkpoints/checkpoint_1")
    ours, theirs = sorted(sizes["replicas"].values()), sorted(sizes["sharded"].values())
    assert len(ours) == len(theirs) == 8
    assert sum(ours) < 1.1 * sum(theirs)  # Each piece has a header, and fewer units have fewer pieces.
    assert max(ours) < 1.2 * max(theirs)
