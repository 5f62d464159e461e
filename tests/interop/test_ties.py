"""Tensors are written once if the source proves that they are tied. Tensors that are only equal are kept."""

import copy
import json
import pickle

import peft
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
from ckpt_peers import assert_same
from safetensors import safe_open


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)
        self.out = torch.nn.Linear(4, 4)


def momentum():
    """As in MoCo: the key encoder begins as a copy of the query encoder."""
    model = torch.nn.Module()
    model.encoder_q = Encoder()
    model.encoder_k = copy.deepcopy(model.encoder_q)
    return model


def reference():
    """As in DPO: the reference model is the policy at the beginning."""
    model = torch.nn.Module()
    model.policy = Encoder()
    model.reference = copy.deepcopy(model.policy)
    return model


def modules_to_save():
    """PEFT keeps the original module beside the one that it trains."""
    config = transformers.LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    base = transformers.LlamaForSequenceClassification(config)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj"], r=2))


def tied():
    model = torch.nn.Module()
    model.wte = torch.nn.Embedding(9, 4)
    model.copy = copy.deepcopy(model.wte)
    model.head = torch.nn.Linear(4, 9, bias=False)
    model.head.weight = model.wte.weight
    return model


INDEPENDENT = [momentum, reference, modules_to_save]


def write(form, state, directory):
    if form == "dcp":
        dcp.save({"model": state}, checkpoint_id=directory / "dcp", no_dist=True)
    elif form == "torch":
        torch.save(state, directory / "torch")
    else:
        safetensors.torch.save_file({name: tensor.clone() for name, tensor in state.items()}, directory / "safetensors")
    return directory / form


@pytest.mark.parametrize("form", ["dcp", "torch", "safetensors"])
@pytest.mark.parametrize("make", INDEPENDENT)
def test_equal_tensors_are_kept(accel, tmp_path, form, make):
    state = make().state_dict()
    path = write(form, state, tmp_path)
    result = accel("merge-weights", path, tmp_path / "out", "--verify")
    assert "written once" not in result.stderr
    assert_same(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), state)
    make().load_state_dict(safetensors.torch.load_file(tmp_path / "out/model.safetensors"), strict=True)
    if form == "dcp":
        # The source is only removed if all of it has been written.
        accel("merge-weights", path, tmp_path / "kept", "--remove-checkpoint-dir")
        assert_same(safetensors.torch.load_file(tmp_path / "kept/model.safetensors"), state)


def test_accelerate_keeps_equal_and_tied_tensors_of_a_sharded_checkpoint(accel, tmp_path):
    from accelerate.utils import merge_fsdp_weights

    for make in [momentum, tied]:
        directory = tmp_path / make.__name__
        directory.mkdir()
        path = write("dcp", make().state_dict(), directory)
        merge_fsdp_weights(str(path), str(directory / "theirs"))
        accel("merge-weights", path, directory / "ours")
        assert_same(*(safetensors.torch.load_file(directory / name / "model.safetensors") for name in ("ours", "theirs")))


def test_shared_storage_is_a_tie_and_equal_bytes_are_none(accel, tmp_path):
    """A file of torch.save says what shares its bytes. --drop-equal guesses nothing there."""
    state = tied().state_dict()
    path = write("torch", state, tmp_path)
    for flags in ([], ["--drop-equal"]):
        said = accel("merge-weights", path, tmp_path / "out", "--force", *flags).stderr
        assert ("has no effect" in said) == bool(flags)
        with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
            assert sorted(file.keys()) == ["copy.weight", "wte.weight"]
            assert file.metadata()["head.weight"] == "wte.weight"
    accel("merge-weights", path, tmp_path / "both", "--keep-tied")
    assert_same(safetensors.torch.load_file(tmp_path / "both/model.safetensors"), state)


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_drop_equal_guesses_where_nothing_is_recorded(accel, tmp_path, form):
    state = tied().state_dict()
    path = write(form, state, tmp_path)
    accel("merge-weights", path, tmp_path / "both")
    assert_same(safetensors.torch.load_file(tmp_path / "both/model.safetensors"), state)
    result = json.loads(accel("merge-weights", path, tmp_path / "out", "--drop-equal", "--json").stdout)
    assert len(result["tied"]) == 2
    assert len(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == 1


def test_a_sharded_checkpoint_can_share_records(accel, tmp_path):
    """If two names have the same record in .metadata, they are the same bytes."""
    state = tied().state_dict()
    path = write("dcp", state, tmp_path)
    metadata = dcp.FileSystemReader(path).read_metadata()
    records = {index.fqn: index for index in metadata.storage_data}
    metadata.storage_data[records["model.head.weight"]] = metadata.storage_data[records["model.wte.weight"]]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    result = json.loads(accel("merge-weights", path, tmp_path / "out", "--json").stdout)
    assert list(result["tied"].items()) in ([("head.weight", "wte.weight")], [("wte.weight", "head.weight")])
    assert len(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == 2
