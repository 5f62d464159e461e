"""accel-export --tokenize reads directories of the package datasets and .parquet files as the same records in JSON lines."""

import json
import os
import subprocess
import sys

import numpy
import pytest
from accel_export import cli
from safetensors.numpy import load_file
from test_tokenize import ANSWER, MARKED, QUESTION, write_tokenizer
from train_runs import ROOT

import needs

pytestmark = pytest.mark.long

# datasets and pyarrow are beside the environment; see make_datasets in tools/dev.
sys.path.append(os.environ.get("ACCEL_DATASETS_PACKAGES", ""))
try:
    import datasets
except ImportError:
    datasets = None

CHAT = [QUESTION, {**ANSWER, "name": "Moses"}, {"role": "user", "content": "And the earth"}, {"role": "assistant", "content": "God, too"}]
# A template that sees whether a message and a tool have a key, which is None in the rows of Arrow that have it not.
NAMED = "{% if tools %}{{ tools | tojson }}{% endif %}" + MARKED.replace(
    "{%- generation -%}", "{%- generation -%}{% if 'name' in m %}{{ m['name'] }}{% endif %}")
RECORDS = {
    "messages": [{"messages": CHAT}, {"messages": [QUESTION, ANSWER]}],
    "tools of texts": [{"messages": [QUESTION, ANSWER], "tools": json.dumps([{"name": name}])} for name in ("heaven", "earth")],
    "tools": [{"messages": [QUESTION, ANSWER], "tools": [tool]} for tool in ({"name": "heaven", "returns": "light"}, {"name": "earth"})],
    "prompts": [{"prompt": "In the beginning", "completion": " God created"}, {"prompt": "the heaven", "completion": " and the earth."}],
    "prompts of messages": [{"prompt": [QUESTION], "completion": [ANSWER]}],
    "text": [{"text": "In the beginning", "page": 1}, {"text": "God created", "page": None}],
    "two kinds": [{"text": "In the beginning", "prompt": None, "completion": None}, {"text": None, "prompt": "the", "completion": " heaven"}],
}


@pytest.fixture
def tokenize(tmp_path):
    """tokenize(PATH...) returns the tensors that accel-export --tokenize writes."""
    if datasets is None:
        needs.missing("the package datasets is not there; tools/dev installs it")

    def run(*paths):
        cli.main(["--tokenize", *map(str, paths), "--tokenizer", str(tmp_path / "hf"), "-o", str(tmp_path / "out.safetensors"), "--overwrite"])
        return load_file(tmp_path / "out.safetensors")

    return run


def write(folder, records):
    """Writes the records in all forms, and returns their paths."""
    dataset = datasets.Dataset.from_list(records)
    dataset.save_to_disk(folder / "saved")
    dataset.to_parquet(folder / "records.parquet")
    (folder / "records.jsonl").write_text("".join(
        json.dumps({key: value for key, value in record.items() if value is not None}) + "\n" for record in records))
    return folder / "saved", folder / "records.parquet", folder / "records.jsonl"


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys() == {"lengths", "input_ids", "label_mask"}
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and numpy.array_equal(ours[name], tensor), name


@pytest.mark.parametrize("kind", RECORDS)
def test_rows_become_the_documents_of_the_same_lines(tokenize, tmp_path, kind):
    write_tokenizer(tmp_path / "hf", NAMED)
    saved, parquet, lines = write(tmp_path, RECORDS[kind])
    expected = tokenize(lines)
    assert_same(tokenize(saved), expected)
    assert_same(tokenize(parquet), expected)
    assert_same(tokenize(lines, saved), {name: numpy.concatenate([tensor, tensor]) for name, tensor in expected.items()})


def test_a_dataset_in_several_files_is_read_in_its_order(tokenize, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "hf")
    words = (ROOT / "examples/data/genesis-exodus.txt").read_text().split()
    records = [{"text": " ".join(words[i:i + 1 + i % 7])} for i in range(2500)]
    datasets.Dataset.from_list(records).save_to_disk(tmp_path / "saved", num_shards=3)
    assert len(list((tmp_path / "saved").glob("*.arrow"))) == 3
    expected = [tokenizer(record["text"] + "</s>")["input_ids"] for record in records]
    found = tokenize(tmp_path / "saved")
    assert found["lengths"].tolist() == [len(ids) for ids in expected]
    assert found["input_ids"].tolist() == [token for ids in expected for token in ids]
    # A selection of rows is saved as rows and not as indices.
    datasets.Dataset.from_list(records).select([7, 3]).save_to_disk(tmp_path / "selected")
    assert tokenize(tmp_path / "selected")["input_ids"].tolist() == expected[7] + expected[3]


def test_tokens_are_taken_as_they_are(tokenize, tmp_path):
    """These are the rows that a tokenizer of transformers and a collator with padding make."""
    write_tokenizer(tmp_path / "hf")
    rows = [{"input_ids": [5, 6, 7, 1, 1], "labels": [-100, 6, 7, -100, -100], "attention_mask": [1, 1, 1, 0, 0], "text": "was this"},
            {"input_ids": [1, 1, 8, 9], "labels": [-100, -100, -100, 9], "attention_mask": [0, 0, 1, 1], "text": "and that"}]
    for path in write(tmp_path, rows):
        found = tokenize(path)
        assert found["lengths"].tolist() == [3, 2] and found["input_ids"].tolist() == [5, 6, 7, 8, 9]
        assert found["label_mask"].tolist() == [0, 1, 1, 0, 1]


def test_masks_of_trl_say_what_is_learned(tokenize, tmp_path):
    write_tokenizer(tmp_path / "hf")
    rows = [{"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 1, 1], "assistant_masks": [0, 1, 1, 0]}]
    for path in write(tmp_path, rows):
        assert tokenize(path)["label_mask"].tolist() == [0, 0, 1, 0]
    (tmp_path / "plain.jsonl").write_text('{"input_ids": [5, 6, 7]}\n')
    assert tokenize(tmp_path / "plain.jsonl")["label_mask"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("row, message", [
    ({"input_ids": [5, 500]}, "row 0: token 1 is 500, but the tokenizer knows 0 to 499"),
    ({"input_ids": [5, -1]}, "row 0: token 1 is -1"),
    ({"input_ids": [5, 6], "labels": [6, 7]}, "row 0: label 0 is 6, but the token is 5\nhint: 'labels' are the tokens themselves"),
    ({"input_ids": [5, 6], "labels": [5]}, "row 0: 'labels' is not a list of whole numbers, one for each of 'input_ids'"),
    ({"input_ids": [[5, 6]]}, "row 0: 'input_ids' is not a list of whole numbers"),
    ({"input_ids": [0.5]}, "row 0: 'input_ids' is not a list of whole numbers"),
    ({"input_ids": [5, 6], "completion_mask": None}, "row 0: 'completion_mask' is null, and without it all tokens would count"),
    ({"input_ids": [5, 6], "seq_lengths": [1, 1]}, "row 0: the record has 'seq_lengths', so that it is several documents"),
    ({"input_ids": [5, 6], "position_ids": [0, 0]}, "row 0: the record has 'position_ids', so that it is several documents"),
    ({"messages": "x"}, "row 0: 'messages' is not a list of messages"),
    ({"question": "x", "answer": "y"}, "has the columns 'question', 'answer'\nhint: a record has 'messages'"),
])
def test_wrong_rows_are_named(tokenize, tmp_path, row, message):
    write_tokenizer(tmp_path / "hf")
    for path in write(tmp_path, [row])[:2]:
        with pytest.raises(SystemExit) as exit:
            tokenize(path)
        assert exit.value.code == 2 and message in str(exit.value) and str(path) in str(exit.value)
    assert not (tmp_path / "out.safetensors").exists()


def test_wrong_directories_are_named(tokenize, tmp_path):
    write_tokenizer(tmp_path / "hf")
    dataset = datasets.Dataset.from_list([{"text": "x"}])
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(tmp_path / "splits")
    dataset.save_to_disk(tmp_path / "damaged")
    next((tmp_path / "damaged").glob("*.arrow")).write_bytes(b"ARROW")
    (tmp_path / "text.parquet").write_text("PAR1")
    for path, message in (("splits", f"has the splits train, test\nhint: name the directory of one, such as '{tmp_path}/splits/train'"),
                          ("hf", "it has no state.json"), ("damaged", "damaged' cannot be read: "),
                          ("text.parquet", "text.parquet' cannot be read: ")):
        with pytest.raises(SystemExit) as exit:
            tokenize(tmp_path / path)
        assert exit.value.code == 2 and message in str(exit.value)
    assert tokenize(tmp_path / "splits/train")["lengths"].tolist() == [2]


@pytest.mark.parametrize("name, package", [("saved", "datasets"), ("records.parquet", "pyarrow")])
def test_a_package_that_is_not_there_is_named(tokenize, tmp_path, name, package):
    write_tokenizer(tmp_path / "hf")
    write(tmp_path, [{"text": "x"}])
    code = (f"import sys; sys.modules['{package}'] = None; from accel_export import cli; "
            f"cli.main(['--tokenize', '{tmp_path / name}', '--tokenizer', '{tmp_path / 'hf'}', '-o', '{tmp_path / 'out'}'])")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert f"hint: pip install {package}, or write" in result.stderr and "cannot be imported" in result.stderr
