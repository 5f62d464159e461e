"""Directories of the package datasets, and other Arrow files, are read as the package and pyarrow read them."""

import json
import os
import subprocess
import sys

import numpy
import pytest
import train_runs
import yaml
from accel_export import cli
from safetensors.numpy import save_file
from test_tokenize import write_tokenizer

import needs

pytestmark = pytest.mark.long

# datasets and pyarrow are beside the environment; see make_datasets in tools/dev.
sys.path.append(os.environ.get("ACCEL_DATASETS_PACKAGES", ""))
try:
    import datasets
    import pyarrow
except ImportError:
    datasets = None


@pytest.fixture
def dump(accel_path):
    """dump(PATH..., format="arrow", length=0, packing="") returns what samples-dump-tool says of each path."""
    if datasets is None:
        needs.missing("the package datasets is not there; tools/dev installs it")
    tool = accel_path.parents[2] / "tests/unit/data/samples-dump-tool"

    def run(*paths, format="arrow", length=0, packing=""):
        result = subprocess.run([tool, format, str(length), packing, *map(str, paths)], capture_output=True, text=True,
                                timeout=300)
        assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
        said = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(said) == len(paths)
        return said if len(paths) > 1 else said[0]

    return run


def fields_of(said):
    assert "error" not in said, said
    return {field["name"]: field for field in said["fields"]}


def assert_field(field, rows):
    """The field has the values of an array whose first dimension counts the samples."""
    assert field["obstacle"] == "" and field["dtype"] == rows.dtype.name and field["shape"] == list(rows.shape[1:])
    assert field["rows"] == [numpy.ascontiguousarray(row).tobytes().hex() for row in rows]


def columns(rows=2500, seed=0):
    random = numpy.random.default_rng(seed)
    features = {
        "input_ids": datasets.List(datasets.Value("int32")), "labels": datasets.List(datasets.Value("int64")),
        "attention_mask": datasets.List(datasets.Value("int8")), "label": datasets.ClassLabel(names=["a", "b", "c"]),
        "weight": datasets.Value("float64"), "pixel_values": datasets.Array3D((3, 2, 4), "uint8"),
        "fixed": datasets.List(datasets.Value("float32"), length=5), "halves": datasets.List(datasets.List(datasets.Value("float16"))),
        "large": datasets.LargeList(datasets.Value("uint16")),
    }
    values = {
        "input_ids": random.integers(0, 1000, (rows, 7), dtype="int32"), "labels": random.integers(-100, 1000, (rows, 7)),
        "attention_mask": random.integers(0, 2, (rows, 7), dtype="int8"), "label": random.integers(0, 3, rows),
        "weight": random.random(rows), "pixel_values": random.integers(0, 256, (rows, 3, 2, 4), dtype="uint8"),
        "fixed": random.random((rows, 5), dtype="float32"), "halves": random.random((rows, 2, 3)).astype("float16"),
        "large": random.integers(0, 60000, (rows, 3), dtype="uint16"),
    }
    return features, values


def saved(folder, features, values, **options):
    dataset = datasets.Dataset.from_dict(
        {name: value.tolist() if isinstance(value, numpy.ndarray) else value for name, value in values.items()},
        features=datasets.Features(features))
    dataset.save_to_disk(folder, **options)
    return dataset


@pytest.mark.parametrize("files", [1, 3])
def test_rows_are_those_of_the_package(dump, tmp_path, files):
    features, values = columns()
    features |= {"text": datasets.Value("string"), "flag": datasets.Value("bool")}
    values |= {"text": ["a" * (i % 7) for i in range(2500)], "flag": [i % 2 == 0 for i in range(2500)]}
    saved(tmp_path / "saved", features, values, num_shards=files)
    assert len(list((tmp_path / "saved").glob("*.arrow"))) == files
    said = dump(tmp_path / "saved")
    found = fields_of(said)
    assert said["samples"] == 2500 and list(found) == sorted(features)
    loaded = datasets.load_from_disk(str(tmp_path / "saved"))
    for name, expected in values.items():
        if name in ("text", "flag"):
            continue
        read = numpy.array(loaded.with_format("arrow")[:][name].to_pylist()).astype(expected.dtype)
        assert numpy.array_equal(read, expected)
        assert_field(found[name], read)
    assert found["text"]["obstacle"] == "has texts" and "booleans" in found["flag"]["obstacle"]
    assert found["text"]["rows"] == found["flag"]["rows"] == []


def test_rows_that_were_selected_filtered_and_sorted_are_the_rows_of_the_package(dump, tmp_path):
    features, values = columns(300)
    dataset = saved(tmp_path / "all", features, values)
    changed = dataset.shuffle(seed=3).filter(lambda row: row["label"] != 1).select(range(5, 90)).remove_columns("large")
    changed.save_to_disk(tmp_path / "changed")
    found = fields_of(dump(tmp_path / "changed"))
    assert "large" not in found
    loaded = datasets.load_from_disk(str(tmp_path / "changed"))
    for name in found:
        assert_field(found[name], numpy.array(loaded.with_format("arrow")[:][name].to_pylist()).astype(values[name].dtype))


def test_slices_of_tables_and_files_with_a_footer(dump, tmp_path):
    """Batches of one row and without rows, and the file format."""
    features, values = columns(64)
    table = saved(tmp_path / "all", features, values).data.table
    expected = {name: value[10:50] for name, value in values.items()}
    for name, writer in (("a.arrow", pyarrow.ipc.new_stream), ("b.arrow", pyarrow.ipc.new_file)):
        with writer(tmp_path / name, table.schema) as out:
            for begin, count in ((10, 1), (11, 0), (11, 30), (41, 9)):
                out.write_batch(table.slice(begin, count).combine_chunks().to_batches()[0] if count else
                                pyarrow.RecordBatch.from_pylist([], table.schema))
    found = dump(tmp_path / "a.arrow", tmp_path / "b.arrow", tmp_path / "*.arrow")
    for said in found[:2]:
        for name, rows in expected.items():
            assert_field(fields_of(said)[name], rows)
    assert found[2]["samples"] == 80
    assert_field(fields_of(found[2])["label"], numpy.concatenate([expected["label"]] * 2))


def test_columns_that_are_no_tensors_stay_apart(dump, tmp_path):
    """Every type of Arrow takes its place among the nodes and buffers, so that a column behind it is found."""
    rows = 4
    others = {
        "null": pyarrow.nulls(rows), "texts": pyarrow.array(["a"] * rows), "large_texts": pyarrow.array(["a"] * rows, pyarrow.large_string()),
        "views": pyarrow.array(["a text that is longer than twelve bytes"] * rows, pyarrow.string_view()),
        "views_of_bytes": pyarrow.array([b"x"] * rows, pyarrow.binary_view()), "bytes": pyarrow.array([b"x"] * rows),
        "large_bytes": pyarrow.array([b"x"] * rows, pyarrow.large_binary()), "four": pyarrow.array([b"abcd"] * rows, pyarrow.binary(4)),
        "bool": pyarrow.array([True] * rows), "decimal": pyarrow.array([1] * rows, pyarrow.decimal128(9, 2)),
        "date": pyarrow.array([1] * rows, pyarrow.date32()), "time": pyarrow.array([1] * rows, pyarrow.time64("us")),
        "stamp": pyarrow.array([1] * rows, pyarrow.timestamp("s", "UTC")), "duration": pyarrow.array([1] * rows, pyarrow.duration("s")),
        "interval": pyarrow.array([(1, 2, 3)] * rows, pyarrow.month_day_nano_interval()),
        "struct": pyarrow.array([{"a": 1, "b": ["x"]}] * rows), "map": pyarrow.array([[("a", 1)]] * rows, pyarrow.map_("string", "int64")),
        "dictionary": pyarrow.array(["a"] * rows).dictionary_encode(), "dictionaries": pyarrow.array(
            [["a"]] * rows, pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string()))),
        "runs": pyarrow.RunEndEncodedArray.from_arrays([1, rows], [1.0, 2.0]),
        "dense": pyarrow.UnionArray.from_dense(pyarrow.array([0, 1, 0, 1], "int8"), pyarrow.array([0, 0, 1, 1], "int32"),
                                               [pyarrow.array([1, 2]), pyarrow.array(["a", "b"])]),
        "sparse": pyarrow.UnionArray.from_sparse(pyarrow.array([0, 1, 0, 1], "int8"), [pyarrow.array([1] * 4), pyarrow.array(["a"] * 4)]),
        "list_view": pyarrow.array([[1]] * rows, pyarrow.list_view(pyarrow.int64())),
        "texts_in_lists": pyarrow.array([["a", "b"]] * rows), "nulls_in_rows": pyarrow.array([1, None, 3, 4]),
        "nulls_in_lists": pyarrow.array([[1], [None], [3], [4]]), "null_lists": pyarrow.array([[1], None, [3], [4]]),
        "lengths": pyarrow.array([[1], [1, 2], [3], [4]]), "empty": pyarrow.array([[]] * rows, pyarrow.list_(pyarrow.int32())),
        "none": pyarrow.array([[]] * rows, pyarrow.list_(pyarrow.int32(), 0)),
        "extension": pyarrow.ExtensionArray.from_storage(pyarrow.fixed_shape_tensor(pyarrow.int32(), [2]),
                                                         pyarrow.array([[1, 2]] * rows, pyarrow.list_(pyarrow.int32(), 2))),
    }
    numbers = pyarrow.array(numpy.arange(rows * 2, dtype="int64").reshape(rows, 2).tolist(), pyarrow.list_(pyarrow.int64()))
    arrays = {}
    for name, array in others.items():
        assert len(array) == rows
        arrays |= {name: array, "after_" + name: numbers}
    table = pyarrow.table(arrays)
    for name, writer in (("a", pyarrow.ipc.new_stream), ("b", pyarrow.ipc.new_file)):
        with writer(tmp_path / name, table.schema) as out:
            out.write_table(table)
    for said in dump(tmp_path / "a", tmp_path / "b"):
        found = fields_of(said)
        for name in others:
            assert found[name]["obstacle"] and found[name]["rows"] == [], name
            assert_field(found["after_" + name], numpy.arange(rows * 2).reshape(rows, 2))
        assert {found[name]["obstacle"] for name in ("nulls_in_rows", "nulls_in_lists", "null_lists")} == {"has nulls"}
        assert found["lengths"]["obstacle"] == "has lists of different lengths, such as 1 and 2"
        assert found["extension"]["obstacle"] == "has the extension type 'arrow.fixed_shape_tensor'"


def test_rows_whose_shapes_differ_between_batches_and_files(dump, tmp_path):
    for name, length in (("a", 3), ("b", 4)):
        table = pyarrow.table({"x": [list(range(length))] * 2, "y": [1, 2]})
        with pyarrow.ipc.new_stream(tmp_path / f"{name}.arrow", table.schema) as out:
            out.write_table(table)
    found = fields_of(dump(tmp_path / "*.arrow"))
    assert found["x"]["obstacle"] == (f"has rows of different shapes, such as [3] in '{tmp_path / 'a.arrow'}' "
                                      f"and [4] in '{tmp_path / 'b.arrow'}'") and found["x"]["rows"] == []
    assert_field(found["y"], numpy.array([1, 2, 1, 2]))


@pytest.mark.parametrize("types", [
    ("fixed", "fixed"), ("list", "large"), ("large", "list"), ("list", "fixed"), ("fixed", "list"), ("fixed", "large", "list")])
@pytest.mark.parametrize("lengths", [(4, 4, 4), (4, 8, 4), (8, 4, 4)], ids=str)
def test_the_types_of_lists_may_differ_between_files(dump, tmp_path, types, lengths):
    """Each file is read by its own schema: pyarrow has the same rows, and another length is another shape."""
    type_of = {"list": lambda length: pyarrow.list_(pyarrow.int32()), "large": lambda length: pyarrow.large_list(pyarrow.int32()),
               "fixed": lambda length: pyarrow.list_(pyarrow.int32(), length)}
    for i, (name, length) in enumerate(zip(types, lengths)):
        rows = numpy.arange(100 * i, 100 * i + 3 * length).reshape(3, length).tolist()
        table = pyarrow.table({"x": pyarrow.array(rows, type_of[name](length)), "y": pyarrow.array([i] * 3)})
        with pyarrow.ipc.new_stream(tmp_path / f"{i}.arrow", table.schema) as out:
            out.write_table(table)
    read = [pyarrow.ipc.open_stream(path).read_all() for path in sorted(tmp_path.glob("*.arrow"))]
    found = fields_of(dump(tmp_path / "*.arrow"))
    assert_field(found["y"], numpy.concatenate([table["y"].to_numpy() for table in read]))
    if len(set(lengths[:len(types)])) == 1:
        assert_field(found["x"], numpy.array([row for table in read for row in table["x"].to_pylist()], dtype="int32"))
    else:
        assert found["x"]["obstacle"] == (f"has rows of different shapes, such as [{lengths[0]}] in '{tmp_path / '0.arrow'}' "
                                          f"and [{lengths[1]}] in '{tmp_path / '1.arrow'}'") and found["x"]["rows"] == []


def test_a_column_that_one_source_of_a_mixture_cannot_read_is_no_field(dump, tmp_path):
    """The column `texts` has texts in a and numbers in b. pyarrow has the same values of the column that both have."""
    tables = {"a": {"x": [1, 2], "nulls": [1, 2], "lengths": [[1, 2], [3, 4]], "text": ["a", "b"], "texts": ["a", "b"]},
              "b": {"x": [3, 4], "nulls": [3, None], "lengths": [[5], [6, 7]], "text": ["c", "d"], "texts": [5, 6]}}
    for name, arrays in tables.items():
        table = pyarrow.table(arrays)
        with pyarrow.ipc.new_stream(tmp_path / name, table.schema) as out:
            out.write_table(table)
    a, b = tmp_path / "a", tmp_path / "b"
    obstacles = {"nulls": f"of '{b}' has nulls", "lengths": f"of '{b}' has lists of different lengths, such as 1 and 2",
                 "texts": f"of '{a}' has texts"}
    for first, second in ((a, b), (b, a)):
        found = fields_of(dump(f"{first}|{second}"))
        read = [pyarrow.ipc.open_stream(path).read_all()["x"].to_numpy() for path in (first, second)]
        assert_field(found["x"], numpy.concatenate(read))
        assert {name: found[name]["obstacle"] for name in tables["a"] if name != "x"} == {**obstacles, "text": f"of '{first}' has texts"}
        assert all(found[name]["rows"] == [] for name in (*obstacles, "text"))


@pytest.mark.parametrize("name, change, message, hint", [
    ("splits", lambda d: datasets.DatasetDict({"train": d, "test": d}), "saved' has the splits train, test", "name the directory of one, such as"),
    ("no rows", lambda d: d.select([]), "state.json': the dataset has no rows", ""),
])
def test_datasets_that_cannot_be_read_are_named(dump, tmp_path, name, change, message, hint):
    change(datasets.Dataset.from_dict({"x": [1, 2]})).save_to_disk(tmp_path / "saved")
    said = dump(tmp_path / "saved")
    assert message in said["error"] and hint in said["hint"] and said["kind"] == "usage"


def test_damaged_directories_are_named(dump, tmp_path):
    folder = tmp_path / "saved"

    def refused(message, hint, path=folder):
        said = dump(path)
        assert message in said["error"] and hint in said["hint"] and said["kind"] == "usage", said

    def state(**keys):
        (folder / "state.json").write_text(json.dumps({**whole, **keys}))

    saved(folder, *columns(10), num_shards=2)
    whole = json.loads((folder / "state.json").read_text())
    refused("no file matches", "", tmp_path / "nothing")
    state(_indices_data_files=[{"filename": "indices.arrow"}])
    refused("selects its rows by indices", "flatten_indices()")
    state(_data_files=[])
    refused("the dataset has no rows", "")
    state(_data_files=[{"filename": "../x.arrow"}])
    refused("'../x.arrow' is not the name of a file in the directory", "")
    state(_data_files=[{"filename": "data-00000-of-00002.arrow"}, {"filename": "lost.arrow"}])
    refused("the file 'lost.arrow' that it names is not there", "copy the whole directory")
    (folder / "state.json").write_text("{")
    refused("state.json", "save the dataset again")
    (folder / "state.json").unlink()
    refused("is a directory without state.json", "name a directory of save_to_disk")
    with pyarrow.ipc.new_stream(tmp_path / "other.arrow", pyarrow.schema({"x": pyarrow.int64()})) as out:
        out.write_table(pyarrow.table({"x": [1]}))
    (folder / "other.arrow").write_bytes((tmp_path / "other.arrow").read_bytes())
    refused("other.arrow': it has the columns x int64, but", "", folder / "*.arrow")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_are_refused_by_name(dump, tmp_path, codec):
    table = pyarrow.table({"x": list(range(1000))})
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema, options=pyarrow.ipc.IpcWriteOptions(compression=codec)) as out:
        out.write_table(table)
    said = dump(tmp_path / "a.arrow")
    assert f"record batch 0: is compressed with {codec}" in said["error"] and "save_to_disk" in said["hint"]


@pytest.mark.parametrize("format, packing, length", [("arrow", "", 0), ("documents", "none", 16)])
def test_lists_of_one_size_need_their_items(dump, tmp_path, format, packing, length):
    table = pyarrow.table({"input_ids": pyarrow.array([[1] * 77] * 3, pyarrow.list_(pyarrow.int32(), 77))})
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as out:
        out.write_table(table)
    assert dump(tmp_path / "a.arrow", format=format, packing=packing, length=length)["samples"] == 3
    whole = (tmp_path / "a.arrow").read_bytes()
    assert whole.count(b"\x4d\0\0\0") == 1
    (tmp_path / "a.arrow").write_bytes(whole.replace(b"\x4d\0\0\0", b"\x4e\0\0\0"))
    said = dump(tmp_path / "a.arrow", format=format, packing=packing, length=length)
    assert "record batch 0: column 'input_ids': it has 3 lists of 78 items, but 231 items" in said["error"]


@pytest.mark.parametrize("format, packing, length", [("arrow", "", 0), ("documents", "best_fit", 16)])
def test_every_prefix_and_changed_bytes_are_read_or_refused(dump, tmp_path, format, packing, length):
    """A file that is cut anywhere is refused. One with a changed byte in a message is refused or has other values."""
    features, values = columns(5)
    for name in ("pixel_values", "fixed", "halves", "large", "label", "weight"):
        del features[name], values[name]
    values["labels"], values["attention_mask"] = values["input_ids"].astype("int64"), numpy.ones((5, 7), "int8")
    saved(tmp_path / "saved", features, values)
    whole = next((tmp_path / "saved").glob("*.arrow")).read_bytes()
    cut = [tmp_path / f"cut{end}" for end in range(0, len(whole), 3)]
    for path, end in zip(cut, range(0, len(whole), 3)):
        path.write_bytes(whole[:end])
    for said in dump(*cut, format=format, packing=packing, length=length):
        assert said["kind"] == "usage" and said["error"]
    random = numpy.random.default_rng(1)
    changed = [tmp_path / f"changed{i}" for i in range(1500)]
    for path in changed:
        bytes_ = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            bytes_[random.integers(len(bytes_))] = random.integers(256)
        path.write_bytes(bytes_)
    outcomes = dump(*changed, format=format, packing=packing, length=length)
    assert {said.get("kind", "read") for said in outcomes} == {"read", "usage"}


def test_the_same_numbers_have_the_same_fingerprint_in_safetensors(dump, tmp_path):
    """What a run compares of its data does not depend on how they are stored."""
    features, values = columns(90)
    saved(tmp_path / "saved", features, values)
    save_file({name: numpy.ascontiguousarray(array) for name, array in values.items()}, tmp_path / "rows.safetensors")
    expected = dump(tmp_path / "rows.safetensors", format="tensors")
    found = dump(tmp_path / "saved")
    assert found == expected
    values["weight"][-1] += 1
    saved(tmp_path / "other", features, values)
    assert dump(tmp_path / "other")["fingerprint"] != expected["fingerprint"]


def token_rows():
    """Rows as a collator and trl leave them: labels of -100, masks of what counts, and rows without tokens."""
    random = numpy.random.default_rng(5)
    rows = []
    for length in [5, 0, 12, 1, 30, 7, 0, 16, 9, 2] * 150:
        ids = random.integers(0, 500, length)
        counts = random.random((3, length)) < 0.7
        rows.append({"input_ids": ids.tolist(), "labels": numpy.where(counts[0], ids, -100).tolist(), "attention_mask": [1] * length,
                     "completion_mask": counts[1].astype(int).tolist(), "assistant_masks": counts[2].astype(int).tolist()})
    return rows


def exported(tmp_path, *paths):
    write_tokenizer(tmp_path / "hf", pad_token="<s>")
    cli.main(["--tokenize", *map(str, paths), "--tokenizer", str(tmp_path / "hf"), "-o", str(tmp_path / "out.safetensors"), "--overwrite"])
    return tmp_path / "out.safetensors"


@pytest.mark.parametrize("packing, length", [("none", 16), ("none", 40), ("best_fit", 32)])
@pytest.mark.parametrize("kept", [{"input_ids"}, {"input_ids", "labels"}, {"input_ids", "completion_mask", "attention_mask"},
                                  {"input_ids", "labels", "attention_mask", "completion_mask", "assistant_masks"}], ids=len)
def test_documents_are_those_of_accel_export(dump, tmp_path, kept, packing, length):
    rows = [{name: row[name] for name in kept} for row in token_rows()]
    features = datasets.Features({name: datasets.List(datasets.Value("int32")) for name in kept})
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "saved", num_shards=2)
    found = dump(tmp_path / "saved", format="documents", packing=packing, length=length)
    assert found == dump(exported(tmp_path, tmp_path / "saved"), format="documents", packing=packing, length=length)
    assert found["samples"] > 10


@pytest.mark.parametrize("row, message, hint", [
    ({"input_ids": [5, -1]}, "document 0: token -1 at position 1 of it is not a token", ""),
    ({"input_ids": [5, 6], "labels": [6, 7]}, "document 0: label 0 is 6, but the token is 5", "the tokens themselves or -100"),
    ({"input_ids": [5, 6], "labels": [5]}, "'labels' has 1 numbers in a row in which 'input_ids' has 2", "one label"),
    ({"input_ids": [[5, 6]]}, "the column 'input_ids' has int32 in 2 levels of lists; expected a list of whole numbers", "cast_column"),
    ({"input_ids": [0.5]}, "the column 'input_ids' has float64 in 1 levels", "cast_column"),
    ({"input_ids": [5, None]}, "the column 'input_ids' has nulls", "dataset.map"),
    ({"input_ids": [5, 6], "attention_mask": [1, 0]}, "document 0: attention_mask hides token 1", "tokenize without padding"),
    ({"input_ids": [5, 6], "completion_mask": [False, True]}, "the column 'completion_mask' has booleans", "cast_column"),
    ({"input_ids": [5, 6], "position_ids": [0, 0]}, "its rows have 'position_ids', so that each is several documents", "format: arrow"),
    ({"input_ids": [5, 6], "labels": [-100, -100]}, "no token counts as a label", ""),
    ({"input_ids": []}, "saved' has no rows with tokens", ""),
    ({"text": "In the beginning"}, "it has no column 'input_ids'", "accel-export --tokenize"),
])
def test_rows_that_are_no_documents_are_named(dump, tmp_path, row, message, hint):
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))}) if row == {"input_ids": []} else None
    datasets.Dataset.from_list([row], features=features).save_to_disk(tmp_path / "saved")
    said = dump(tmp_path / "saved", format="documents", packing="none", length=8)
    assert message in said["error"] and hint in said["hint"] and said["kind"] == "usage"


@pytest.mark.parametrize("column", ["labels", "attention_mask", "completion_mask", "assistant_masks"])
def test_all_files_of_documents_have_the_same_columns(dump, tmp_path, column):
    """A file without the mask of the others would have all of its tokens learned."""
    whole = {"input_ids": [1, 2, 3], column: [1, 2, 3]}
    for name, row in (("a", whole), ("b", {"input_ids": [4, 5]}), ("c", whole | {"text": "x"})):
        datasets.Dataset.from_list([row]).save_to_disk(tmp_path / name)
    [a], [b], [c] = (list((tmp_path / name).glob("*.arrow")) for name in "abc")
    options = {"format": "documents", "packing": "none", "length": 4}
    said = dump(tmp_path / "[ab]", **options)
    assert said["kind"] == "usage" and "the same columns" in said["hint"]
    assert said["error"] == f"data file '{b}': it does not have a column '{column}', but '{a}' has one"
    said = dump(tmp_path / "[bc]", **options)
    assert said["error"] == f"data file '{c}': it has a column '{column}', but '{b}' has none"
    each, found = dump(a, c, **options), dump(tmp_path / "[ac]", **options)
    assert [field["rows"] for field in found["fields"]] == [
        one["rows"] + other["rows"] for one, other in zip(each[0]["fields"], each[1]["fields"])]


TOKENS = (numpy.arange(2113) * 7 % 251).astype("int64")


def losses(accel, directory, code=0, **source):
    """Trains three steps on two ranks. Returns the losses, or the errors."""
    if not (directory / "gpt.pt").exists():
        train_runs.export(directory / "gpt.pt")
    (directory / "out/metrics.jsonl").unlink(missing_ok=True)
    config = train_runs.config(directory, 2, max_steps=3, **{"data.train": source, "data.shuffle": True})
    said = accel("launch", config, code=code).stderr
    return train_runs.metrics(directory) if code == 0 else said


def test_rows_train_as_the_same_tokens_in_a_file(accel, dump, tmp_path):
    numpy.save(tmp_path / "tokens.npy", TOKENS.astype("uint16"))
    expected = losses(accel, tmp_path, format="tokens", path=str(tmp_path / "tokens.npy"), sequence_length=32)
    saved(tmp_path / "saved", {"input_ids": datasets.List(datasets.Value("int32")), "labels": datasets.List(datasets.Value("int64")),
                               "text": datasets.Value("string")},
          {"input_ids": TOKENS[:-1].reshape(-1, 32), "labels": TOKENS[1:].reshape(-1, 32), "text": ["x"] * 66}, num_shards=2)
    assert losses(accel, tmp_path, format="arrow", path=str(tmp_path / "saved")) == expected


def test_documents_train_as_those_of_accel_export(accel, dump, tmp_path):
    rows = [{"input_ids": part.tolist()} for part in numpy.split(TOKENS, numpy.cumsum([20, 12, 30, 40, 17, 1, 15] * 15))]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved", num_shards=2)
    keys = {"format": "documents", "sequence_length": 32}
    expected = losses(accel, tmp_path, path=str(exported(tmp_path, tmp_path / "saved")), **keys)
    assert losses(accel, tmp_path, path=str(tmp_path / "saved"), **keys) == expected


def test_what_cannot_be_trained_on_ends_before_anything_starts(accel, dump, tmp_path):
    datasets.Dataset.from_list([{"input_ids": [1, 2], "labels": "x"}, {"input_ids": [3], "labels": "y"}]).save_to_disk(tmp_path / "saved")
    source = {"format": "arrow", "path": str(tmp_path / "saved")}
    said = losses(accel, tmp_path, code=2, **source)
    assert "the column 'input_ids' has lists of different lengths, such as 2 and 1" in said and "format: documents" in said
    datasets.Dataset.from_list([{"input_ids": [1, 2], "labels": "x"}] * 100).save_to_disk(tmp_path / "texts")
    said = losses(accel, tmp_path, code=2, format="arrow", path=str(tmp_path / "texts"))
    assert "the column 'labels' has texts, and cannot be a field" in said and "accel-export --tokenize" in said
    for name, labels in (("whole", [1, 2]), ("part", [1, None])):
        datasets.Dataset.from_list([{"input_ids": [1, 2], "labels": labels}] * 100).save_to_disk(tmp_path / name)
    said = losses(accel, tmp_path, code=2, format="arrow", mixture={str(tmp_path / "whole"): 1, str(tmp_path / "part"): 1})
    assert f"the column 'labels' of '{tmp_path / 'part'}' has nulls, and cannot be a field" in " ".join(said.split())
    [file] = (tmp_path / "texts").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-100])
    said = losses(accel, tmp_path, code=2, format="arrow", path=str(tmp_path / "texts"))
    assert "the file may be truncated" in said and file.name in said
    said = losses(accel, tmp_path, code=2, sequence_length=8, **source)
    assert "a row of the dataset is a sample" in said
    assert not (tmp_path / "out").exists()


def test_labels_that_a_model_would_have_to_shift_are_for_documents(accel, dump, tmp_path):
    datasets.Dataset.from_list([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 100).save_to_disk(tmp_path / "saved")
    said = losses(accel, tmp_path, code=2, format="arrow", path=str(tmp_path / "saved"))
    assert "'labels' are the tokens of 'input_ids' themselves" in said and "as format: documents does with datasets on disk" in said
    assert len(losses(accel, tmp_path, format="documents", path=str(tmp_path / "saved"), sequence_length=3)) == 3


def test_a_first_configuration_knows_datasets(accel, dump, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    datasets.Dataset.from_list([{"input_ids": [1, 2]}, {"input_ids": [3, 4, 5]}]).save_to_disk(tmp_path / "documents")
    datasets.Dataset.from_list([{"input_ids": [1, 2], "labels": [1, 2], "text": "x"}] * 2).save_to_disk(tmp_path / "rows")
    # No column of these holds labels: the masks and types of tokens are none.
    of_tokens = {"input_ids": [1, 0], "attention_mask": [1, 0], "token_type_ids": [0, 0]}
    datasets.Dataset.from_list([of_tokens] * 2).save_to_disk(tmp_path / "padded")
    datasets.Dataset.from_list([{**of_tokens, "label": 1}] * 2).save_to_disk(tmp_path / "classes")
    documents = {"format": "documents", "sequence_length": 32, "packing": "none"}
    for name, expected, targets in (("documents", documents, "labels"), ("rows", {"format": "arrow"}, "labels"),
                                    ("padded", documents, "labels"), ("classes", {"format": "arrow"}, "label")):
        accel("config", tmp_path / "gpt.pt", "--data", tmp_path / name, "--cpu", "-o", tmp_path / "first.yaml", "--force")
        written = yaml.safe_load((tmp_path / "first.yaml").read_text())["training"]
        assert written["data"]["train"] == {"path": str(tmp_path / name), **expected}
        assert written["model"]["inputs"] == ["input_ids"] and written["model"]["targets"] == targets
