"""merge-weights on checkpoints that torch wrote, judged by safetensors and by Accelerate's own merge."""

import json
import shutil

import ckpt_peers
import pytest
import safetensors
import safetensors.torch
from ckpt_peers import assert_same, expected_state

UNTIED = [kind for kind in ckpt_peers.KINDS if kind != "tied"]


@pytest.mark.parametrize("kind", UNTIED)
def test_merged_file_holds_the_state_dict_bit_for_bit(accel, torch_checkpoints, tmp_path, kind):
    accel("merge-weights", torch_checkpoints / kind / "pytorch_model_fsdp_0", tmp_path / "out")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected_state(kind))


@pytest.mark.parametrize("kind", UNTIED)
def test_merged_file_is_what_the_official_writer_gives(accel, torch_checkpoints, tmp_path, kind):
    accel("merge-weights", torch_checkpoints / kind, tmp_path / "merged.safetensors")
    state = {name: tensor.contiguous() for name, tensor in expected_state(kind).items()}
    official = safetensors.torch.save(state, metadata={"format": "pt"})
    assert (tmp_path / "merged.safetensors").read_bytes() == official


@pytest.mark.parametrize("kind", ["rows", "columns", "large", "net", "net_bf16"])
def test_same_as_accelerate(accel, torch_checkpoints, tmp_path, kind):
    from accelerate.utils import merge_fsdp_weights

    source = torch_checkpoints / kind / "pytorch_model_fsdp_0"
    merge_fsdp_weights(str(source), str(tmp_path / "theirs"))
    accel("merge-weights", source, tmp_path / "ours")
    ours, theirs = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert_same(ours, theirs)


def test_tied_tensors_are_kept_once_and_recorded(accel, torch_checkpoints, tmp_path):
    accel("merge-weights", torch_checkpoints / "tied", tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    expected = expected_state("tied")
    del expected["lm_head.weight"]  # Norms of ones and copied layers are equal too, but not tied.
    assert_same(safetensors.torch.load_file(path), expected)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "lm_head.weight": "wte.weight"}


def test_keep_tied_writes_both(accel, torch_checkpoints, tmp_path):
    accel("merge-weights", torch_checkpoints / "tied", tmp_path / "out", "--keep-tied")
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected_state("tied"))


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


def test_the_optimizer_is_not_taken_for_the_model(accel, torch_checkpoints, tmp_path):
    result = accel("merge-weights", torch_checkpoints / "net/optimizer_0", tmp_path / "out", code=1)
    assert "not there yet" in result.stderr


def test_later_flags_say_so(accel, torch_checkpoints, tmp_path):
    result = accel("merge-weights", torch_checkpoints / "net", tmp_path / "out", "--max_shard_size", "5GB", code=2)
    assert "--max-shard-size is not there yet" in result.stderr


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
