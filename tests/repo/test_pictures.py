"""docs/pictures has what tools/pictures.py draws, and the numbers of the bars are in bench/RESULTS.md."""

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_script():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools/pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_those_of_the_script():
    drawn = load_script().pictures()
    assert drawn == {path: path.read_text() for path in sorted((ROOT / "docs/pictures").glob("*.svg"))}, \
        "run tools/dev python tools/pictures.py"


@pytest.mark.parametrize("name, group, unit", [("merge", "milliseconds", "ms"), ("merge", "megabytes", "MB"),
                                               ("memory", "gigabytes", "GB")])
def test_bars_are_results(name, group, unit):
    entry = json.loads((ROOT / "docs/pictures/measured.json").read_text())[name]
    results = (ROOT / "bench/RESULTS.md").read_text()
    missing = [value for value in entry[group].values() if f"| {value} {unit} |" not in results]
    assert not missing and f"{entry['commit']}, {entry['date']}" in results
