"""`accel verify` accepts sound checkpoints of torch and accel, and finds every kind of damage."""

import io
import json
import os
import pickle
import re
import shutil
import subprocess

import ckpt_peers
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from zoo_kinds import BY_NAME, KINDS


@pytest.fixture
def verify(accel):
    """verify(PATH) returns the findings of all checkpoints there as (kind, file, tensor)."""

    def run(path, code=3):
        document = json.loads(accel("--json", "verify", path, code=code).stdout)
        findings = [finding for checkpoint in document["checkpoints"] for finding in checkpoint["findings"]]
        assert document["findings"] == len(findings)
        assert document["ok"] == (not findings) == (code == 0)
        return [(f["kind"], f.get("file", ""), f.get("tensor", "")) for f in findings]

    return run


@pytest.fixture
def copy_of(torch_checkpoints, tmp_path):
    def copy(kind, name="ckpt"):
        target = tmp_path / name
        shutil.copytree(torch_checkpoints / kind / "pytorch_model_fsdp_0", target)
        return target

    return copy


@pytest.fixture
def ours(accel_path, tmp_path):
    """A checkpoint that accel's own writer made on two ranks."""
    tool = accel_path.parents[2] / "tests/unit/ckpt/dcp-writer-tool"
    subprocess.run([tool, tmp_path / "ours", "2"], check=True)
    return tmp_path / "ours"


def place_of(directory, fqn, offset=(0, 0)):
    """Returns (file, offset, length) of a chunk in torch's metadata."""
    metadata = dcp.FileSystemReader(directory).read_metadata()
    for index, info in metadata.storage_data.items():
        if index.fqn == fqn and (index.offset is None or tuple(index.offset) == tuple(offset)):
            return directory / info.relative_path, info.offset, info.length
    raise KeyError(fqn)


def flip(path, at, bit=0x10):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    times = os.stat(path)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def change_metadata(directory, change):
    """Edits the metadata in Python, into what a defective writer could leave."""
    metadata = dcp.FileSystemReader(directory).read_metadata()
    change(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("kind", ckpt_peers.KINDS)
def test_torch_checkpoints_are_sound(verify, torch_checkpoints, kind):
    assert verify(torch_checkpoints / kind, code=0) == []


def test_our_checkpoint_is_sound(verify, ours):
    assert verify(ours, code=0) == []


def test_a_directory_of_checkpoints_is_verified_whole(accel, verify, torch_checkpoints, copy_of):
    document = json.loads(accel("--json", "verify", torch_checkpoints, "--threads", 1).stdout)
    names = [checkpoint["path"].removeprefix(f"{torch_checkpoints}/") for checkpoint in document["checkpoints"]]
    assert len(names) == len(ckpt_peers.KINDS) + 2  # Each of the two nets has an optimizer.
    assert names == sorted(names)


@pytest.mark.parametrize("fqn, threads", [("model.big", 1), ("model.big", 3), ("model.small", 2)])
def test_a_flipped_byte_of_data(accel, copy_of, fqn, threads):
    directory = copy_of("large")
    shape = (0, 0) if fqn == "model.big" else (0,)
    path, offset, length = place_of(directory, fqn, shape)
    data = path.read_bytes()[offset : offset + length]
    values = ckpt_peers.expected_state("large")[fqn.removeprefix("model.")].numpy().tobytes()
    at = offset + data.index(values[:8]) + 1
    flip(path, at)
    result = accel("verify", directory, "--threads", threads, code=3)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  ")]
    assert f"checksum: {path.name}, bytes " in line and f"'{fqn}': record 'archive/data/0' has CRC" in line
    assert torch.load(_slice(path, offset, length)) is not None, "torch does not notice"


def _slice(path, offset, length):
    return io.BytesIO(path.read_bytes()[offset : offset + length])


def test_a_file_from_another_save_of_the_same_shapes(verify, copy_of, tmp_path):
    """If the file has other tensors, its items do not fit the metadata. With the same shapes only its time differs."""
    directory = copy_of("rows")
    other = copy_of("columns", "other")
    shutil.copy2(other / "__1_0.distcp", directory / "__1_0.distcp")
    found = verify(directory)
    assert {file for _, file, _ in found} == {"__1_0.distcp"}
    assert {"broken", "mismatch", "truncated"} & {kind for kind, _, _ in found}


def test_data_newer_than_the_metadata(verify, copy_of):
    directory = copy_of("rows")
    metadata_time = os.stat(directory / ".metadata").st_mtime
    os.utime(directory / "__0_0.distcp", (metadata_time + 3600, metadata_time + 3600))
    found = verify(directory)
    # The later save wrote the first file and did not reach the second.
    assert found == [("times", "__0_0.distcp", ""), ("times", "__1_0.distcp", "")]
    os.utime(directory / "__0_0.distcp", (metadata_time + 30, metadata_time + 30))
    assert verify(directory, code=0) == []


def test_a_file_older_than_the_others(verify, copy_of):
    directory = copy_of("rows")
    old = os.stat(directory / ".metadata").st_mtime - 7200
    os.utime(directory / "__1_0.distcp", (old, old))
    assert verify(directory) == [("times", "__1_0.distcp", "")]


def test_a_chunk_missing_from_the_metadata(verify, copy_of):
    directory = copy_of("rows")
    change_metadata(directory, lambda m: m.state_dict_metadata["model.wide"].chunks.pop())
    assert verify(directory) == [("hole", ".metadata", "model.wide")]


def test_a_chunk_twice_in_the_metadata(verify, copy_of):
    directory = copy_of("rows")

    def change(metadata):
        chunks = metadata.state_dict_metadata["model.wide"].chunks
        chunks.append(chunks[0])

    change_metadata(directory, change)
    assert ("overlap", ".metadata", "model.wide") in verify(directory)


def test_another_dtype_in_the_metadata(verify, copy_of):
    directory = copy_of("rows")

    def change(metadata):
        metadata.state_dict_metadata["model.half"].properties.dtype = torch.float16

    change_metadata(directory, change)
    assert verify(directory) == [("mismatch", "__0_0.distcp", "model.half"), ("mismatch", "__1_0.distcp", "model.half")]


def test_a_chunk_of_the_meta_device(accel, verify, tmp_path):
    """Such an item describes a tensor and has none of its elements, so that it cannot be merged."""
    dcp.save({"w": torch.randn(64), "v": torch.randn(3)}, checkpoint_id=tmp_path / "c", no_dist=True)
    metadata = dcp.FileSystemReader(tmp_path / "c").read_metadata()
    info = next(info for index, info in metadata.storage_data.items() if index.fqn == "w")
    item = io.BytesIO()
    torch.save(torch.empty(64, device="meta"), item)
    path = tmp_path / "c" / info.relative_path
    info.offset, info.length = path.stat().st_size, len(item.getvalue())
    path.write_bytes(path.read_bytes() + item.getvalue())
    (tmp_path / "c/.metadata").write_bytes(pickle.dumps(metadata))
    accel("merge-weights", tmp_path / "c", tmp_path / "out", code=1)
    assert verify(tmp_path / "c") == [("hole", path.name, "w")]


def test_two_items_exchanged_in_the_metadata(verify, copy_of):
    directory = copy_of("rows")

    def change(metadata):
        first, second = list(metadata.storage_data)[:2]
        data = metadata.storage_data
        data[first], data[second] = data[second], data[first]

    change_metadata(directory, change)
    assert {kind for kind, _, _ in verify(directory)} == {"mismatch"}


@pytest.mark.parametrize("left", [0, 1, 5000])
def test_a_truncated_file(verify, copy_of, left):
    directory = copy_of("rows")
    times = os.stat(directory / "__1_0.distcp")
    os.truncate(directory / "__1_0.distcp", left)
    os.utime(directory / "__1_0.distcp", ns=(times.st_atime_ns, times.st_mtime_ns))
    found = verify(directory)
    assert {kind for kind, _, _ in found} == {"truncated"}
    metadata = dcp.FileSystemReader(directory).read_metadata()
    lost = {
        i.fqn for i, s in metadata.storage_data.items()
        if s.relative_path == "__1_0.distcp" and s.offset + s.length > left
    }  # fmt: skip
    assert {tensor for _, _, tensor in found} == lost - {"model.one_row"}  # Rank 1 has no elements of it.


def test_a_missing_file(verify, copy_of):
    directory = copy_of("rows")
    (directory / "__1_0.distcp").unlink()
    assert verify(directory) == [("missing-file", "__1_0.distcp", "")]


def test_no_metadata(verify, copy_of):
    directory = copy_of("rows")
    (directory / ".metadata").unlink()
    assert verify(directory) == [("missing-file", ".metadata", "")]


def test_a_stale_file_of_a_larger_world(verify, copy_of):
    directory = copy_of("rows")
    (directory / "__5_0.distcp").write_bytes(b"")
    assert verify(directory, code=0) == []  # A rank without items writes an empty file.
    shutil.copy2(directory / "__1_0.distcp", directory / "__5_0.distcp")
    assert verify(directory) == [("stale", "__5_0.distcp", "")]


def test_metadata_that_cannot_be_read(verify, copy_of):
    directory = copy_of("rows")
    (directory / ".metadata").write_bytes((directory / ".metadata").read_bytes()[:-10])
    assert verify(directory) == [("broken", ".metadata", "")]


def test_everything_at_once_is_listed(verify, copy_of):
    directory = copy_of("rows")
    change_metadata(directory, lambda m: m.state_dict_metadata["model.wide"].chunks.pop())
    path, offset, length = place_of(directory, "model.cube", (0, 0, 0))
    values = ckpt_peers.bits(ckpt_peers.expected_state("rows")["cube"])
    flip(path, path.read_bytes().index(values[:16], offset))
    (directory / "__7_0.distcp").write_bytes(b"x")
    other = "__1_0.distcp" if path.name == "__0_0.distcp" else "__0_0.distcp"
    (directory / other).unlink()
    kinds = sorted(kind for kind, _, _ in verify(directory))
    assert kinds == ["checksum", "hole", "missing-file", "stale"]


@pytest.mark.long
@pytest.mark.parametrize("writer", ["torch", "accel"])
def test_no_flipped_byte_of_a_data_file_is_both_unseen_and_felt(accel_path, tmp_path, copy_of, ours, writer):
    """For every flipped byte of an item, verify finds it or torch still loads the same tensor."""
    directory = ours if writer == "accel" else copy_of("tied")
    fqn, shape = ("model.h.0.norm", (0,)) if writer == "accel" else ("model.h.0.copy.weight", (0, 0))
    path, offset, length = place_of(directory, fqn, shape)
    data = path.read_bytes()
    expected = torch.load(_slice(path, offset, length))
    unseen = []
    for at in range(offset, offset + length):
        flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        path.write_bytes(flipped)
        if subprocess.run([accel_path, "verify", directory], capture_output=True).returncode != 3:
            unseen.append(at)
    path.write_bytes(data)
    assert len(unseen) < length / 2
    felt = []
    for at in unseen:
        item = data[offset:at] + bytes([data[at] ^ 0x10]) + data[at + 1 : offset + length]
        try:
            same = torch.equal(torch.load(io.BytesIO(item)), expected)
        except Exception:  # noqa: BLE001  torch and pickle raise many types.
            same = False
        if not same:
            felt.append(at - offset - length)  # The position is relative to the end of the item.
    assert felt == [], "what torch stumbles over, from the end of the item"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_that_torch_writes_is_sound(verify, zoo, kind):
    assert verify(zoo.path(kind), code=0) == []


@pytest.mark.parametrize(
    "name, expected",
    [
        ("dcp-zstd", {"broken", "checksum"}), ("dcp-no-collectives", {"checksum"}), ("dcp-file-per-tensor", {"checksum"}),
        ("accelerate-full", {"checksum"}), ("accelerate-dtensor-bin", {"checksum"}), ("bin-nested", {"checksum"}),
        ("torchscript-scripted", {"checksum"}), ("bin-dtypes", {"checksum"}),
    ],
)  # fmt: skip
def test_a_flipped_byte_in_any_kind_with_checksums(verify, zoos, tmp_path, name, expected):
    kind = BY_NAME[name]
    source = zoos("2.11").path(kind)
    shutil.copytree(source.parent if source.is_file() else source, tmp_path / "copy")
    target = tmp_path / "copy" / source.name if source.is_file() else tmp_path / "copy"
    (path, *_) = sorted(target.glob("*.distcp"), key=lambda p: -p.stat().st_size) if target.is_dir() else [target]
    flip(path, data_offset(path))
    assert {kind for kind, _, _ in verify(target)} & expected


def data_offset(path):
    """Returns the offset of the last data record. A stream without records yields an offset within the stream."""
    data = path.read_bytes()
    records = [m.end() for m in re.finditer(rb"/data/\d+FB..Z*", data, re.DOTALL)]
    return records[-1] if records else len(data) // 3


@pytest.fixture
def shards(tmp_path):
    """A model in three safetensors files with an index."""
    directory = tmp_path / "model"
    directory.mkdir()
    state = {f"w.{i}": ckpt_peers.tensor_of(i, (4, 5), torch.float32) for i in range(6)}
    weight_map = {}
    for shard in range(3):
        name = f"model-0000{shard + 1}-of-00003.safetensors"
        part = {key: value for key, value in state.items() if int(key[2:]) // 2 == shard}
        safetensors.torch.save_file(part, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 6 * 80}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def change_index(directory, change):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_sound_shards(verify, shards):
    assert verify(shards, code=0) == []


def test_an_index_and_shards_that_disagree(verify, shards):
    first, second, third = sorted(path.name for path in shards.glob("*.safetensors"))
    index = "model.safetensors.index.json"

    def wrong_file(document):
        document["weight_map"]["w.0"] = second

    change_index(shards, wrong_file)
    assert sorted(verify(shards)) == [("hole", second, "w.0"), ("mismatch", first, "w.0")]

    def not_named(document):
        del document["weight_map"]["w.0"]

    change_index(shards, not_named)
    assert verify(shards) == [("mismatch", first, "w.0")]

    def made_up(document):
        document["weight_map"] |= {"w.0": first, "w.9": third}
        document["metadata"]["total_size"] += 80

    change_index(shards, made_up)
    assert sorted(verify(shards)) == [("hole", third, "w.9"), ("stale", index, "")]


def test_missing_truncated_and_extra_shards(verify, shards):
    first, second, third = sorted(path.name for path in shards.glob("*.safetensors"))
    shutil.copy(shards / first, shards / "model-00004-of-00003.safetensors")
    assert verify(shards) == [("stale", "model-00004-of-00003.safetensors", "")]
    (shards / "model-00004-of-00003.safetensors").unlink()
    os.truncate(shards / second, (shards / second).stat().st_size - 1)
    assert verify(shards) == [("broken", second, "")]
    (shards / third).unlink()
    assert ("missing-file", third, "") in verify(shards)


def test_a_shard_of_dcps_safetensors_missing(verify, zoos, tmp_path):
    source = zoos("2.11").path(BY_NAME["hf-dcp-rows"])
    shutil.copytree(source, tmp_path / "copy")
    assert verify(tmp_path / "copy", code=0) == []
    shard = sorted((tmp_path / "copy").glob("*.safetensors"))[0]
    shard.unlink()
    assert verify(tmp_path / "copy") != []


@pytest.mark.parametrize("form", ["sharded", "local", "safetensors", "torch", "one"])
def test_a_shard_that_is_no_regular_file(accel, verify, tmp_path, form):
    safetensors.torch.save_file({n: torch.ones(100) for n in "abc"}, tmp_path / "m.safetensors")
    source, out = tmp_path / "m.safetensors", tmp_path / "out"
    if form in ("sharded", "local"):
        accel("save", source, out, "--type", form, "--ranks", 2)
    else:
        flags = {"safetensors": ("--max-shard-size", 500), "torch": ("--max-shard-size", 500, "--unsafe-serialization")}
        accel("merge-weights", source, out, *flags.get(form, ()))
    assert verify(out, code=0) == []
    shards = sorted(path for path in out.rglob("*") if path.suffix in (".distcp", ".bin", ".safetensors"))
    shards[-1].unlink()
    shards[-1].symlink_to("/dev/null")
    assert any(file == shards[-1].name for _, file, _ in verify(out))


# Sets of files.


def shards_with_index(directory, prefix=""):
    """Two shards with an index, as transformers writes them; `prefix` stands before each name in the index."""
    parts = [("model-00001-of-00002.safetensors", {"a": torch.ones(3)}), ("model-00002-of-00002.safetensors", {"b": torch.ones(5)})]
    directory.mkdir()
    for name, part in parts:
        safetensors.torch.save_file(part, directory / name)
    weight_map = {key: prefix + name for name, part in parts for key in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}))
    return sum((directory / name).stat().st_size for name, _ in parts)


def test_models_beside_a_set_are_their_own(accel, verify, tmp_path):
    """Mistral's folders have the weights of transformers, and the same under other names."""
    directory = tmp_path / "m"
    shards_with_index(directory)
    safetensors.torch.save_file({"layers.a": torch.ones(3)}, directory / "consolidated.safetensors")
    assert verify(directory, code=0) == []
    (directory / "consolidated.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 12}, "weight_map": {"layers.a": "consolidated.safetensors"}}))
    assert verify(directory, code=0) == []
    assert "note: the directory has 2 models" in accel("verify", directory).stdout
    shutil.copy(directory / "model-00001-of-00002.safetensors", directory / "model-00001-of-00003.safetensors")
    shutil.copy(directory / "model-00001-of-00002.safetensors", directory / "model.safetensors")
    assert verify(directory) == [("stale", "model-00001-of-00003.safetensors", ""), ("stale", "model.safetensors", "")]


@pytest.mark.parametrize("stored", ["shards", "one"])
def test_a_set_of_torch_files_beside_safetensors(accel, verify, tmp_path, stored):
    """Older folders have the weights in both forms."""
    directory = tmp_path / "m"
    shards_with_index(directory)
    if stored == "one":
        for path in directory.iterdir():
            path.unlink()
        safetensors.torch.save_file({"a": torch.ones(3), "b": torch.ones(5)}, directory / "model.safetensors")
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for name, key in zip(names, "ab"):
        torch.save({key: torch.ones(3)}, directory / name)
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict(zip("ab", names))}))
    assert verify(directory, code=0) == []
    (directory / names[1]).unlink()
    assert verify(directory) == [("missing-file", names[1], "")]


def test_a_weight_map_may_begin_with_a_dot(accel, verify, tmp_path):
    shards_with_index(tmp_path / "dot", "./")
    assert verify(tmp_path / "dot", code=0) == []
    accel("merge-weights", tmp_path / "dot", tmp_path / "out")
    for prefix in ("../dot/", f"{tmp_path}/dot/", "./../dot/"):
        shutil.rmtree(tmp_path / "dot")
        shards_with_index(tmp_path / "dot", prefix)
        assert {kind for kind, _, _ in verify(tmp_path / "dot")} == {"broken", "stale"}
        accel("merge-weights", tmp_path / "dot", tmp_path / "outside", code=5)


def test_a_set_says_how_large_it_is(accel, tmp_path):
    total = shards_with_index(tmp_path / "m")
    result = json.loads(accel("--json", "verify", tmp_path / "m").stdout)
    (of_set,) = [c for c in result["checkpoints"] if c["kind"] == "safetensors-sharded"]
    assert (of_set["files"], of_set["tensors"], of_set["bytes"]) == (2, 2, total)
    os.remove(tmp_path / "m/model-00002-of-00002.safetensors")
    (of_set,) = [c for c in json.loads(accel("--json", "verify", tmp_path / "m", code=3).stdout)["checkpoints"]
                 if c["kind"] == "safetensors-sharded"]
    assert of_set["files"] == 1 and 0 < of_set["bytes"] < total
