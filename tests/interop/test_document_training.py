"""A model trains on documents, packed or not, as a loop of transformers trains it that runs each document by itself."""

import json

import numpy
import pytest
import torch
import train_runs
import transformers
from accel_export import cli
from safetensors.numpy import save_file

STEPS, LENGTH = 3, 32
LENGTHS = [20, 12, 30, 40, 17, 1, 15, 25, 7]  # Best fit decreasing makes 5 packs of them; 40 is cut to 32.
OPTIMIZER = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 96, "max_position_embeddings": 64}


def write_documents(path):
    """Writes a file as docs/formats.md describes it. Returns the documents as pairs (tokens, labels that count)."""
    random = numpy.random.default_rng(0)
    documents = [(random.integers(96, size=length), random.random(length) < 0.6) for length in LENGTHS]
    documents[0][1][0] = True  # Nothing comes before a first token, so that it does not count in any case.
    save_file({"input_ids": numpy.concatenate([ids for ids, _ in documents]).astype("uint16"),
               "label_mask": numpy.concatenate([mask for _, mask in documents]).astype("uint8"),
               "lengths": numpy.array(LENGTHS, dtype="int64")}, path, metadata={"format": "accel.documents", "pad_token_id": "5"})
    return [(torch.from_numpy(ids[:LENGTH]), torch.from_numpy(mask[:LENGTH])) for ids, mask in documents]


def loss_of(model, documents):
    """The mean over the labels of all documents that count, by transformers' model on each document alone."""
    total, count = 0, 0
    for ids, mask in documents:
        labels = torch.where(mask[1:], ids[1:], -100)
        logits = model(ids[None]).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        count += int((labels != -100).sum())
    return total / count


def in_python(model, documents):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, documents)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, loss_of(model, documents).item()


@pytest.fixture
def prepared(accel_path, tmp_path):
    """prepared(INPUTS, FLAGS...) exports a Llama and writes documents. Returns the model and the documents."""

    def prepare(inputs, *flags):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        model.save_pretrained(tmp_path / "hf")
        cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt2"), "--weights", "--accel", str(accel_path), "--inputs", inputs, *flags])
        return model, write_documents(tmp_path / "train.safetensors")

    return prepare


def config_of(directory, packing, inputs, batch, flags=(), **keys):
    source = {"format": "documents", "path": str(directory / "train.safetensors"), "sequence_length": LENGTH, "packing": packing}
    model = {"path": str(directory / "model.pt2"), "inputs": inputs.split(",") + (["labels"] if "--loss" in flags else []),
             "loss": "model" if "--loss" in flags else "cross_entropy"}
    return train_runs.config(directory, 1, **{
        "model": model, "data.train": source, "data.eval": source, "data.batch_size": batch, "max_steps": STEPS, "eval_every": STEPS,
        "optimizer": {"type": "adamw", **OPTIMIZER}, "lr_scheduler": {"type": "constant"},
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, **keys})


@pytest.mark.long(but="none-input_ids-flags2")
@pytest.mark.parametrize("packing, inputs, flags", [
    ("best_fit", "input_ids,position_ids", []),
    ("best_fit", "input_ids,position_ids", ["--loss"]),
    ("none", "input_ids", []),
    ("none", "input_ids,attention_mask", ["--loss"]),
    ("none", "input_ids,position_ids", []),
])
def test_losses_are_those_of_each_document_alone(accel, prepared, tmp_path, packing, inputs, flags):
    """A step takes all documents, so that packing must not change its loss."""
    model, documents = prepared(inputs, *flags)
    said = accel("launch", config_of(tmp_path, packing, inputs, 5 if packing == "best_fit" else len(LENGTHS), flags)).stderr
    assert "1 of 9 documents have more than 32 tokens; what they have beyond them is left out, 8 of 167 tokens" in said
    losses, held_out = in_python(model, documents)
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, rel=1e-5)
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines() if '"tokens_per_s"' in line]
    samples = 5 if packing == "best_fit" else len(LENGTHS)
    for record in records:
        assert record["tokens_per_s"] / record["samples_per_s"] == pytest.approx((sum(LENGTHS) - 8) / samples, rel=1e-9)
    # The model's own loss is a mean over samples with the same weight, and all are in one batch here.
    assert train_runs.metrics(tmp_path, "eval_loss") == [pytest.approx(held_out, rel=1e-5)]


@pytest.mark.long
@pytest.mark.parametrize("inputs", ["input_ids", "input_ids,attention_mask"])
def test_padding_to_the_longest_document_changes_no_loss(accel, prepared, tmp_path, inputs):
    """The runs with all of the padding are judged above."""
    prepared(inputs)
    found = []
    for multiple in (None, 8, 5):
        source = {"format": "documents", "path": str(tmp_path / "train.safetensors"), "sequence_length": LENGTH,
                  **({"pad_to_multiple_of": multiple} if multiple else {})}
        accel("launch", config_of(tmp_path, "none", inputs, 2, output_dir=str(tmp_path / f"out{multiple}"),
                                  **{"data.train": source, "data.eval": source}))
        lines = [json.loads(line) for line in (tmp_path / f"out{multiple}/metrics.jsonl").read_text().splitlines()]
        found.append([line[name] for line in lines for name in ("loss", "eval_loss") if name in line])
    assert len(found[0]) == STEPS + 1
    assert found[1] == pytest.approx(found[0], rel=1e-5) and found[2] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.long
def test_a_mean_over_all_labels_does_not_depend_on_padding(accel, prepared, tmp_path):
    """Micro-batches of other lengths, also on other ranks, count by their labels."""
    prepared("input_ids")
    found = []
    for multiple, processes in ((None, 1), (8, 1), (8, 2)):
        source = {"format": "documents", "path": str(tmp_path / "train.safetensors"), "sequence_length": LENGTH,
                  **({"pad_to_multiple_of": multiple} if multiple else {})}
        config = config_of(tmp_path, "none", "input_ids", 2 // processes, eval_every=0, num_processes=processes, loss_mean="tokens",
                           gradient_accumulation_steps=2, max_grad_norm=1e9, output_dir=str(tmp_path / f"out{len(found)}"),
                           **{"data.train": source, "data.eval": None})
        accel("launch", config)
        lines = [json.loads(line) for line in (tmp_path / f"out{len(found)}/metrics.jsonl").read_text().splitlines()]
        found.append([line[name] for line in lines for name in ("loss", "grad_norm") if name in line])
    assert len(found[0]) == 2 * STEPS
    assert found[1] == pytest.approx(found[0], rel=1e-5) and found[2] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.long
def test_a_run_goes_on_with_the_next_packs_and_with_no_others(accel, prepared, tmp_path):
    prepared("input_ids,position_ids")
    keys = {"data.shuffle": True, "checkpoint": {"every": 3}, "eval_every": 0, "max_steps": 7}
    accel("launch", config_of(tmp_path, "best_fit", "input_ids,position_ids", 2, **keys))
    whole = train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    accel("launch", config_of(tmp_path, "best_fit", "input_ids,position_ids", 2, **{**keys, "max_steps": 3}))
    accel("launch", config_of(tmp_path, "best_fit", "input_ids,position_ids", 2, **keys))
    assert train_runs.metrics(tmp_path) == whole and len(whole) == 7
    said = accel("launch", config_of(tmp_path, "none", "input_ids,position_ids", 2, **{**keys, "max_steps": 9}), code=2).stderr
    assert "training.data.train has 9 samples of 32 tokens, but the checkpoint is of a run on 5 samples of 32 tokens" in said


@pytest.mark.long
def test_ranks_share_the_order_of_packs(accel, prepared, tmp_path):
    """Every pack has as many labels, so that the mean over ranks is the mean over all of them."""
    prepared("input_ids,position_ids")
    random = numpy.random.default_rng(1)
    save_file({"input_ids": random.integers(96, size=20 * 16).astype("uint16"), "label_mask": numpy.ones(20 * 16, dtype="uint8"),
               "lengths": numpy.full(20, 16)}, tmp_path / "train.safetensors")
    losses = []
    for processes in (1, 2):
        config = config_of(tmp_path, "best_fit", "input_ids,position_ids", 2 // processes, eval_every=0, num_processes=processes,
                           max_steps=7, output_dir=str(tmp_path / f"on-{processes}"), **{"data.shuffle": True, "data.eval": None})
        accel("launch", config)
        lines = (tmp_path / f"on-{processes}/metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 7
    assert max(abs(a - b) for a, b in zip(losses[0], losses[0][1:])) > 1e-2, "the batches differ, so that another order would show"


@pytest.mark.long
def test_what_does_not_fit_is_refused_before_the_first_step(accel, prepared, tmp_path):
    prepared("input_ids,position_ids")

    def refusal(*settings, data=None):
        if data is not None:
            save_file({"input_ids": numpy.array([1, 2, 96], dtype="int32"), "label_mask": numpy.ones(3, dtype="uint8"),
                       "lengths": numpy.array([3]), **data}, tmp_path / "train.safetensors")
        flags = [part for setting in settings for part in ("--set", setting)]
        config = config_of(tmp_path, "best_fit", "input_ids,position_ids", 1, eval_every=0, **{"data.eval": None})
        found = [accel(command, config, *flags, code=2).stderr for command in ("check", "launch")]
        return found[0] if found[0].splitlines()[-2:] == found[1].splitlines()[-2:] else found

    assert "needs a model that takes position_ids" in refusal("training.model.inputs=[input_ids]")
    assert "'training.data.train.packing' is for 'format: documents', not 'text'" in refusal("training.data.train.format=text")
    assert "'input_ids' has 3 tokens, but its documents have 2" in refusal(data={"lengths": numpy.array([2])})
    assert "no token counts as a label" in refusal(data={"label_mask": numpy.zeros(3, dtype="uint8")})
    assert "label 96 in 'labels', but the model gives 96 classes" in refusal(data={})
    config = config_of(tmp_path, "best_fit", "input_ids,position_ids", 1, eval_every=0, **{"data.eval": None})
    said = accel("launch", config, "--set", "launch.preflight=false", code=6).stderr
    assert "document 0: token 96 at position 2 of it is not in the model's vocabulary of 96 tokens" in said


def test_a_model_that_leaks_is_not_packed(accel, accel_path, tmp_path):
    """An LFM2, whose convolutions see the document before."""
    torch.manual_seed(0)
    config = transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"], pad_token_id=0)
    transformers.Lfm2ForCausalLM(config).save_pretrained(tmp_path / "hf")
    inputs = "input_ids,position_ids"
    cli.main([str(tmp_path / "hf"), str(tmp_path / "model.pt2"), "--weights", "--accel", str(accel_path), "--inputs", inputs])
    write_documents(tmp_path / "train.safetensors")
    said = accel("check", config_of(tmp_path, "best_fit", inputs, 1), code=2).stderr
    assert "packing is best_fit, but the notes of the model say that documents in one sample see each other" in said
    accel("check", config_of(tmp_path, "none", inputs, 1))
