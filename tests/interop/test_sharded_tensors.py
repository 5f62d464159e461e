"""Files of torch.save in which each rank has its parts of the ShardedTensors of FSDP1: they are read as one set."""

import shutil

import safetensors.torch
import torch
from ckpt_peers import assert_same


def test_rank_files_of_fsdp1_are_one_model(accel, peer, tmp_path):
    peer(2, "sharded_tensor_files.py", tmp_path)
    expected = torch.load(tmp_path / "expected.bin", weights_only=True)
    files = tmp_path / "SHARDED"
    for source in (files, files / "model_world_size_2_rank_1.pt"):
        accel("merge-weights", source, tmp_path / "out", "--verify", "--force")
        assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), expected)
    accel("save", files, tmp_path / "saved", "--type", "sharded", "--ranks", 2, "--tensors-only")
    accel("diff", tmp_path / "saved", tmp_path / "out/model.safetensors")

    accel("verify", files)
    for rank in (0, 1):
        half = tmp_path / f"half{rank}"
        half.mkdir()
        shutil.copy(files / f"model_world_size_2_rank_{rank}.pt", half)
        for source in (half, half / f"model_world_size_2_rank_{rank}.pt"):
            found = accel("verify", source, code=3).stdout
            assert f"missing-file: model_world_size_2_rank_{1 - rank}.pt" in found
    (tmp_path / "alone").mkdir()
    shutil.copy(files / "model_world_size_2_rank_0.pt", tmp_path / "alone/model.pt")
    found = accel("verify", tmp_path / "alone", code=3).stdout
    assert "hole: model.pt, '0.weight': the shards of rank 1 of 6 tensors are not in the file" in found

    assert "note: " in accel("verify", tmp_path / "LOCAL").stdout
    flat = accel("merge-weights", tmp_path / "LOCAL", tmp_path / "flat", code=1).stderr
    assert "it is a flat parameter of FSDP1, which accel does not read" in flat
    (files / "model_world_size_2_rank_1.pt").unlink()
    lost = accel("merge-weights", files, tmp_path / "lost", code=4).stderr
    assert "the file of rank 1 of 2 is missing" in lost and not (tmp_path / "lost").exists()
