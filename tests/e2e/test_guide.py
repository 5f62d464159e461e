"""The examples of the README and the guide run, and their links resolve.

The first line of a fenced block says how the test uses the block:

    ```sh test             runs in the page's folder with `bash -e -u -o pipefail`, and must exit with 0
    ```text output         follows such a block: each of its lines occurs in the output of that block, in this
                           order; `...` stands for any text
    ```yaml file=NAME      is written to NAME

The README's examples start in a folder that holds only links to `examples` and `configs`. Each page of the guide starts
in a copy of the folder that they leave behind. `accel` and `accel-export` are in PATH, as if they were installed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import typing

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs/guide").glob("*.md"))
# README.md is the index, and tools/reference.py writes keys.md.
WITH_EXAMPLES = [page for page in PAGES if page.stem not in ("README", "keys")]
LINKED = [README, ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\[\]]*\]\(([^()\s]+)\)")


class Block(typing.NamedTuple):
    line: int
    language: str
    role: str  # The text after the language, or an empty string.
    text: str


def blocks_of(markdown):
    blocks = []
    for match in FENCE.finditer(markdown):
        language, _, role = match[1].partition(" ")
        blocks.append(Block(markdown.count("\n", 0, match.start()) + 1, language, role, match[2]))
    return blocks


def first_missing(expected, output):
    """Returns the first line of `expected` that `output` lacks after the lines before it, or None."""
    lines = iter(output.splitlines())
    for wanted in expected.splitlines():
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.rstrip().split("...")))
        if not any(pattern.fullmatch(line.rstrip()) for line in lines):
            return wanted
    return None


def run_page(page, folder, accel_path):
    """Runs the examples of `page` in `folder`. Returns their number."""
    programs = [str(accel_path.parent), str(ROOT / "tools/export"), os.path.dirname(sys.executable), os.environ["PATH"]]
    environment = {**os.environ, "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PATH": os.pathsep.join(programs)}
    count, output = 0, None
    for block in blocks_of(page.read_text()):
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.role == "test":
            assert block.language == "sh", place
            result = subprocess.run(["bash", "-e", "-u", "-o", "pipefail", "-c", block.text], cwd=folder, env=environment,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    timeout=120)
            output = result.stdout
            assert result.returncode == 0, f"{place}: exit code {result.returncode}\n{output}"
            count += 1
        elif block.role == "output":
            assert output is not None, f"{place}: no example stands before this output"
            missing = first_missing(block.text, output)
            assert missing is None, f"{place}: the output lacks '{missing}'; it is\n{output}"
        elif block.role.startswith("file="):
            (folder / block.role.removeprefix("file=")).write_text(block.text)
        else:
            assert block.role == "", f"{place}: '{block.role}' is not a role of a block"
    return count


@pytest.fixture(scope="session")
def after_readme(made_once, accel_path):
    """Returns the folder in which the README's examples have run."""

    def run(folder):
        for name in ("examples", "configs"):
            (folder / name).symlink_to(ROOT / name)
        assert run_page(README, folder, accel_path) > 0, "the README has no example that a test runs"

    return made_once("guide", run)


def test_the_readmes_examples_run(after_readme):
    assert (after_readme / "merged/model.safetensors").exists()


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 200


@pytest.mark.long(but="training")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page, after_readme, accel_path, tmp_path):
    folder = tmp_path / "page"
    # The copy has only the files that the README promises to the guide.
    shutil.copytree(after_readme, folder, symlinks=True, ignore=shutil.ignore_patterns("merged", "trained.pt", ".complete"))
    assert run_page(page, folder, accel_path) > 0, f"{page} has no example that a test runs"


def test_the_index_of_the_guide_lists_every_page():
    index = ROOT / "docs/guide/README.md"
    listed = [target.partition("#")[0] for target in LINK.findall(index.read_text())]
    missing = {page.name for page in PAGES} - {index.name} - set(listed)
    assert not missing and len(PAGES) > 5


@pytest.mark.parametrize("expected, output, missing", [
    ("a\nc\n", "a\nb\nc\n", None),
    ("a ... b\n", "a 1 2 b\n", None),
    ("...\n", "x\n", None),
    ("a\n", "", "a"),
    ("a\n", "aa\n", "a"),
    ("a.c\n", "abc\n", "a.c"),
    ("b\na\n", "a\nb\n", "a"),
    ("a\na\n", "a\n", "a"),
])
def test_lines_of_an_output_are_looked_for_in_order(expected, output, missing):
    assert first_missing(expected, output) == missing


def anchors_of(markdown):
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page):
    prose = re.sub(r"`[^`\n]*`", "code", FENCE.sub("", page.read_text()))
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors_of(file.read_text())):
            yield target


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    assert list(broken_links(page)) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `heading`, and more\n")
    page = tmp_path / "page.md"
    page.write_text("[good](other.md) [good](other.md#a-heading-and-more) [web](https://example.org/x)\n"
                    "[`gone`](gone.md) [no heading](other.md#gone)\n`[code](in.md)`\n```\n[code](in.md)\n```\n")
    assert list(broken_links(page)) == ["gone.md", "other.md#gone"]
