"""The manual pages and the reference of keys say what the program says of commands, options, exit codes and keys."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import reference  # noqa: E402

MAN, PAGES = ROOT / "man", reference.PAGES
ALL_PAGES = [*PAGES, reference.EXPORT_PAGE]  # The last one is of a program of its own.
# Manual pages of other projects that the pages name.
FOREIGN = {"eu-stack", "gdb", "nohup", "py-spy", "timeout"}


def section(page, title) -> str:
    """The text of a section, up to the next one."""
    match = re.search(rf"^\.Sh {title}\n(.*?)(?=^\.Sh |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title}"
    return match[1]


def references(page) -> list[str]:
    return re.findall(r"^\.Xr (\S+) 1\b", page, re.MULTILINE)


def exit_codes() -> dict[str, int]:
    text = (ROOT / "src/base/exit_code.hpp").read_text()
    codes = {name: int(number) for name, number in re.findall(r"^  k(\w+) = (\d+),", text, re.MULTILINE)}
    assert len(codes) >= 10
    return codes


@pytest.fixture(scope="session")
def help_of(accel_path):
    def text(*command) -> str:
        return subprocess.run([accel_path, *command, "--help"], capture_output=True, text=True, check=True).stdout

    return text


def command_of(path) -> list[str]:
    return path.stem.split("-", 1)[1:]


def test_every_command_has_a_page_and_the_reverse(accel_path):
    commands = [entry.names[0] for entry in reference.entries(accel_path, "", reference.COMMANDS)]
    assert len(commands) >= 16
    assert sorted(f"accel-{name}.1" for name in commands) + ["accel.1"] == [path.name for path in PAGES]
    assert sorted(re.findall(r"'([\w-]+\.1)'", (MAN / "meson.build").read_text())) == sorted(
        path.name for path in PAGES)


def test_reference_is_up_to_date(accel_path):
    for file, text in reference.texts(accel_path).items():
        if os.environ.get("ACCEL_ACCEPT"):
            file.write_text(text)
        assert file.read_text() == text, f"run tools/reference.py {accel_path}"


def test_every_key_that_works_is_in_the_reference(accel_path):
    sections = reference.sections_of(reference.schema_of(accel_path))
    paths = [path for keys in sections.values() for path, _ in keys]
    assert len(paths) >= 100
    assert {"num_processes", "fsdp_config.version", "launch.hang_timeout", "training.optimizer.lr"} <= set(paths)


def test_options_in_the_text_exist(help_of):
    known = set().union(*(re.findall(r"(?:^  |,)(-[\w-]+)", help_of(*command_of(path)), re.MULTILINE) for path in PAGES))
    for path in PAGES:
        named = re.findall(r"\bFl (\S+)", path.read_text().replace("_", "-"))
        assert {f"-{name}" for name in named} <= known, path.name


def test_program_names_the_exporter(help_of):
    assert "\naccel-export, a program of its own," in help_of()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_exit_codes_are_those_of_the_program(path, help_of):
    status, codes = section(path.read_text(), "EXIT STATUS"), exit_codes()
    if path.stem == "accel":
        assert sorted(map(int, re.findall(r"^\.It (\d+)$", status, re.MULTILINE))) == sorted(codes.values())
    else:
        named = [int(number) for number in re.findall(r"(?:^|; |\bor |\band )(\d+)\b", status, re.MULTILINE)]
        assert named and named[0] == 0
        assert set(named) <= set(codes.values())
        # All codes stand in one place.
        assert references(status) == ["accel"]
    footer = help_of(*command_of(path)).split("Exit codes: ")[1]
    if path.stem == "accel":
        assert sorted(map(int, re.findall(r"\b\d+\b", footer))) == sorted(codes.values())
    else:
        assert footer == "accel help lists them.\n"


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.stem)
def test_references_exist(path):
    page, names = path.read_text(), {other.stem for other in ALL_PAGES}
    assert set(references(page)) <= names | FOREIGN
    also = references(section(page, "SEE ALSO"))
    assert also == sorted(set(also))
    assert path.stem not in also
    assert path.stem == "accel" or "accel" in also


@pytest.mark.parametrize("path", [*ALL_PAGES, reference.MAN], ids=lambda path: path.stem)
def test_page_is_valid(path):
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", path], capture_output=True, text=True)
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")
    text = subprocess.run(["mandoc", "-T", "utf8", path], capture_output=True, text=True, check=True).stdout
    assert path.stem.upper() in text
