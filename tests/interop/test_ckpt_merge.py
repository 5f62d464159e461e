"""`accel merge-weights` on checkpoints of torch agrees with safetensors and with Accelerate's own merge."""

import dataclasses
import json
import os
import pickle
import shutil
import zlib

import ckpt_peers
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckpt_peers import assert_same, expected_state

FLOAT8 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip



@pytest.mark.parametrize("kind", ckpt_peers.KINDS)
def test_merged_file_holds_the_state_dict_bit_for_bit(accel, torch_checkpoints, tmp_path, kind):
    accel("merge-weights", torch_checkpoints / kind / "pytorch_model_fsdp_0", tmp_path / "out")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected_state(kind))


@pytest.mark.parametrize("kind", ckpt_peers.KINDS)
def test_merged_file_is_what_the_official_writer_gives(accel, torch_checkpoints, tmp_path, kind):
    accel("merge-weights", torch_checkpoints / kind, tmp_path / "merged.safetensors")
    state = {name: tensor.contiguous() for name, tensor in expected_state(kind).items()}
    official = safetensors.torch.save(state, metadata={"format": "pt"})
    assert (tmp_path / "merged.safetensors").read_bytes() == official


@pytest.mark.parametrize("kind", ["rows", "columns", "large", "tied", "net", "net_bf16"])
def test_same_as_accelerate(accel, torch_checkpoints, tmp_path, kind):
    from accelerate.utils import merge_fsdp_weights

    source = torch_checkpoints / kind / "pytorch_model_fsdp_0"
    merge_fsdp_weights(str(source), str(tmp_path / "theirs"))
    accel("merge-weights", source, tmp_path / "ours")
    ours, theirs = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert_same(ours, theirs)


def test_drop_equal_keeps_equal_tensors_once_and_records_them(accel, torch_checkpoints, tmp_path):
    accel("merge-weights", torch_checkpoints / "tied", tmp_path / "out", "--drop-equal")
    path = tmp_path / "out/model.safetensors"
    expected = expected_state("tied")
    del expected["lm_head.weight"]  # The norms and the copied layers are equal, but not tied.
    assert_same(safetensors.torch.load_file(path), expected)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "lm_head.weight": "wte.weight"}
    assert "--keep-tied writes every tensor" in accel(
        "merge-weights", torch_checkpoints / "tied", tmp_path / "no", "--drop-equal", "--keep-tied", code=2).stderr


def test_json_result_and_existing_output(accel, torch_checkpoints, tmp_path):
    arguments = ("merge-weights", torch_checkpoints / "rows", tmp_path / "deep/er", "--json", "--quiet")
    result = json.loads(accel(*arguments).stdout)
    path = tmp_path / "deep/er/model.safetensors"
    assert result["path"] == str(path)
    assert result["bytes"] == path.stat().st_size
    assert result["tensors"] == len(expected_state("rows"))
    before = path.read_bytes()
    assert "already there" in accel(*arguments, code=1).stderr
    accel(*arguments, "--force")
    assert path.read_bytes() == before


def test_dry_run_writes_nothing(accel, torch_checkpoints, tmp_path):
    result = accel("merge-weights", torch_checkpoints / "columns", tmp_path / "out", "--dry-run")
    assert "[0:6, 20:40] from __1_0.distcp" in result.stdout
    assert not (tmp_path / "out").exists()


def test_several_checkpoints_are_named(accel, torch_checkpoints, tmp_path):
    result = accel("merge-weights", torch_checkpoints, tmp_path / "out", code=2)
    assert "columns/pytorch_model_fsdp_0" in result.stderr and "rows/pytorch_model_fsdp_0" in result.stderr


def test_an_optimizer_becomes_tensors_and_json(accel, torch_checkpoints, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

    source = torch_checkpoints / "net/optimizer_0"
    accel("merge-weights", source, tmp_path / "out")
    expected = {}
    reader = dcp.FileSystemReader(source)
    dcp.state_dict_loader._load_state_dict(expected, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    state = expected["optimizer"]["state"]
    tensors = {f"state.{fqn}.{key}": value for fqn, values in state.items() for key, value in values.items()}
    assert_same(safetensors.torch.load_file(tmp_path / "out/optimizer.safetensors"), tensors)
    document = json.loads((tmp_path / "out/optimizer.json").read_text())
    groups = json.loads(json.dumps(expected["optimizer"]["param_groups"]))
    assert document == {"param_groups": groups}


@pytest.mark.parametrize(("flag", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)])
@pytest.mark.parametrize("kind", ["rows", "columns", "net_bf16"])
def test_dtype_converts_as_torch_does(accel, torch_checkpoints, tmp_path, kind, flag, dtype):
    accel("merge-weights", torch_checkpoints / kind, tmp_path / "out", "--dtype", flag, "--verify")
    expected = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in expected_state(kind).items()
    }
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected)


def test_every_float_becomes_float32_as_torch_does(accel, tmp_path):
    """The test converts all values of the 8-bit and 16-bit types, and float64 values that round or overflow."""
    eight = torch.arange(256, dtype=torch.uint8)
    sixteen = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    state = {str(dtype): eight.clone().view(dtype) for dtype in FLOAT8} | {
        "half": sixteen.clone().view(torch.float16),
        "bfloat": sixteen.view(torch.bfloat16),
        "double": torch.tensor([1 + 2**-24, 1 + 3 * 2**-24, 1e-46, 1e300, -1e300, 0.1], dtype=torch.float64),
    }
    safetensors.torch.save_file(state, tmp_path / "all.safetensors")
    for flag, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        accel("merge-weights", tmp_path / "all.safetensors", tmp_path / flag, "--dtype", flag)
        found = safetensors.torch.load_file(tmp_path / flag / "model.safetensors")
        for name, tensor in state.items():
            expected = tensor.to(dtype)
            assert torch.equal(found[name].isnan(), expected.isnan()), name
            numbers = ~expected.isnan()
            assert torch.equal(found[name][numbers].view(torch.uint8), expected[numbers].view(torch.uint8)), name


def test_rename_include_exclude(accel, torch_checkpoints, tmp_path):
    merge = ("merge-weights", torch_checkpoints / "net")
    accel(*merge, tmp_path / "a", "--include", "blocks.*", "--exclude", "*.bias", "--rename", "blocks.=layers.")
    expected = {f"layers.{i}.weight": expected_state("net")[f"blocks.{i}.weight"] for i in range(3)}
    assert_same(safetensors.torch.load_file(tmp_path / "a/model.safetensors"), expected)
    assert "'nothing.*' matches no tensor" in accel(*merge, tmp_path / "b", "--include", "nothing.*", code=2).stderr
    assert "is not FROM=TO" in accel(*merge, tmp_path / "b", "--rename", "x", code=2).stderr
    both = accel(*merge, tmp_path / "b", "--rename", "blocks.0.=x.", "--rename", "blocks.1.=x.", code=2)
    assert "would both be called 'x.weight'" in both.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("kind", ["tied", "net", "replicated"])
def test_unsafe_serialization(accel, torch_checkpoints, tmp_path, kind):
    accel("merge-weights", torch_checkpoints / kind, tmp_path / "out", "--unsafe_serialization", "--verify", "--drop-equal")
    found = torch.load(tmp_path / "out/pytorch_model.bin", weights_only=True)
    assert_same(found, expected_state(kind))
    if kind == "tied":
        assert found["lm_head.weight"].data_ptr() == found["wte.weight"].data_ptr()


def test_remove_checkpoint_dir(accel, torch_checkpoints, tmp_path):
    parent = shutil.copytree(torch_checkpoints / "net", tmp_path / "net")
    inside = accel("merge-weights", parent, parent / "pytorch_model_fsdp_0/out", "--remove_checkpoint_dir", code=2)
    assert "lie one within the other" in inside.stderr
    result = json.loads(accel("merge-weights", parent, tmp_path / "out", "--remove_checkpoint_dir", "--json").stdout)
    assert result["verified"] and result["removed"]
    assert [path.name for path in parent.iterdir()] == ["optimizer_0"]
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected_state("net"))


@pytest.mark.parametrize("flags, reason", [
    (["--include", "*"], "--include or --exclude selects only a part of it"),
    (["--exclude", "half"], "--include or --exclude selects only a part of it"),
    (["--root", "model"], "--root selects only a part of it"),
    (["--dtype", "bf16"], "with --dtype the output does not have all its bits"),
], ids=["include", "exclude", "root", "dtype"])
def test_what_is_not_merged_whole_is_not_removed(accel, torch_checkpoints, tmp_path, flags, reason):
    shutil.copytree(torch_checkpoints / "rows/pytorch_model_fsdp_0", tmp_path / "ckpt")
    command = ("merge-weights", tmp_path / "ckpt", tmp_path / "out", "--remove-checkpoint-dir")
    assert reason in accel(*command, *flags, code=2).stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "ckpt/mine").mkdir()
    assert "'mine' in it is not part of the checkpoint" in accel(*command, code=2).stderr
    (tmp_path / "ckpt/mine").rmdir()
    (tmp_path / "link").symlink_to(tmp_path / "ckpt")
    assert "is a link" in accel("merge-weights", tmp_path / "link", *command[2:], code=2).stderr
    accel("verify", tmp_path / "ckpt")
    accel(*command)
    assert not (tmp_path / "ckpt").exists()


def test_the_optimizer_is_never_merged_for_a_model_that_is_gone(accel, torch_checkpoints, tmp_path):
    parent = shutil.copytree(torch_checkpoints / "net", tmp_path / "net")
    command = ("merge-weights", "--remove-checkpoint-dir", parent, tmp_path / "out")
    accel(*command)
    again = accel(*command, code=4).stderr
    assert "holds no checkpoint of a model, but an optimizer's" in again and "optimizer_0" in again
    assert (parent / "optimizer_0/.metadata").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    accel("merge-weights", parent / "optimizer_0", tmp_path / "state")
    assert (tmp_path / "state/optimizer.safetensors").exists()


@pytest.mark.parametrize("damage", ["no metadata", "empty", "unfinished"])
@pytest.mark.parametrize("command", ["merge-weights", "save", "inspect", "diff", "load"])
def test_what_is_damaged_is_named_and_nothing_else_is_taken(accel, torch_checkpoints, tmp_path, damage, command):
    run = tmp_path / "run"
    for number in (4, 5):
        shutil.copytree(torch_checkpoints / "net", run / f"checkpoint_{number}")
    model = run / "checkpoint_5/pytorch_model_fsdp_0"
    if damage == "unfinished":
        (run / "checkpoint_5").rename(run / "checkpoint_5.incomplete")
        model = run / "checkpoint_5.incomplete"
    else:
        for path in model.iterdir():
            if damage == "empty" or path.name == ".metadata":
                path.unlink()
    out = tmp_path / "out"
    torch.jit.script(torch.nn.Linear(1, 1)).save(tmp_path / "model.pt")
    arguments = {
        "merge-weights": (run, out),
        "save": (run, out, "--type", "full"),
        "inspect": (run,),
        "diff": (run, torch_checkpoints / "net"),
        "load": (run, "--into", tmp_path / "model.pt", "--out", out),
    }
    error = accel(command, *arguments[command], code=4).stderr
    assert f"'{model}' " in error
    assert not out.exists()
    if command == "merge-weights":
        # The error also names the checkpoint that could be merged instead.
        assert str(run / "checkpoint_4/pytorch_model_fsdp_0") in error
        accel(command, run / "checkpoint_4", out)


def test_a_set_of_shards_that_is_not_whole_is_no_model(accel, torch_checkpoints, tmp_path):
    parts = tmp_path / "parts"
    accel("merge-weights", torch_checkpoints / "net", parts, "--max-shard-size", "300")
    for path in sorted(parts.iterdir())[1:]:
        path.unlink()
    assert "model-00002-of-" in accel("merge-weights", parts, tmp_path / "out", code=4).stderr
    assert "model-00002-of-" in accel("verify", parts, code=3).stdout
    assert not (tmp_path / "out").exists()


def test_choosing_is_said(accel, torch_checkpoints, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(torch_checkpoints / "net", run / "checkpoints/checkpoint_1")
    below = run / "checkpoints/checkpoint_1/pytorch_model_fsdp_0"
    accel("merge-weights", run, run)
    again = accel("merge-weights", run, tmp_path / "out").stderr
    assert f"merging '{run / 'model.safetensors'}'" in again
    assert f"'{below}' is not taken" in again


def write_manifest(directory):
    """Writes accel_manifest.json above a sharded checkpoint, as training does."""
    files = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        files.append({"name": f"{directory.name}/{path.name}", "bytes": len(data), "crc32": zlib.crc32(data)})
    tensors = {
        fqn: {"dtype": str(tensor.properties.dtype).removeprefix("torch."), "shape": list(tensor.size)}
        for fqn, tensor in dcp.FileSystemReader(directory).read_metadata().state_dict_metadata.items()
    }
    manifest = {"version": 1, "step": 1, "world_size": 2, "files": files, "tensors": tensors}
    (directory.parent / "accel_manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("flag", ["--remove-checkpoint-dir", "--verify"])
def test_a_damaged_source_is_never_said_to_be_verified(accel, torch_checkpoints, tmp_path, flag):
    source = shutil.copytree(torch_checkpoints / "large/pytorch_model_fsdp_0", tmp_path / "ckpt")
    shard = source / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    times = os.stat(shard)
    shard.write_bytes(data)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    result = accel("merge-weights", source, tmp_path / "out", flag, code=5)
    assert "checksum: __0_0.distcp" in result.stderr and "verified" not in result.stdout
    assert (source / ".metadata").exists() and not (tmp_path / "out").exists()
    unchecked = accel("merge-weights", source, tmp_path / "out")
    assert f"the checksums of '{source}' are not checked" in unchecked.stderr
    assert not json.loads(accel("merge-weights", source, tmp_path / "json", "--json").stdout)["verified"]


@pytest.mark.parametrize("type, shard", [("sharded", "pytorch_model_fsdp_0/__1_0.distcp"), ("full", "pytorch_model_fsdp.bin")])
def test_what_another_save_wrote_is_not_removed(accel, tmp_path, type, shard):
    """The replaced shard is sound by itself. Only the manifest above shows that it is not the file that was saved."""
    for name, value in (("first", 1.0), ("second", 2.0)):
        safetensors.torch.save_file({"a": torch.full((40, 30), value)}, tmp_path / f"{name}.safetensors")
        ranks = ("--ranks", 2) if type == "sharded" else ()
        accel("save", tmp_path / f"{name}.safetensors", tmp_path / name, "--type", type, *ranks)
    path = tmp_path / "first" / shard
    source = path if type == "full" else path.parent
    if type == "full":
        data = path.read_bytes()
        files = [{"name": path.name, "bytes": len(data), "crc32": zlib.crc32(data)}]
        manifest = {"version": 1, "files": files, "tensors": {}}
        (path.parent / "accel_manifest.json").write_text(json.dumps(manifest))
    else:
        write_manifest(source)
    accel("merge-weights", source, tmp_path / "sound", "--verify")
    shutil.copy2(tmp_path / "second" / shard, path)
    accel("verify", source, code=3)
    flag = "--verify" if type == "full" else "--remove-checkpoint-dir"
    error = accel("merge-weights", source, tmp_path / "out", flag, code=5).stderr
    assert "is not the file that was saved" in error
    assert path.exists() and not (tmp_path / "out").exists()
    if type == "full":
        return
    # The manifest also applies through a link and after the directory is renamed.
    (tmp_path / "link").symlink_to(source)
    assert "is not the file that was saved" in accel("verify", tmp_path / "link", code=3).stdout
    accel("repair", "--force", tmp_path / "link", code=5)
    renamed = source.rename(source.with_name("renamed"))
    assert "lists no file of 'renamed'" in accel("verify", renamed, code=3).stdout
    accel("merge-weights", renamed, tmp_path / "out", "--remove-checkpoint-dir", code=5)
    assert (renamed / ".metadata").exists() and not (tmp_path / "out").exists()


def test_only_sharded_checkpoints_are_removed(accel, torch_checkpoints, tmp_path):
    """A merge of any other source keeps only its tensors or reads one of several files, so the source must stay."""
    net = torch.nn.Linear(4, 3)
    torch.jit.script(net).save(str(tmp_path / "script.pt"))
    torch.save(net, tmp_path / "module.pt")
    safetensors.torch.save_file(dict(net.state_dict()), tmp_path / "a.safetensors", {"license": "mine"})
    for number in (1, 2):
        safetensors.torch.save_file({f"w{number}": torch.ones(2)}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    accel("save", torch_checkpoints / "net", tmp_path / "local", "--type", "local", "--ranks", 2, "--tensors-only")
    sharded = shutil.copytree(torch_checkpoints / "rows/pytorch_model_fsdp_0", tmp_path / "sharded")
    for name in ("my_notes.metadata", "__0.metadata"):
        (sharded / name).write_text("mine")
    before = sorted(path for path in tmp_path.rglob("*"))
    for name in ("script.pt", "module.pt", "a.safetensors", "model-00001-of-00002.safetensors", "local", "sharded"):
        assert "removed" in accel("merge-weights", tmp_path / name, tmp_path / "out", "--remove-checkpoint-dir", code=2).stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_what_lies_beside_a_checkpoint_is_a_warning(accel, tmp_path):
    source = tmp_path / "hf"
    source.mkdir()
    for number in (1, 2):
        safetensors.torch.save_file({f"w{number}": torch.ones(2)}, source / f"model-0000{number}-of-00002.safetensors")
    names = {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 7}, "weight_map": names}))
    safetensors.torch.save_file({"w1": torch.ones(2)}, source / "model-00001-of-00009.safetensors")
    (source / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    warned = accel("merge-weights", source, tmp_path / "out", "--verify").stderr
    for what in ("model-00001-of-00009.safetensors", "pytorch_model.bin", "they have 16"):
        assert what in warned
    accel("verify", source, code=3)
    data = bytearray((source / "model-00002-of-00002.safetensors").read_bytes())
    (source / "model-00002-of-00002.safetensors").write_bytes(data[:-4])
    accel("merge-weights", source, tmp_path / "again", "--verify", code=5)
    assert not (tmp_path / "again").exists()


def test_an_optimizer_beside_a_model_is_no_part_of_it(accel, tmp_path):
    for name, files in {"both": ["model-00001-of-00001", "optimizer"], "optimizers": ["optimizer", "optimizer_1"]}.items():
        (tmp_path / name).mkdir()
        for number, file in enumerate(files):
            safetensors.torch.save_file({f"{file}.{number}": torch.ones(2)}, tmp_path / name / f"{file}.safetensors")
    accel("merge-weights", tmp_path / "both", tmp_path / "out")
    assert list(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == ["model-00001-of-00001.0"]
    assert "but an optimizer's" in accel("merge-weights", tmp_path / "optimizers", tmp_path / "none", code=4).stderr
    assert not (tmp_path / "none").exists()


class Adding(dcp.DefaultSavePlanner):
    """Adds an entry for which planner_data has no path, which torch's readers allow."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        added = [dataclasses.replace(item, index=dataclasses.replace(item.index, fqn="added")) for item in plan.items[:1]]
        self.state_dict["added"] = self.state_dict[plan.items[0].index.fqn]
        return dataclasses.replace(plan, items=plan.items + added)


def test_entries_without_a_path_are_read(accel, tmp_path):
    dcp.save({"model": {"w": torch.arange(6.0)}}, storage_writer=dcp.FileSystemWriter(tmp_path / "ckpt"), planner=Adding())
    metadata = dcp.FileSystemReader(tmp_path / "ckpt").read_metadata()
    assert sorted(metadata.state_dict_metadata) == ["added", "model.w"] and list(metadata.planner_data) == ["model.w"]
    assert "added" in accel("inspect", tmp_path / "ckpt").stdout
    # If planner_data has a path for a name that is not an entry, the metadata is damaged.
    path = tmp_path / "ckpt/.metadata"
    broken = pickle.loads(path.read_bytes())
    broken.planner_data = {"model.v": broken.planner_data["model.w"]}
    path.write_bytes(pickle.dumps(broken))
    assert "planner_data has no path for it" in accel("inspect", tmp_path / "ckpt", code=5).stderr


def test_rank_files_are_not_removed_in_part(accel, torch_checkpoints, tmp_path):
    accel("save", torch_checkpoints / "net", tmp_path / "local", "--type", "local", "--ranks", 2, "--tensors-only")
    before = sorted(tmp_path.glob("local/*"))
    accel("merge-weights", tmp_path / "local", tmp_path / "out", "--remove-checkpoint-dir", code=2)
    assert sorted(tmp_path.glob("local/*")) == before


@pytest.mark.parametrize("command", ["merge-weights", "save"])
def test_nothing_replaces_what_it_is_made_from(accel, tmp_path, command):
    safetensors.torch.save_file({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, tmp_path / "m.safetensors")
    accel("save", tmp_path / "m.safetensors", tmp_path / "ckpt", "--type", "sharded")
    source = tmp_path / "ckpt/pytorch_model_fsdp_0"
    arguments = {
        "merge-weights": (tmp_path / "m.safetensors", tmp_path / "m.safetensors", "--dtype", "bf16"),
        "save": (source, tmp_path / "ckpt", "--type", "sharded", "--dtype", "bf16"),
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    error = accel(command, *arguments[command], "--force", code=2).stderr
    assert "would be replaced, but the output is made from it" in error
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_keys_that_are_no_strings_have_dcps_names(accel, tmp_path):
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    state = {("a", 1): torch.ones(2), "b": {("it's", None, True): torch.zeros(3), 7: torch.ones(1), 1.5: torch.ones(1), 1e16: torch.ones(1)}}
    torch.save(state, tmp_path / "state.bin")
    accel("merge-weights", tmp_path / "state.bin", tmp_path / "out")
    expected, _ = flatten_state_dict(state)
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected)


def test_a_tensor_called_metadata_is_refused(accel, tmp_path):
    state = {"__metadata__": torch.ones(2), "b": torch.zeros(3)}
    torch.save(state, tmp_path / "state.bin")
    error = accel("merge-weights", tmp_path / "state.bin", tmp_path / "out", code=1).stderr
    assert "is the name of the metadata" in error and not (tmp_path / "out").exists()
    accel("merge-weights", tmp_path / "state.bin", tmp_path / "out", "--rename", "__metadata__=data")
    assert set(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == {"data", "b"}


def test_missing_and_broken_checkpoints(accel, torch_checkpoints, tmp_path):
    accel("merge-weights", tmp_path / "nothing", tmp_path / "out", code=4)
    broken = shutil.copytree(torch_checkpoints / "rows/pytorch_model_fsdp_0", tmp_path / "broken")
    file = broken / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:2000])
    assert "__1_0.distcp" in accel("merge-weights", broken, tmp_path / "out", code=5).stderr
    file.unlink()
    accel("merge-weights", broken, tmp_path / "out", code=4)
    (broken / ".metadata").unlink()
    assert "did not finish" in accel("merge-weights", broken, tmp_path / "out", code=4).stderr
    assert not (tmp_path / "out/model.safetensors").exists()
