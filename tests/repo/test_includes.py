"""The table in ARCHITECTURE.md allows every #include "..." of src/.

Linking does not detect the include of a header that has only types or inline functions.
"""

import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SRC = ROOT / "src"

# The folders of precompiled headers, and the headers that Meson writes.
NO_FOLDER = {"pch", "train/pch"}
GENERATED = {"version.hpp"}

# The folders that every folder outside base may include.
BASE = {"base", "base/files", "base/host"}


def read_table() -> dict[str, set[str]]:
    """Returns the table of ARCHITECTURE.md: each folder, and the folders that it may include besides itself."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    formats = set(re.findall(r"`([^`]+)`", re.search(r'^"formats" stands for ([^.]*)\.', text, re.MULTILINE)[1]))
    section = text.split("## Who may include whom")[1].split("\n## ")[0]
    table = {}
    for folder, cell in re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, re.MULTILINE):
        names = set(re.findall(r"`([^`]+)`", cell))
        table[folder] = names | formats if re.search(r"\bformats\b", cell) else names
        if not folder.startswith("base"):
            table[folder] |= BASE
        elif folder != "base":
            table[folder].add("base")
    return table


MAY_INCLUDE = read_table()


def folder_of(path: str) -> str:
    return str(pathlib.PurePath(path).parent)


@functools.cache
def includes() -> list[tuple[str, str, int, str]]:
    """Returns (folder, file, line, included path) of every #include "..." below src/."""
    found = []
    for path in sorted(SRC.rglob("*.[ch]pp")):
        name = str(path.relative_to(SRC))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if match and match[1] not in GENERATED:
                found.append((folder_of(name), name, number, match[1]))
    return found


@pytest.mark.parametrize("folder", sorted(MAY_INCLUDE))
def test_a_folder_includes_only_what_its_line_of_the_table_allows(folder):
    allowed = {folder, *MAY_INCLUDE[folder]}
    wrong = [f"src/{name}:{line}: {what}" for owner, name, line, what in includes()
             if owner == folder and folder_of(what) not in allowed]
    assert not wrong, "not allowed for src/" + folder + ":\n" + "\n".join(wrong)


def test_every_folder_with_code_has_a_line_in_the_table():
    folders = {folder_of(str(path.relative_to(SRC))) for path in SRC.rglob("*.[ch]pp")}
    assert folders - NO_FOLDER == set(MAY_INCLUDE)


def test_an_include_names_the_path_from_src():
    wrong = [f"src/{name}:{line}: {what}" for _, name, line, what in includes() if not (SRC / what).is_file()]
    assert not wrong, wrong


def test_the_table_has_no_circle():
    """The folders that each folder may include form no cycle, so the folders have a partial order."""
    done: set[str] = set()
    rest = dict(MAY_INCLUDE)
    while rest:
        free = {folder for folder, names in rest.items() if names <= done}
        assert free, f"circle among {sorted(rest)}"
        done |= free
        rest = {folder: names for folder, names in rest.items() if folder not in free}


def test_wheels_have_what_the_headers_of_fmt_declare():
    """third_party/fmt.cpp instantiates what these headers declare; fmt/chrono.h, for one, declares more."""
    used = {header for path in SRC.rglob("*.[ch]pp") for header in re.findall(r"#include <fmt/([^>]+)>", path.read_text())}
    assert used == {"format.h", "ostream.h", "ranges.h"}
