"""Ranks that share the sequences train as one process of Python does that has all of them."""

import json
import shutil

import numpy
import pytest
import torch
import train_runs
import transformers
from accel_export import cli
from safetensors.numpy import save_file
from safetensors.torch import load_file

STEPS, LENGTH, VOCABULARY = 20, 32, 96
LENGTHS = [20, 12, 30, 2, 40, 17, 15]  # Best fit decreasing makes 4 packs of them; 40 is cut to 32.
OPTIMIZER = {"lr": 0.1, "momentum": 0.9}
# Sums of float32 in another order.
LOSS = {"rel": 2e-5}
WEIGHT = 2e-5

FAMILIES = {
    "llama": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 64},
    # Layers of a window and of the whole sequence in turn, so that there are two masks.
    "gemma3_text": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
                    "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
}


def write_documents(path):
    """Writes a file as docs/formats.md describes it. Returns the documents as pairs (tokens, labels that count)."""
    random = numpy.random.default_rng(0)
    documents = [(random.integers(VOCABULARY, size=length), random.random(length) < 0.6) for length in LENGTHS]
    documents[4][1][:20] = False  # No label of the first half of its pack counts, so that one rank has none.
    save_file({"input_ids": numpy.concatenate([ids for ids, _ in documents]).astype("uint16"),
               "label_mask": numpy.concatenate([mask for _, mask in documents]).astype("uint8"),
               "lengths": numpy.array(LENGTHS, dtype="int64")}, path, metadata={"format": "accel.documents", "pad_token_id": "5"})
    return [(torch.from_numpy(ids[:LENGTH]), torch.from_numpy(mask[:LENGTH])) for ids, mask in documents]


def loss_and_accuracy(logits_of, documents):
    """The means over the labels of all documents that count, of each document alone."""
    total, right, count = 0, 0, 0
    for ids, mask in documents:
        labels = torch.where(mask[1:], ids[1:], -100)
        logits = logits_of(ids[None])[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        right += int((logits.argmax(-1) == labels).sum())
        count += int((labels != -100).sum())
    return total / count, right / count


def in_python(model, logits_of, documents):
    """Trains the model. Returns the losses, and loss and accuracy afterwards."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZER)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _ = loss_and_accuracy(logits_of, documents)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        held_out, accuracy = loss_and_accuracy(logits_of, documents)
    return losses, held_out.item(), accuracy


def prepare(directory, accel_path, family):
    """Exports a model and writes documents. Returns what Python makes of them."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **FAMILIES[family]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(directory / "hf")
    cli.main([str(directory / "hf"), str(directory / "model.pt2"), "--weights", "--accel", str(accel_path),
              "--inputs", "input_ids,position_ids"])
    documents = write_documents(directory / "train.safetensors")
    return model, in_python(model, lambda ids: model(ids).logits, documents)


@pytest.fixture(scope="module")
def llama(accel_path, tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    return directory, *prepare(directory, accel_path, "llama")


def config_of(directory, source, processes, batch, packing="best_fit", **keys):
    data = {"format": "documents", "path": str(source / "train.safetensors"), "sequence_length": LENGTH, "packing": packing}
    return train_runs.config(directory, processes, **{
        "model": {"path": str(source / "model.pt2"), "inputs": ["input_ids", "position_ids"]}, "data.train": data,
        "data.eval": data, "data.batch_size": batch, "max_steps": STEPS, "eval_every": STEPS, "max_grad_norm": 1e9,
        "optimizer": {"type": "sgd", **OPTIMIZER}, "lr_scheduler": {"type": "constant"}, "checkpoint.every": 10,
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, **keys})


def sizes(**sizes):
    return {f"parallelism_config.{name}_size": size for name, size in sizes.items()}


def expect_pythons(accel, directory, model, expected):
    losses, held_out, accuracy = expected
    assert train_runs.metrics(directory) == pytest.approx(losses, **LOSS)
    assert losses[-1] < losses[0] - 0.5
    assert train_runs.metrics(directory, "eval_loss") == [pytest.approx(held_out, **LOSS)]
    assert train_runs.metrics(directory, "eval_accuracy") == [pytest.approx(accuracy, rel=1e-9)]
    accel("merge-weights", directory / f"out/checkpoints/checkpoint_{STEPS}", directory / "merged")
    found, weights = load_file(directory / "merged/model.safetensors"), model.state_dict()
    assert set(found) <= set(weights)
    for name, value in found.items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=WEIGHT, msg=lambda text, name=name: f"{name}: {text}")


TOKENS = {"loss_mean": "tokens"}


@pytest.mark.long(but="sp 2")
@pytest.mark.parametrize("processes, batch, keys", [
    (1, 4, {}),
    (2, 4, sizes(sp=2)),
    (4, 4, sizes(sp=4)),
    (2, 4, sizes(cp=2)),
    (4, 2, {**sizes(sp=2, dp_shard=2), **TOKENS}),
    (4, 2, {**sizes(sp=2, dp_replicate=2), **TOKENS}),
    (2, 2, {**sizes(sp=2), **TOKENS, "gradient_accumulation_steps": 2, "fsdp_config.fsdp_activation_checkpointing": True}),
    (2, 4, {**sizes(sp=2), "launch.backend": "gloo", "model.fused_head": "always",
            "fsdp_config.fsdp_reshard_after_forward": False}),
], ids=["1 rank", "sp 2", "sp 4", "cp 2", "2 shards x sp 2", "2 replicas x sp 2", "sp 2, accumulation, checkpointing",
        "sp 2, gloo, fused head"])
def test_packs_train_as_their_documents_do_in_python(accel, llama, tmp_path, processes, batch, keys):
    """A step takes all packs, of which some labels do not count, and the judge has each document alone."""
    source, model, expected = llama
    said = accel("launch", config_of(tmp_path, source, processes, batch, **keys)).stderr
    expect_pythons(accel, tmp_path, model, expected)
    assert ("runs as 'parallelism_config.sp_size: 2'" in said) == ("parallelism_config.cp_size" in keys)
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines() if '"tokens_per_s"' in line]
    for record in records:
        assert record["tokens_per_s"] / record["samples_per_s"] == pytest.approx((sum(LENGTHS) - 8) / 4, rel=1e-9)


@pytest.mark.long
def test_a_model_of_two_masks_trains_as_in_python(accel, accel_path, tmp_path):
    model, expected = prepare(tmp_path, accel_path, "gemma3_text")
    accel("launch", config_of(tmp_path, tmp_path, 4, 4, **sizes(sp=4)))
    expect_pythons(accel, tmp_path, model, expected)


def test_a_run_goes_on_with_other_parts_of_sequences(accel, llama, tmp_path):
    source, model, expected = llama
    resumed = {"checkpoint.resume": "auto"}
    accel("launch", config_of(tmp_path, source, 2, 4, **sizes(sp=2), **resumed), "--set", "training.max_steps=10")
    said = accel("launch", config_of(tmp_path, source, 4, 2, **sizes(sp=2, dp_shard=2), **TOKENS, **resumed)).stderr
    assert "4 shards of which 2 share a sequence" in said
    losses, held_out, accuracy = expected
    assert train_runs.metrics(tmp_path)[-10:] == pytest.approx(losses[10:], **LOSS)
    assert train_runs.metrics(tmp_path, "eval_loss")[-1] == pytest.approx(held_out, **LOSS)


def test_under_autocast_the_losses_are_those_of_float32_but_for_rounding(accel, llama, tmp_path):
    """Attention computes in another dtype than what calls it, and its mask must have that dtype."""
    source, _, (losses, _, _) = llama
    fsdp = {"fsdp_version": 1, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    accel("launch", config_of(tmp_path, source, 2, 4, **sizes(sp=2), mixed_precision="bf16", fsdp_config=fsdp))
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, abs=torch.finfo(torch.bfloat16).eps * losses[0])


class Attention(torch.nn.Module):
    """Eight heads that share two of keys and values."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 32 + 2 * 8)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[0], x.shape[1]
        q, k, v = self.qkv(x).split([32, 8, 8], dim=-1)
        q = q.view(batch, length, 8, 4).transpose(1, 2)
        k = k.view(batch, length, 2, 4).transpose(1, 2)
        v = v.view(batch, length, 2, 4).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, 32))


class NanoAttention(Attention):
    """torch.export leaves out the contiguous(), since attention has given such strides."""

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], -1, 4).transpose(1, 2) for part in self.qkv(x).split([32, 8, 8], dim=-1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).contiguous().view(*x.shape[:2], 32))


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 32)
        self.positions = torch.nn.Embedding(64, 32)
        self.layers = torch.nn.ModuleList([Attention() for _ in range(2)])
        self.head = torch.nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.positions(position_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.long(but="2")
@pytest.mark.parametrize("parts", [2, 4])
def test_a_scripted_model_trains_as_in_python(accel, tmp_path, parts):
    """With 4 ranks two have the same head of keys. Documents are padded, which a causal attention does not see."""
    torch.manual_seed(0)
    model = Scripted()
    torch.jit.script(model).save(str(tmp_path / "model.pt2"), _extra_files={"accel.json": json.dumps({"layer_classes": ["Attention"]})})
    (tmp_path / "model.pt2").rename(tmp_path / "model.pt")
    documents = write_documents(tmp_path / "train.safetensors")
    expected = in_python(model, lambda ids: model(ids, torch.arange(ids.shape[1])[None]), documents)
    accel("launch", config_of(tmp_path, tmp_path, parts, len(LENGTHS), "none", **sizes(sp=parts),
                              **{"model.path": str(tmp_path / "model.pt")}))
    expect_pythons(accel, tmp_path, model, expected)


def test_a_model_that_cannot_be_cut_is_refused_before_the_first_step(accel, tmp_path):
    train_runs.export(tmp_path / "model.pt")  # Its positions are counted in its forward.
    write_documents(tmp_path / "train.safetensors")
    keys = {**sizes(sp=2), "model.path": str(tmp_path / "model.pt")}
    said = accel("launch", config_of(tmp_path, tmp_path, 2, 2, **keys), code=2).stderr
    assert "forward takes [input_ids]" in said
    said = accel("launch", config_of(tmp_path, tmp_path, 2, 2, **{**keys, "model.inputs": ["input_ids"]}), code=2).stderr
    assert "'training.model.inputs' has no position_ids" in said


class Mixing(Scripted):
    """Attention as nanoGPT has it, and `mix` between two of them."""

    def __init__(self, mix):
        super().__init__()
        self.layers = torch.nn.ModuleList([NanoAttention() for _ in range(2)])
        self.mix = mix

    def forward(self, input_ids, position_ids):
        x = self.tokens(input_ids) + self.positions(position_ids)
        return self.head(self.layers[1](self.mix(self.layers[0](x))))


def prepare_mixing(directory, mix, batch=None):
    """Exports a Mixing model, for one size of a batch if it is given, and writes documents, which are returned."""
    torch.manual_seed(0)
    model = Mixing(mix)
    ids = torch.zeros(batch or 2, 16, dtype=torch.long)
    free = {1: torch.export.Dim.AUTO} if batch else {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(model.train(), (ids, ids.clone()), dynamic_shapes=(free, free), strict=False)
    torch.export.save(program, directory / "model.pt2", extra_files={"accel.json": json.dumps({"layer_classes": ["NanoAttention"]})})
    return model, write_documents(directory / "train.safetensors")


def test_attention_has_the_strides_that_the_operator_gives(accel, tmp_path):
    model, documents = prepare_mixing(tmp_path, torch.nn.Dropout(0.0))
    expected = in_python(model, lambda ids: model(ids, torch.arange(ids.shape[1])[None]), documents)
    accel("launch", config_of(tmp_path, tmp_path, 2, len(LENGTHS), "none", **sizes(sp=2)))
    expect_pythons(accel, tmp_path, model, expected)


@pytest.mark.long
def test_a_program_of_one_size_of_batch_is_taken_as_it_is(accel, tmp_path):
    """A piece of one sequence does not have the size of the batch. The evaluation of two batches follows the attempt at once."""
    model, documents = prepare_mixing(tmp_path, torch.nn.Dropout(0.0), len(LENGTHS))
    shutil.copy(tmp_path / "train.safetensors", tmp_path / "train2.safetensors")
    expected = in_python(model, lambda ids: model(ids, torch.arange(ids.shape[1])[None]), documents)
    config = config_of(tmp_path, tmp_path, 2, len(LENGTHS), "none", **sizes(sp=2))
    said = accel("launch", config).stderr
    assert "could not be compared with the whole ones: the model was exported for sizes" in said
    expect_pythons(accel, tmp_path, model, expected)
    found = json.loads(accel("evaluate", config, "--data", tmp_path / "train*.safetensors", "--json").stdout)
    assert found["results"][0]["loss"] == pytest.approx(expected[1], **LOSS)


@pytest.mark.long(but="shift")
@pytest.mark.parametrize("mix", [
    lambda x: x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x * x.softmax(1),
    lambda x: x.sort(1).values,
    lambda x: x / x.norm(dim=1, keepdim=True),
], ids=["shift", "mean", "softmax", "sort", "norm"])
def test_tokens_that_see_each_other_outside_of_attention_are_found_by_numbers(accel, tmp_path, mix):
    prepare_mixing(tmp_path, mix)
    said = accel("launch", config_of(tmp_path, tmp_path, 2, 2, "none", **sizes(sp=2)), code=6).stderr
    assert "sequence parallelism would train another model" in said and "what attention of 'layers.1' gets differs" in said
    assert not (tmp_path / "out/checkpoints").exists() or not list((tmp_path / "out/checkpoints").iterdir())
