"""Models of several inputs, pictures and sound are trained on tables of tensors (data format `tensors`) as in Python."""


import json

import pytest
import torch
import train_runs
import transformers
from accel_export import cli
from safetensors.torch import save_file

STEPS, PROCESSES, BATCH, HELD_OUT = 4, 2, 2, 5
SAMPLES = STEPS * PROCESSES * BATCH
OPTIMIZER = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert():
    """Masked tokens: some labels count, and some inputs are padding."""
    config = transformers.BertConfig(**SIZES, **QUIET, vocab_size=96, architectures=["BertForMaskedLM"])
    ids = torch.randint(5, 96, (SAMPLES, 12))
    chosen = torch.rand(ids.shape) < 0.3
    chosen[:, 0] = True
    mask = (torch.arange(12) < torch.randint(4, 13, (SAMPLES, 1))).long()
    return config, [], {"input_ids": ids.masked_fill(chosen, 4), "attention_mask": mask, "labels": ids.masked_fill(~chosen, -100)}


def t5():
    config = transformers.T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
                                   decoder_start_token_id=0, architectures=["T5ForConditionalGeneration"])
    labels = torch.randint(1, 96, (SAMPLES, 7), dtype=torch.int32)
    shifted = torch.cat([torch.zeros(SAMPLES, 1, dtype=torch.int32), labels[:, :-1]], 1)
    return config, [], {"input_ids": torch.randint(1, 96, (SAMPLES, 11)), "decoder_input_ids": shifted, "labels": labels}


def vit():
    config = transformers.ViTConfig(**SIZES, **QUIET, image_size=32, patch_size=8, num_labels=5, architectures=["ViTForImageClassification"])
    return config, [], {"pixel_values": torch.randn(SAMPLES, 3, 32, 32), "labels": torch.randint(5, (SAMPLES,)).byte()}


def vit_with_loss():
    config, _, fields = vit()
    return config, ["--loss"], {**fields, "labels": fields["labels"].long()}


def wav2vec2():
    config = transformers.Wav2Vec2Config(
        **SIZES, conv_dim=(16, 16), conv_kernel=(10, 8), conv_stride=(20, 16), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        layerdrop=0.0, apply_spec_augment=False, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
        final_dropout=0.0, num_labels=4, classifier_proj_size=16, architectures=["Wav2Vec2ForSequenceClassification"])
    return config, [], {"input_values": torch.randn(SAMPLES, 4000), "labels": torch.randint(4, (SAMPLES,))}


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=96, num_mel_bins=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, d_model=32,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=20, max_target_positions=200, dropout=0.0, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, architectures=["WhisperForConditionalGeneration"])
    tokens = torch.randint(4, 96, (SAMPLES, 9))
    return config, [], {"input_features": torch.randn(SAMPLES, 8, 40), "decoder_input_ids": tokens[:, :-1].contiguous(),
                        "labels": tokens[:, 1:].contiguous()}


KINDS = {make.__name__: make for make in (bert, t5, vit, vit_with_loss, wav2vec2, whisper)}


def write(directory, config, flags, fields, accel_path):
    """Writes the model's directory, the exported file and both tables. Returns the model of the directory."""
    model = getattr(transformers, config.architectures[0])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(directory / "hf")
    names = [name for name in fields if name != "labels"]
    cli.main([str(directory / "hf"), str(directory / "model.pt2"), "--weights", "--accel", str(accel_path), "--inputs", ",".join(names), *flags])
    halves = SAMPLES // 2
    for part, rows in (("0", slice(0, halves)), ("1", slice(halves, SAMPLES))):
        save_file({name: tensor[rows].clone() for name, tensor in fields.items()}, directory / f"train-{part}.safetensors")
    save_file({name: tensor[:HELD_OUT].clone() for name, tensor in fields.items()}, directory / "held-out.safetensors")
    # As it comes back: Whisper's encoder then trains its positions, which it does not when it is made.
    return type(model).from_pretrained(directory / "hf")


def config_of(directory, fields, flags, **keys):
    inputs = [name for name in fields if name != "labels"] + (["labels"] if "--loss" in flags else [])
    return train_runs.config(
        directory, PROCESSES, model={"path": str(directory / "model.pt2"), "inputs": inputs, "loss": "model" if "--loss" in flags else "cross_entropy"},
        max_steps=STEPS, eval_every=STEPS, optimizer={"type": "adamw", **OPTIMIZER}, lr_scheduler={"type": "constant"},
        **{"data.train": {"format": "tensors", "path": str(directory / "train-*.safetensors")}, "data.batch_size": BATCH,
           "data.eval": {"format": "tensors", "path": str(directory / "held-out.safetensors")}, "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, "checkpoint": {"every": STEPS}, **keys})


def loss_of(model, fields, rows):
    batch = {name: tensor[rows] for name, tensor in fields.items()}
    batch = {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in batch.items()}
    labels = batch.pop("labels")
    logits = model(**batch).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def train(model, fields):
    """Returns the losses of the steps and the held-out loss."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        first = step * PROCESSES * BATCH
        # The mean of the ranks' means: they have different numbers of labels that count.
        loss = sum(loss_of(model, fields, slice(first + r * BATCH, first + (r + 1) * BATCH)) for r in range(PROCESSES)) / PROCESSES
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        held_out = loss_of(model, fields, slice(0, HELD_OUT)).item()  # The mean over all labels that count.
    return losses, held_out


@pytest.mark.long(but="vit")
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_trains_as_in_python(accel, accel_path, tmp_path, kind):
    torch.manual_seed(3)
    config, flags, fields = KINDS[kind]()
    model = write(tmp_path, config, flags, fields, accel_path)
    said = accel("launch", config_of(tmp_path, fields, flags)).stderr
    losses, held_out = train(model, fields)
    assert train_runs.metrics(tmp_path) == pytest.approx(losses, rel=1e-5)
    assert train_runs.metrics(tmp_path, "eval_loss") == [pytest.approx(held_out, rel=1e-5)]
    assert ("tokens/s" in said) == ("input_ids" in fields) and ("samples/s" in said) != ("input_ids" in fields)
    accel("merge-weights", "out/checkpoints", "back", "--copy-assets", "hf")
    back = type(model).from_pretrained(tmp_path / "back")
    for (name, found), expected in zip(back.named_parameters(), model.parameters(), strict=True):
        # Softmax does not see a bias of all keys. Its gradient is rounding alone, of which AdamW makes whole steps.
        if not name.endswith(("k_proj.bias", "key.bias")):
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-5, msg=name)


def test_pictures_in_bfloat16(accel, accel_path, tmp_path):
    """FSDP 2 casts the picture to the dtype of the weights, as fully_shard does."""
    torch.manual_seed(3)
    config, flags, fields = vit()
    model = write(tmp_path, config, ["--dtype", "bfloat16"], fields, accel_path)
    accel("launch", config_of(tmp_path, fields, flags, mixed_precision="bf16"))
    low = type(model).from_pretrained(tmp_path / "hf", dtype=torch.bfloat16).train()
    first = slice(0, PROCESSES * BATCH)
    with torch.no_grad():
        logits = low(pixel_values=fields["pixel_values"][first].bfloat16()).logits.float()
        loss = torch.nn.functional.cross_entropy(logits, fields["labels"][first].long()).item()
    exact = loss_of(model.eval(), fields, first).item()
    found = train_runs.metrics(tmp_path)[0]
    print(f"difference of the loss from bfloat16 in Python {abs(found - loss):.1e}, from float32 {abs(found - exact):.1e}")
    assert found == pytest.approx(loss, abs=1e-6) and abs(found - exact) > 1e-5


def table(path, **fields):
    save_file({name: torch.as_tensor(value) for name, value in fields.items()}, path)


@pytest.fixture
def launch(accel, tmp_path):
    """launch(FIELDS, KEYS) trains a linear model of the input `x` for 8 classes on the table of these fields."""
    torch.jit.script(torch.nn.Linear(4, 8)).save(str(tmp_path / "gpt.pt"))

    def run(fields, code=0, **keys):
        if fields:
            table(tmp_path / "data.safetensors", **fields)
        config = train_runs.config(tmp_path, 2, **{
            "model": {"path": str(tmp_path / "gpt.pt"), "inputs": ["x"]}, "data.batch_size": 1, "max_steps": 2,
            "data.train": {"format": "tensors", "path": str(tmp_path / "data.safetensors")},
            "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"}, **keys})
        return accel("launch", config, code=code).stderr

    return run


X = torch.arange(24.0).reshape(6, 4) / 10
Y = torch.arange(6)


@pytest.mark.parametrize("fields, keys, said", [
    ({"x": X, "labels": Y[:5]}, {}, "'labels' has 5 samples, but 'x' has 6"),
    ({"x": X, "labels": torch.tensor(3)}, {}, "'labels' is a scalar and has no dimension of samples"),
    ({"x": X, "labels": Y[:0]}, {}, "'labels' has no elements"),
    ({"x": X, "y": Y}, {}, "it has the fields x, y"),
    ({"x": X, "labels": Y.float()}, {}, "cross_entropy needs classes as targets, but 'labels' is of Float"),
    ({"x": X, "labels": Y + 7}, {}, "the target 8 is not a class, of which the model has 8"),
    ({"x": X, "labels": torch.stack([Y, Y], 1)}, {}, "needs logits [..., classes] for targets of shape [1, 2], but forward returns shape [1, 8]"),
    ({"x": X.reshape(3, 2, 4), "labels": Y[:3, None]}, {}, "for targets of shape [1, 1], but forward returns shape [1, 2, 8]"),
    ({"x": X[:1], "labels": Y[:1]}, {}, "1 samples, but a step of 2 processes with batch_size 1 needs 2"),
    ({"x": X.to(torch.float8_e4m3fn), "labels": Y}, {}, "'x' is of float8_e4m3fn, which no model takes as an input"),
    ({"x": X, "labels": Y}, {"data.train.sequence_length": 4}, "sequence_length' means nothing for the format 'tensors'"),
    ({"x": X, "labels": Y}, {"data.train.path": "*.nothing"}, "nothing matches '*.nothing'"),
], ids=lambda value: None if isinstance(value, dict) else value[:30])
def test_tables_that_do_not_fit(launch, fields, keys, said):
    is_seen_by_ranks = any(text in said for text in ("cross_entropy", "not a class", "for targets of shape"))
    found = launch(fields, code=6 if is_seen_by_ranks else 2, **keys)
    assert said in found, found


def test_a_file_that_is_no_table(launch, tmp_path):
    (tmp_path / "data.safetensors").write_bytes(b"nothing at all")
    said = launch(None, code=2)
    assert "it is not a safetensors file" in said and "safetensors.torch.save_file" in said


def test_files_that_do_not_fit_each_other(launch, tmp_path):
    table(tmp_path / "a.safetensors", x=X, labels=Y)
    path = {"data.train.path": str(tmp_path / "?.safetensors")}
    table(tmp_path / "b.safetensors", x=X)
    assert "it has the tensors [x], but" in launch(None, code=2, **path)
    table(tmp_path / "b.safetensors", x=X.double(), labels=Y)
    assert "'x' is float64 [samples, 4], but float32 [samples, 4] in" in launch(None, code=2, **path)


class Copier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 16)

    def forward(self, input_ids):
        return self.table(input_ids)


class OwnLoss(Copier):
    def forward(self, input_ids, labels):
        return torch.nn.functional.cross_entropy(self.table(input_ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def test_tokens_that_are_their_own_labels_are_refused(launch, tmp_path):
    torch.jit.script(Copier()).save(str(tmp_path / "gpt.pt"))
    ids = torch.randint(16, (6, 5))
    inputs = {"model.inputs": ["input_ids"]}
    said = launch({"input_ids": ids, "labels": ids.masked_fill(ids == 3, -100)}, code=2, **inputs)
    assert "'labels' are the tokens of 'input_ids' themselves" in said and "training.model.loss: model" in said
    launch({"input_ids": ids, "labels": torch.cat([ids[:, 1:], torch.full((6, 1), -100)], 1)}, **inputs)
    (tmp_path / "out").rename(tmp_path / "before")
    shifted_twice = {"input_ids": ids, "labels": torch.cat([ids[:, 1:], torch.full((6, 1), -100)], 1)}
    torch.jit.script(OwnLoss()).save(str(tmp_path / "gpt.pt"), _extra_files={"accel.json": json.dumps({"shifts_labels": True})})
    keys = {"model.inputs": ["input_ids", "labels"], "model.loss": "model"}
    said = launch(shifted_twice, code=2, **keys)
    assert "'labels' are the next tokens of 'input_ids', but the model shifts its labels itself" in said
    launch({"input_ids": ids, "labels": ids.clone()}, **keys)
    (tmp_path / "out").rename(tmp_path / "own")
    torch.jit.script(Copier()).save(str(tmp_path / "gpt.pt"))
    said = launch({"input_ids": torch.full((6, 5), 16), "labels": ids}, code=6, **inputs)
    assert "data.safetensors', sample " in said and "token 16 of 'input_ids' is not in the model's vocabulary of 16 tokens" in said


def test_what_the_model_does_not_take_is_left_alone(launch):
    launch({"x": X, "labels": Y, "id": Y.to(torch.uint64), "text": Y[:, None].repeat(1, 9).byte()})


def test_held_out_data_have_to_fit_before_the_first_step(launch, tmp_path):
    eval_keys = {"data.eval": {"format": "tensors", "path": str(tmp_path / "eval.safetensors")}, "eval_every": 2}
    for fields, code, said in (
            ({"x": X, "y": Y}, 2, "the data has no field 'labels'"),
            ({"x": X.double(), "labels": Y}, 6, "'x' is float64 in training.data.eval, but float32 in training.data.train")):
        table(tmp_path / "eval.safetensors", **fields)
        found = launch({"x": X, "labels": Y}, code=code, **eval_keys)
        assert said in found and "step " not in found


@pytest.mark.long
def test_a_run_on_a_table_goes_on_where_it_was(launch, tmp_path):
    fields = {"x": torch.randn(14, 4), "labels": torch.arange(14) % 8}
    keys = {"max_steps": 9, "data.shuffle": True, "checkpoint": {"every": 1, "resume": "auto"}}  # Nine steps are more than an epoch.
    launch(fields, **keys)
    whole = train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    launch(fields, **{**keys, "max_steps": 4})
    launch(fields, **keys)
    assert train_runs.metrics(tmp_path) == whole
    (tmp_path / "out").rename(tmp_path / "again")
    launch(fields, **{**keys, "max_steps": 4})
    said = launch({name: value[:12] for name, value in fields.items()}, code=2, **keys)
    assert "has 12 samples of tensors, but the checkpoint is of a run on 14 samples of tensors" in said
