"""Training rejects data files that do not hold valid tokens."""

import struct

import numpy
import pytest

import train_runs

TOKENS = numpy.arange(2000, dtype=numpy.uint16) * 7 % 256


def llmc(version):
    return struct.pack("<3I", 20240520, version, TOKENS.size).ljust(1024, b"\0") + TOKENS.tobytes()


def run(accel, directory, name, content, code=0, **data):
    train_runs.export(directory / "gpt.pt")
    (directory / name).write_bytes(content)
    (directory / "out/metrics.jsonl").unlink(missing_ok=True)
    config = train_runs.config(directory, 1, directory / name, max_steps=2, **{
        "data.train": {"format": "tokens", "path": str(directory / name), "sequence_length": 32, **data}})
    return accel("launch", config, code=code).stderr


def saved_npy(directory, array):
    numpy.save(directory / "saved.npy", array)
    return (directory / "saved.npy").read_bytes()


def test_an_npy_with_a_wrong_magic_is_refused(accel, tmp_path):
    content = saved_npy(tmp_path, TOKENS)
    run(accel, tmp_path, "good.npy", content)
    said = run(accel, tmp_path, "bad.npy", b"\x93NUMBY" + content[6:], code=2)
    assert "bad.npy': its name says that it is a NumPy array, but its first bytes are not those of one" in said


def test_an_llmc_file_of_an_unknown_version_is_refused(accel, tmp_path):
    run(accel, tmp_path, "good.bin", llmc(1))
    said = run(accel, tmp_path, "bad.bin", llmc(2), code=2)
    assert "bad.bin': llm.c's header has magic 20240520 and version 2" in said


def test_tokens_without_a_header_are_asked_for(accel, tmp_path):
    said = run(accel, tmp_path, "raw.bin", TOKENS.tobytes(), code=2)
    assert "neither .npy nor llm.c's token file" in said
    assert "set dtype: uint16 or dtype: uint32" in said
    run(accel, tmp_path, "raw.bin", TOKENS.tobytes(), dtype="uint16")
    of_16_bits = train_runs.metrics(tmp_path)
    run(accel, tmp_path, "raw32.bin", TOKENS.astype(numpy.uint32).tobytes(), dtype="uint32")
    assert train_runs.metrics(tmp_path) == of_16_bits


@pytest.mark.parametrize("array", [TOKENS.astype(numpy.float32), TOKENS.astype(">u2"), TOKENS.reshape(20, 100),
                                   numpy.asfortranarray(TOKENS.reshape(20, 100))],
                         ids=["floats", "big-endian", "two dimensions", "Fortran order"])
def test_an_array_of_another_kind_is_refused(accel, tmp_path, array):
    assert "the .npy array is not" in run(accel, tmp_path, "data.npy", saved_npy(tmp_path, array), code=2)


def test_arrays_of_signed_integers_are_the_same_tokens(accel, tmp_path):
    run(accel, tmp_path, "data.npy", saved_npy(tmp_path, TOKENS))
    unsigned = train_runs.metrics(tmp_path)
    for kind in (numpy.int32, numpy.int64):
        run(accel, tmp_path, "data.npy", saved_npy(tmp_path, TOKENS.astype(kind)))
        assert train_runs.metrics(tmp_path) == unsigned
    negative = TOKENS.astype(numpy.int64)
    negative[40] = -100
    said = run(accel, tmp_path, "data.npy", saved_npy(tmp_path, negative), code=6)
    assert "data.npy': -100 at position 40 is not a token, which is from 0 to 4294967295" in said


def test_a_token_beyond_the_vocabulary_is_named(accel, tmp_path):
    """The error names the file and comes before any computation. The model has 256 tokens."""
    tokens = TOKENS.copy()
    tokens[77] = 300
    said = run(accel, tmp_path, "data.npy", saved_npy(tmp_path, tokens), code=6)
    assert "data.npy': token 300 at position 77 is not in the model's vocabulary of 256 tokens" in said
    assert "was the data made with another tokenizer" in said
    assert "index out of range" not in said and "Traceback" not in said


def test_a_token_beyond_the_vocabulary_is_named_in_held_out_data(accel, tmp_path):
    numpy.save(tmp_path / "held_out.npy", numpy.full(100, 256, numpy.uint16))
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=1, eval_every=1, **{
        "data.eval": {"format": "tokens", "path": str(tmp_path / "held_out.npy"), "sequence_length": 32}})
    said = accel("launch", config, code=6).stderr
    assert "held_out.npy': token 256 at position 0 is not in the model's vocabulary of 256 tokens" in said


@pytest.mark.parametrize("mesh", [{}, {"parallelism_config.dp_replicate_size": 2, "parallelism_config.dp_shard_size": 2}],
                         ids=["", "replicas"])
def test_the_rank_with_the_wrong_token_is_the_one_that_is_blamed(accel, tmp_path, mesh):
    """Rank 2 reads the third batch of four windows. It writes its error before its groups end and other ranks fail."""
    tokens = TOKENS.copy()
    tokens[2 * 4 * 32 + 5] = 999
    numpy.save(tmp_path / "data.npy", tokens)
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 4, max_steps=2, **mesh, **{
        "data.train": {"format": "tokens", "path": str(tmp_path / "data.npy"), "sequence_length": 32}})
    said = accel("launch", config, code=6).stderr
    assert "rank 2 of 4 failed" in said and "token 999 at position 261" in said
