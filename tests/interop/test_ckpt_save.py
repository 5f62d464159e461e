"""`accel save` converts every form of a checkpoint to every other; torch and Accelerate load the same bits."""

import collections
import json
import types
import zipfile

import accelerate
import ckpt_peers
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckpt_peers import assert_same, expected_state
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import _load_state_dict

KINDS = ["rows", "columns", "replicated", "net_bf16"]


def load_dcp(directory):
    """Returns the nested state dict of a DCP directory, as torch rebuilds it."""
    state = {}
    _load_state_dict(
        state, storage_reader=dcp.FileSystemReader(directory), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    return state


def load_local(directory, ranks):
    """Returns the tensors of a local checkpoint, assembled as its `.json` files say."""
    whole = {}
    for rank in range(ranks):
        stem = directory / f"pytorch_model_fsdp_rank{rank}"
        about = json.loads(stem.with_suffix(".json").read_text())
        assert (about["version"], about["rank"], about["world_size"]) == (1, rank, ranks)
        part = torch.load(stem.with_suffix(".bin"), weights_only=True)
        assert list(part) == list(about["tensors"])
        for name, entry in about["tensors"].items():
            assert part[name].dtype == getattr(torch, entry["dtype"]) and part[name].dim() == 1
            shape, flat = whole.setdefault(name, (entry["shape"], []))
            assert entry["begin"] == sum(map(len, flat)) and entry["end"] - entry["begin"] == len(part[name])
            flat.append(part[name])
    # torch.cat does not support every dtype, so this concatenates bytes.
    return {
        name: torch.cat([f.view(torch.uint8) for f in flat]).view(flat[0].dtype).reshape(shape)
        for name, (shape, flat) in whole.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_full(accel, torch_checkpoints, tmp_path, kind):
    accel("save", torch_checkpoints / kind / "pytorch_model_fsdp_0", tmp_path / "out", "--type", "full")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["pytorch_model_fsdp.bin"]
    path = tmp_path / "out/pytorch_model_fsdp.bin"
    for mmap in (False, True):
        found = torch.load(path, weights_only=True, mmap=mmap)
        assert_same(found, expected_state(kind))
        if kind != "replicated":  # Each rank writes some of its tensors, so their order is not the model's.
            assert list(found) == list(expected_state(kind))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_sharded(accel, torch_checkpoints, tmp_path, kind, ranks):
    accel("save", torch_checkpoints / kind / "pytorch_model_fsdp_0", tmp_path / "out", "--type", "sharded", "--ranks", ranks)
    directory = tmp_path / "out/pytorch_model_fsdp_0"
    expected = expected_state(kind)
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in expected.items()}}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    assert_same(state["model"], expected)
    rebuilt = load_dcp(directory)
    assert list(rebuilt) == ["model"]
    assert_same(rebuilt["model"], expected)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_local(accel, torch_checkpoints, tmp_path, kind, ranks):
    accel("save", torch_checkpoints / kind / "pytorch_model_fsdp_0", tmp_path / "out", "--type", "local", "--ranks", ranks)
    assert_same(load_local(tmp_path / "out", ranks), expected_state(kind))


def test_round_trips_through_all_forms(accel, torch_checkpoints, tmp_path):
    source = torch_checkpoints / "replicated/pytorch_model_fsdp_0"
    for step, (form, ranks) in enumerate([("local", 3), ("sharded", 2), ("full", 1), ("sharded", 5), ("local", 2), ("full", 1)]):
        out = tmp_path / str(step)
        accel("save", source, out, "--type", form, *(() if form == "full" else ("--ranks", ranks)))
        source = out
    assert_same(torch.load(source / "pytorch_model_fsdp.bin", weights_only=True), expected_state("replicated"))


def test_safetensors_and_torchscript_as_sources(accel, tmp_path):
    model = ckpt_peers.net()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "m.safetensors")
    torch.jit.script(model).save(tmp_path / "m.pt")
    for name in ("m.safetensors", "m.pt"):
        out = tmp_path / f"of_{name}.bin"
        accel("save", tmp_path / name, out, "--type", "full")
        assert_same(torch.load(out, weights_only=True), model.state_dict())


def test_shared_storage_stays_shared_and_equal_tensors_do_not_become_one(accel, tmp_path):
    shared = torch.randn(4, 6)
    state = {"a": shared, "b": shared, "c": shared.clone(), "t": shared.t()}
    torch.save(state, tmp_path / "m.bin")
    accel("save", tmp_path / "m.bin", tmp_path / "out.bin", "--type", "full")
    found = torch.load(tmp_path / "out.bin", weights_only=True)
    assert_same(found, state)
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert found["a"].data_ptr() != found["c"].data_ptr()


def test_dtype(accel, torch_checkpoints, tmp_path):
    accel("save", torch_checkpoints / "net", tmp_path / "m.bin", "--type", "full", "--dtype", "bf16")
    expected = {n: t.bfloat16() if t.is_floating_point() else t for n, t in expected_state("net").items()}
    assert_same(torch.load(tmp_path / "m.bin", weights_only=True), expected)


def test_optimizer(accel, torch_checkpoints, tmp_path):
    source = torch_checkpoints / "net/optimizer_0"
    expected = load_dcp(source)["optimizer"]
    accel("save", source, tmp_path, "--type", "full")
    full = torch.load(tmp_path / "optimizer.bin", weights_only=True)
    accel("save", tmp_path / "optimizer.bin", tmp_path, "--type", "sharded", "--ranks", 3)
    sharded = load_dcp(tmp_path / "optimizer_0")["optimizer"]
    for found in (full, sharded):
        assert found["param_groups"] == expected["param_groups"]
        assert sorted(found["state"]) == sorted(expected["state"])
        for name, state in expected["state"].items():
            assert_same(found["state"][name], state)


def plugin_of(kind):
    """Returns the attributes of Accelerate's plugin that its functions read."""
    from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType

    return types.SimpleNamespace(
        state_dict_type=getattr(StateDictType, kind), fsdp_version=2, cpu_ram_efficient_loading=False,
        state_dict_config=types.SimpleNamespace(offload_to_cpu=False, rank0_only=False),
        optim_state_dict_config=types.SimpleNamespace(offload_to_cpu=False, rank0_only=False),
    )  # fmt: skip


@pytest.fixture
def one_rank(tmp_path):
    accelerate.PartialState(cpu=True)  # Accelerate's functions log through it.
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield types.SimpleNamespace(
        num_processes=1, process_index=0, is_fsdp2=True, is_main_process=True, wait_for_everyone=lambda: None
    )
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("form", ["full", "sharded"])
def test_accelerate_loads_model_and_optimizer(accel, torch_checkpoints, tmp_path, one_rank, form):
    from accelerate.utils.fsdp_utils import load_fsdp_model, load_fsdp_optimizer
    from torch.distributed.fsdp import fully_shard

    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        accel("save", torch_checkpoints / "net" / name, tmp_path / "out", "--type", form)
    plugin = plugin_of("FULL_STATE_DICT" if form == "full" else "SHARDED_STATE_DICT")
    model = ckpt_peers.net()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    load_fsdp_model(plugin, one_rank, model, tmp_path / "out")
    load_fsdp_optimizer(plugin, one_rank, optimizer, model, tmp_path / "out")
    whole = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in model.state_dict().items()}
    assert_same(whole, expected_state("net"))
    expected = load_dcp(torch_checkpoints / "net/optimizer_0")["optimizer"]
    assert optimizer.param_groups[0]["lr"] == expected["param_groups"][0]["lr"] == 0.25
    states = dict(zip((n for n, _ in model.named_parameters()), optimizer.state.values(), strict=True))
    for name, state in expected["state"].items():
        found = {k: t.full_tensor() if hasattr(t, "full_tensor") else t for k, t in states[name].items()}
        assert_same(found, state)


def test_objects_that_weights_only_refuses_are_named(accel, tmp_path):
    state = {"w": torch.ones(2), "counts": collections.Counter("ab"), "when": frozenset([1]), "lr": 0.5}
    torch.save(state, tmp_path / "m.bin")
    result = accel("save", tmp_path / "m.bin", tmp_path / "out.bin", "--type", "full", code=1)
    assert "'when' has frozenset" in result.stderr and "--tensors-only" in result.stderr
    accel("save", tmp_path / "m.bin", tmp_path / "out.bin", "--type", "full", "--tensors-only")
    assert_same(torch.load(tmp_path / "out.bin", weights_only=True), {"w": torch.ones(2)})


def test_existing_output_is_refused_and_replaced(accel, torch_checkpoints, tmp_path):
    source = torch_checkpoints / "rows"
    arguments = ("save", source, tmp_path / "out", "--type", "sharded", "--ranks")
    accel(*arguments, 4)
    assert "already there" in accel(*arguments, 2, code=1).stderr
    accel(*arguments, 2, "--force")
    directory = tmp_path / "out/pytorch_model_fsdp_0"
    assert sorted(p.name for p in directory.iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert_same(load_dcp(directory)["model"], expected_state("rows"))


def test_json_and_dry_run(accel, torch_checkpoints, tmp_path):
    arguments = ("save", torch_checkpoints / "net", tmp_path / "out", "--type", "local", "--ranks", 2)
    plan = json.loads(accel(*arguments, "--dry-run", "--json", "--quiet").stdout)
    assert not (tmp_path / "out").exists()
    result = json.loads(accel(*arguments, "--json", "--quiet").stdout)
    assert plan["files"] == result["files"]
    assert result["kind"] == "model" and result["tensors"] == len(expected_state("net"))
    assert {f["name"]: f["bytes"] for f in result["files"]} == {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()}


def test_a_string_that_torch_would_not_read_is_refused(accel, tmp_path):
    torch.save({"a": torch.ones(2), "name": "qqqq", "odd": "q\ud800q"}, tmp_path / "good.bin")
    with zipfile.ZipFile(tmp_path / "good.bin") as good, zipfile.ZipFile(tmp_path / "bad.bin", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name).replace(b"qqqq", b"q\xff\xfeq"))
    with pytest.raises(UnicodeDecodeError):
        torch.load(tmp_path / "bad.bin", weights_only=True)
    for kind in ("full", "sharded"):
        error = accel("save", tmp_path / "bad.bin", tmp_path / kind, "--type", kind, code=1).stderr
        assert "'name': a string has byte ff at 1, where it is not UTF-8" in error and "--tensors-only" in error
        assert not (tmp_path / kind).exists()
    accel("save", tmp_path / "bad.bin", tmp_path / "tensors", "--type", "full", "--tensors-only")
    accel("save", tmp_path / "good.bin", tmp_path / "full", "--type", "full")
    state = torch.load(tmp_path / "full/pytorch_model_fsdp.bin", weights_only=True)
    assert (state["name"], state["odd"]) == ("qqqq", "q\ud800q")


@pytest.mark.parametrize("command", ["save", "merge-weights", "load", "diff"])
def test_pieces_that_overlap_are_refused_also_where_their_elements_add_up(accel, tmp_path, command):
    """Element 1 is there twice and element 3 is missing, as where a save of other ranks has ended halfway over an older one."""
    (tmp_path / "pieces").mkdir()
    for number, begin in enumerate([0, 1, 4], 1):
        info = json.dumps({"weight": {"saved_offsets": [begin]}})
        safetensors.torch.save_file({"weight": torch.ones(2)}, tmp_path / f"pieces/shard-{number:05}-model-00001-of-00001.safetensors",
                                    metadata={"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0"})
    module = torch.nn.LayerNorm(6, bias=False)
    torch.jit.script(module).save(str(tmp_path / "model.pt"))
    safetensors.torch.save_file(module.state_dict(), tmp_path / "whole.safetensors")
    pieces, out = tmp_path / "pieces", tmp_path / "out"
    arguments = {"save": [pieces, out, "--type", "full"], "merge-weights": [pieces, out], "diff": [pieces, tmp_path / "whole.safetensors"],
                 "load": [pieces, "--into", tmp_path / "model.pt", "--out", out]}
    said = accel(command, *arguments[command], code=5).stderr
    assert "'weight'" in said and "[0:2] and [1:3] overlap" in said, said
    assert not out.exists()
