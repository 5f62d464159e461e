"""accel-export finds whether documents that share a sample see each other, and accel packs them only if they do not."""

import json
import zipfile

import accel_export.packs
import numpy
import pytest
import torch
import transformers
from accel_export import cli
from safetensors.numpy import save_file

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 96, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
APART = "packs: documents in one sample do not see each other"
LEAKS = "warning: documents in one sample see each other"


@pytest.fixture
def export(accel_path, tmp_path, capsys):
    """export(FAMILY, SIZES, FLAGS...) exports a model with position_ids. Returns its output, its notes and the model."""

    def run(family, sizes, *flags, out="model.pt2"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **{**SIZES, **sizes}))
        model.save_pretrained(tmp_path / "hf")
        cli.main([str(tmp_path / "hf"), str(tmp_path / out), "--inputs", "input_ids,position_ids", "--accel", str(accel_path), *flags])
        with zipfile.ZipFile(tmp_path / out) as archive:
            notes = json.loads(archive.read(f"{(tmp_path / out).stem}/extra/accel.json"))
        return capsys.readouterr().out, notes, model

    return run


@pytest.mark.long(but="llama-sizes0-flags0")
@pytest.mark.parametrize("family, sizes, flags", [
    ("llama", {}, []),
    ("llama", {}, ["--weights"]),
    ("llama", {}, ["--loss"]),
    ("llama", {}, ["--dtype", "bfloat16"]),
    ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, []),
    ("mistral", {"sliding_window": 6}, []),
    ("qwen3", {"head_dim": 8}, ["--length", "24"]),
])
def test_models_of_attention_keep_documents_apart(export, family, sizes, flags):
    said, notes, _ = export(family, sizes, *flags)
    assert APART in said and LEAKS not in said
    assert notes["keeps_documents_apart"] is True


# The convolutions over the length do not know where a document begins.
@pytest.mark.long(but="flags1")
@pytest.mark.parametrize("flags", [[], ["--loss"], ["--weights"]])
def test_a_model_whose_documents_see_each_other_is_named(export, flags):
    said, notes, _ = export("lfm2", {"layer_types": ["conv", "full_attention"]}, *flags)
    assert LEAKS in said and "packing: none" in said and APART not in said
    assert notes["keeps_documents_apart"] is False


@pytest.mark.long
def test_a_pack_has_the_logits_of_its_documents_alone(export, accel, tmp_path):
    """The judge is the model of transformers on each document by itself, without positions."""
    _, _, model = export("llama", {}, "--weights")
    accel("import", tmp_path / "model.pt2", tmp_path / "model.pt")
    file = torch.jit.load(str(tmp_path / "model.pt")).eval()
    model.eval()
    documents = [torch.randint(96, (1, length)) for length in (7, 5, 11)]
    positions = torch.cat([torch.arange(document.shape[1]) for document in documents])[None]
    with torch.no_grad():
        packed = file(torch.cat(documents, 1), positions)
        packed = packed if isinstance(packed, torch.Tensor) else packed[0]
        alone = torch.cat([model(document).logits for document in documents], 1)
        mixed = model(torch.cat(documents, 1)).logits
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5 * alone.abs().max().item())
    assert (mixed - alone).abs().max() > 100 * (packed - alone).abs().max(), "without positions the documents are one"


class Sums(torch.nn.Module):
    """What a token says depends on all tokens before it, or on those of its document alone."""

    def __init__(self, looks_at_positions):
        super().__init__()
        self.tokens, self.positions, self.head = torch.nn.Embedding(96, 8), torch.nn.Embedding(64, 8), torch.nn.Linear(8, 96)
        self.looks_at_positions = looks_at_positions

    def forward(self, input_ids, position_ids):
        number = (position_ids == 0).cumsum(1)
        seen = torch.ones_like(input_ids)[:, :, None] * torch.ones_like(input_ids)[:, None, :]
        seen = torch.tril(seen) * (number[:, :, None] == number[:, None, :]) if self.looks_at_positions else torch.tril(seen)
        return self.head(seen.float() @ (self.tokens(input_ids) + self.positions(position_ids)))


@pytest.mark.parametrize("looks_at_positions, tokens, expected", [(True, 96, True), (False, 96, False), (False, 1, None)])
def test_a_model_of_ones_own_is_looked_at_if_its_example_shows_anything(accel_path, tmp_path, looks_at_positions, tokens, expected):
    torch.manual_seed(0)
    examples = {"input_ids": torch.randint(tokens, (2, 16)), "position_ids": torch.arange(16).repeat(2, 1)}
    accel_export.export(Sums(looks_at_positions), examples, tmp_path / "model.pt2", layers=[], accel=accel_path)
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        notes = json.loads(archive.read("model/extra/accel.json"))
    assert notes.get("keeps_documents_apart") is expected


@pytest.mark.long
def test_inputs_that_packs_do_not_have_are_not_looked_at(export):
    said, notes, _ = export("llama", {}, "--inputs", "input_ids,attention_mask,position_ids")
    assert APART not in said and LEAKS not in said and "keeps_documents_apart" not in notes


@pytest.mark.long
def test_a_short_length_leaves_no_room_for_a_pack(export):
    said, notes, _ = export("llama", {}, "--length", "8")
    assert "keeps_documents_apart" not in notes
    assert accel_export.packs.ranges_of(11) == [] and accel_export.packs.ranges_of(12) == [(0, 5), (5, 9), (9, 12)]


def test_the_weights_in_the_file_are_the_models_own(export, accel, tmp_path):
    """Zeros, too, such as the biases of a new model, which get other values while gradients are compared."""
    _, _, model = export("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, "--weights")
    accel("import", tmp_path / "model.pt2", tmp_path / "model.pt")
    stored = dict(torch.jit.load(str(tmp_path / "model.pt")).named_parameters())
    zeros = 0
    for name, parameter in model.named_parameters():
        assert torch.equal(stored[name], parameter), name
        zeros += parameter.count_nonzero() == 0
    assert zeros > 0


@pytest.mark.long
def test_a_first_configuration_has_no_longer_samples_than_the_model_has_positions(export, accel, tmp_path):
    """Positions that are computed have no table that says how many there are."""
    _, notes, _ = export("llama", {"max_position_embeddings": 48}, "--weights")
    assert notes["max_positions"] == 48
    save_file({"input_ids": numpy.arange(90, dtype="uint16"), "label_mask": numpy.ones(90, dtype="uint8"),
               "lengths": numpy.array([30, 60])}, tmp_path / "chat.safetensors", metadata={"format": "accel.documents"})
    config = tmp_path / "run.yaml"
    accel("config", tmp_path / "model.pt2", "--data", tmp_path / "chat.safetensors", "--cpu", "--num-processes", "1", "-o", config)
    assert "sequence_length: 48" in config.read_text()
    one = ("--set", "training.data.batch_size=1")
    assert "positions" not in accel("check", config, *one).stderr
    longer = accel("check", config, *one, "--set", "training.data.train.sequence_length=64").stderr
    assert "training.data.train.sequence_length: a sequence has 64 tokens, and the model was made for 48 positions" in longer
