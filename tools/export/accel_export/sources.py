"""Where records come from: lines of JSON, directories of Hugging Face datasets, and .parquet files."""

import itertools
import json
import os

from .records import COLUMNS, KINDS, MASKS, record_of
from .refused import Refused

ROWS = 1000  # Of a batch that is read at once.


def bytes_of(path):
    """Returns about how many bytes `records_of` reads of `path`."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path) if name.endswith(".arrow"))


def records_of(path):
    """Yields (bytes, Record) for each record. Raises Refused, with its place, for one that is none."""
    if os.path.isdir(path):
        rows = rows_of_dataset(path)
    elif path.endswith(".parquet"):
        rows = rows_of_parquet(path)
    else:
        yield from records_of_lines(path)
        return
    count, batches = rows
    size = bytes_of(path) / max(1, count)
    for number, row in enumerate(itertools.chain.from_iterable(batches)):
        place = f"{path}: row {number}"
        for name in ("labels", *MASKS):
            if row.get("input_ids") is not None and name in row and row[name] is None:
                raise Refused(f"{place}: '{name}' is null, and without it all tokens would count\nhint: give the row its list, or leave the row out")
        yield size, record_of(place, without_none(row))


def records_of_lines(path):
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Refused(f"{place}: the line is not JSON: {error}\nhint: each line is one JSON object; {KINDS}") from None
            if not isinstance(value, dict):
                raise Refused(f"{place}: the line is not a JSON object\nhint: {KINDS}")
            yield len(line), record_of(place, value)


def without_none(value):
    """Arrow gives each object of a list all keys that any of them has, with None for those that it had not."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_none(inner) for inner in value] if value and not isinstance(value[0], (int, float, str)) else value
    return value


def known(path, columns):
    """Returns those of `columns` that a record may have. Others, such as pictures, are not read."""
    if found := [name for name in columns if name in COLUMNS]:
        return found
    raise Refused(f"'{path}' has the columns {', '.join(map(repr, columns))}\nhint: {KINDS}")


def rows_of_dataset(path):
    """Returns the number of rows of a directory of save_to_disk, and an iterator over batches of them."""
    splits = os.path.join(path, "dataset_dict.json")
    if os.path.exists(splits):
        with open(splits) as file:
            names = json.load(file).get("splits", [])
        raise Refused(f"'{path}' has the splits {', '.join(names)}\nhint: name the directory of one, such as "
                      f"'{os.path.join(path, names[0] if names else 'train')}'")
    if not os.path.exists(os.path.join(path, "state.json")):
        raise Refused(f"'{path}' is not a directory that the package datasets has saved: it has no state.json\n"
                      "hint: name a directory of save_to_disk, or files of JSON lines or .parquet")
    try:
        import datasets
    except ImportError as error:
        raise Refused(f"'{path}' is a directory of the package datasets, which cannot be imported: {error}\n"
                      "hint: pip install datasets, or write JSON lines where it is installed: dataset.to_json(FILE)") from None
    try:
        dataset = datasets.load_from_disk(path).with_format(None)
    except Exception as error:  # Of the files, by datasets and by pyarrow.
        raise Refused(f"'{path}' cannot be read: {error}\nhint: the package datasets {datasets.__version__} has to read it") from error
    dataset = dataset.select_columns(known(path, dataset.column_names))
    return len(dataset), (rows_of_columns(batch) for batch in dataset.iter(ROWS))


def rows_of_parquet(path):
    """Returns the number of rows of a .parquet file, and an iterator over batches of them."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Refused(f"'{path}' needs the package pyarrow, which cannot be imported: {error}\n"
                      "hint: pip install pyarrow, or write JSON lines where it is installed") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except Exception as error:
        raise Refused(f"'{path}' cannot be read: {error}\nhint: is it a .parquet file, and whole?") from error
    columns = known(path, file.schema_arrow.names)
    return file.metadata.num_rows, (batch.to_pylist() for batch in file.iter_batches(ROWS, columns=columns))


def rows_of_columns(batch):
    return [dict(zip(batch, values)) for values in zip(*batch.values())]
