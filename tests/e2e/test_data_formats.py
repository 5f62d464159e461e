"""The same tokens train the same model, whatever format of file holds them."""

import json
import math
import struct

import numpy
import pytest

import train_runs

TOKENS = (numpy.arange(2000) * 7 % 251).astype(numpy.uint16)


def write_megatron(index, tokens, lengths, code):
    """Writes the two files that Megatron-LM's IndexedDatasetBuilder writes for one sequence of each of the lengths,
    which are documents: magic, version, code of the dtype, numbers of sequences and of entries of documents; lengths
    as int32, places in bytes as int64, first sequences of the documents as int64."""
    tokens.tofile(index.with_suffix(".bin"))
    ends = numpy.cumsum(lengths)
    index.write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(lengths) + 1)
                      + numpy.asarray(lengths, numpy.int32).tobytes()
                      + ((ends - lengths) * tokens.itemsize).astype(numpy.int64).tobytes()
                      + numpy.arange(len(lengths) + 1, dtype=numpy.int64).tobytes())


def run(accel, directory, code=0, **source):
    """Trains two steps on two ranks, and returns what metrics.jsonl says, or the errors."""
    config = configured(directory, **source)
    said = accel("launch", config, code=code).stderr
    return train_runs.metrics(directory) if code == 0 else said


def configured(directory, **source):
    if not (directory / "gpt.pt").exists():
        train_runs.export(directory / "gpt.pt")
    (directory / "out/metrics.jsonl").unlink(missing_ok=True)
    return train_runs.config(directory, 2, max_steps=2, **{"data.train": {"sequence_length": 32, **source}})


def of_tokens(accel, directory):
    """What the same training says of the tokens in a .npy file."""
    numpy.save(directory / "tokens.npy", TOKENS)
    return run(accel, directory, format="tokens", path=str(directory / "tokens.npy"))


def test_megatrons_documents_are_one_stream(accel, tmp_path):
    expected = of_tokens(accel, tmp_path)
    write_megatron(tmp_path / "a_text_document.idx", TOKENS[:700], [300, 0, 399, 1], 8)
    write_megatron(tmp_path / "b_text_document.idx", TOKENS[700:].astype(numpy.int32), [1300], 4)
    assert run(accel, tmp_path, format="megatron", path=str(tmp_path / "*.idx")) == expected


def test_a_truncated_file_of_megatron_ends_before_anything_starts(accel, tmp_path):
    index = tmp_path / "text_document.idx"
    write_megatron(index, TOKENS, [1000, 1000], 8)
    tokens = index.with_suffix(".bin").read_bytes()
    index.with_suffix(".bin").write_bytes(tokens[:-2])
    said = run(accel, tmp_path, code=2, format="megatron", path=str(index))
    assert "text_document.idx': the index says that sequence 1 has 1000 tokens of 2 bytes from byte 2000 on, but the " \
           ".bin file has 3998 bytes" in said
    assert not (tmp_path / "out").exists()
    said = run(accel, tmp_path, code=2, format="megatron", path=str(index.with_suffix(".bin")))
    assert "'format: megatron' reads an index, whose name ends in .idx" in said


def test_lines_of_token_ids_are_one_stream(accel, tmp_path):
    expected = of_tokens(accel, tmp_path)
    lines = [part.tolist() for part in numpy.split(TOKENS, [1, 500, 500, 1900])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(
        {"text": "", "input_ids": line, "attention_mask": [1] * len(line)}, separators=(",", ":")) for line in lines[2:]))
    assert run(accel, tmp_path, format="jsonl", path=str(tmp_path / "*.jsonl")) == expected


def test_lines_of_text_end_before_anything_starts(accel, tmp_path):
    (tmp_path / "chat.jsonl").write_text('[1, 2]\n{"text": "In the beginning"}\n')
    said = run(accel, tmp_path, code=2, format="jsonl", path=str(tmp_path / "chat.jsonl"))
    assert "chat.jsonl': line 2: it is an object without 'input_ids'" in said
    assert "`accel-export --tokenize` makes tokens of chats, prompts and texts" in said
    assert not (tmp_path / "out").exists()


def test_random_tokens_need_no_file(accel, tmp_path):
    source = {"format": "synthetic", "vocabulary": 200, "samples": 40}
    losses = run(accel, tmp_path, **source)
    # The weights are small, so that the model begins with about the same probability for each of its tokens.
    assert losses[0] == pytest.approx(math.log(256), rel=0.2)
    assert run(accel, tmp_path, **source) == losses
    checked = json.loads(accel("check", "--json", configured(tmp_path, **source)).stdout)
    assert checked["training_data"]["samples"] == 40
    held_out = {"format": "synthetic", "vocabulary": 200, "samples": 9, "sequence_length": 32}
    evaluated = train_runs.config(tmp_path, 2, **{"data.eval": held_out})
    [result] = json.loads(accel("evaluate", "--json", evaluated).stdout)["results"]
    assert (result["data"], result["samples"]) == ("synthetic", 9)
    said = accel("evaluate", evaluated, "--data", train_runs.TEXT, code=2).stderr
    assert "the format of the configuration's data is 'synthetic', which has no files" in said


def test_random_tokens_beyond_the_vocabulary_are_an_error(accel, tmp_path):
    said = run(accel, tmp_path, code=6, format="synthetic", vocabulary=257, samples=40)
    assert "vocabulary: 257 has tokens that the model, which knows 256, does not" in said
    said = run(accel, tmp_path, code=2, format="synthetic", vocabulary=256, samples=40, path="x.txt")
    assert "'training.data.train.path' means nothing for the format 'synthetic'" in said


@pytest.mark.long
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_mixture_has_the_samples_of_its_sources(accel, tmp_path, shuffle):
    """With equal weights and sizes, it is one file with the samples of the first and then those of the second."""
    def losses(**source):
        configured(tmp_path)
        accel("launch", train_runs.config(tmp_path, 2, max_steps=4, **{
            "data.train": {"format": "tokens", "sequence_length": 32, **source}, "data.shuffle": shuffle, "data.batch_size": 1}))
        return train_runs.metrics(tmp_path)

    for name, tokens in {"both": TOKENS[:257], "a": TOKENS[:129], "b": TOKENS[128:257]}.items():
        numpy.save(tmp_path / f"{name}.npy", tokens)
    a, b = str(tmp_path / "a.npy"), str(tmp_path / "b.npy")
    expected = losses(path=str(tmp_path / "both.npy"))
    assert losses(mixture={a: 1, b: 1}) == expected
    assert losses(mixture={b: 1, a: 1}) != expected
    alone = ("--set", "training.data.train.mixture=null", "--set", f"training.data.train.path={b}")
    found = [json.loads(accel("evaluate", "--json", tmp_path / "config.yaml", "--data", a, *more).stdout)["results"] for more in ((), alone)]
    assert found[0] == found[1] and found[0][0]["samples"] == 4


def test_a_run_goes_on_with_the_same_mixture_alone(accel, tmp_path):
    for name, tokens in {"a": TOKENS[:129], "b": TOKENS[500:629]}.items():
        numpy.save(tmp_path / f"{name}.npy", tokens)

    def launch(a, b, code=0, **keys):
        mixture = {str(tmp_path / "a.npy"): a, str(tmp_path / "b.npy"): b}
        config = train_runs.config(tmp_path, 2, **{"data.train": {"format": "tokens", "sequence_length": 32, "mixture": mixture},
                                                   "data.shuffle": True, "checkpoint": {"every": 3}, **keys})
        return accel("launch", config, code=code).stderr

    train_runs.export(tmp_path / "gpt.pt")
    launch(2, 1, max_steps=5)
    whole = train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    launch(2, 1, max_steps=3)
    launch(0.4, 0.2, max_steps=5)
    assert train_runs.metrics(tmp_path) == whole and len(whole) == 5
    assert "resuming: contents of training.data.train" in launch(1, 2, max_steps=6)
    assert "training.data.train has 20 samples of 32 tokens, but the checkpoint is of a run on 12" in launch(4, 1, max_steps=7, code=2)
