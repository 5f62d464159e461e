"""The manual pages say of commands, options and exit codes what --help says."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAN = ROOT / "man"
PAGES = sorted(MAN.glob("*.1"))
# Manual pages of other projects that the pages name.
FOREIGN = {"eu-stack", "gdb", "nohup", "py-spy", "timeout"}


def source(name) -> str:
    return (MAN / f"{name}.1").read_text()


def section(page, title) -> str:
    """The text of a section, up to the next one."""
    match = re.search(rf"^\.Sh {title}\n(.*?)(?=^\.Sh |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title}"
    return match[1]


def references(page) -> list[str]:
    return re.findall(r"^\.Xr (\S+) 1\b", page, re.MULTILINE)


def options_of_page(page) -> dict[str, tuple[str, set[str]]]:
    """The options that have an item in a list: name, then its metavariable and the words (Cm) that follow it."""
    found: dict[str, tuple[str, set[str]]] = {}
    for item in re.findall(r"^\.It (Fl .*)$", page, re.MULTILINE):
        for part in item.split(" , "):
            match = re.fullmatch(r"Fl (\S+)(?: (Ar|Cm) (.*))?", part)
            assert match, f"an item of another form: {item}"
            name, macro, value = "-" + match[1], match[2], match[3] or ""
            words = found.get(name, ("", set()))[1]
            found[name] = (value, words) if macro != "Cm" else ("", words | {value})
    return found


def options_of_help(text) -> dict[str, tuple[str, str]]:
    """The options of --help: name, then the metavariable and the description."""
    found = {}
    for names, value, description in re.findall(r"^  (-\S+)(?: (\S+))?(?: REQUIRED)?(?:\n? {2,})(\S.*)$", text,
                                                re.MULTILINE):
        for name in names.split(","):
            found[name] = (value, description)
    return found


def arguments_of_help(text) -> list[str]:
    if "\nPositionals:\n" not in text:
        return []
    lines = re.findall(r"^  (\S+) (\S+)", text.split("\nPositionals:\n")[1].split("\n\n")[0], re.MULTILINE)
    return [name if type_name == "TEXT" else type_name for name, type_name in lines]


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


@pytest.fixture(scope="session")
def commands(help_of) -> list[str]:
    return re.findall(r"^  ([a-z][a-z-]*) ", help_of().split("Subcommands:")[1], re.MULTILINE)


def command_of(path) -> list[str]:
    return path.stem.split("-", 1)[1:]


def test_every_command_has_a_page_and_the_reverse(commands):
    assert sorted(f"accel-{name}.1" for name in commands) + ["accel.1"] == [path.name for path in PAGES]
    assert sorted(re.findall(r"'([\w-]+\.1)'", (MAN / "meson.build").read_text())) == sorted(
        path.name for path in PAGES)


def test_first_page_lists_every_command(commands):
    page = source("accel")
    listed = re.findall(r"^\.It Cm (\S+)\n(?:(?!\.It).*\n)*?See\n\.Xr accel-(\S+) 1 \.$", page, re.MULTILINE)
    assert all(name == reference for name, reference in listed), listed
    assert sorted(name for name, _ in listed) == sorted(commands)
    assert references(section(page, "SEE ALSO")) == sorted(f"accel-{name}" for name in commands)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_options_are_those_of_help(path, help_of):
    page, helped = path.read_text(), options_of_help(help_of(*command_of(path)))
    assert "--help" in helped
    described = options_of_page(page)
    if path.stem != "accel":
        del helped["-h"], helped["--help"]  # The page of accel describes them.
    if path.stem in ("accel-check", "accel-plan"):  # They take the options of launch, and refer to that page.
        assert "The command takes all options of\n.Nm accel launch" in page
        launch = options_of_help(help_of("launch"))
        helped = {name: value for name, value in helped.items() if launch.get(name) != value}
    assert sorted(described) == sorted(helped)
    for name, (value, words) in described.items():
        if words:
            assert words <= set(re.findall(r"[\w]+", helped[name][1])), name
        else:
            assert value == helped[name][0], name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_synopsis_has_the_arguments_and_options_of_help(path, help_of):
    synopsis, text = section(path.read_text(), "SYNOPSIS"), help_of(*command_of(path))
    words = set(re.findall(r"[^\s]+", " ".join(re.findall(r"^\.(?:Op )?(?:Ar|Cm) (.*)$", synopsis, re.MULTILINE))))
    for argument in arguments_of_help(text):
        assert set(argument.split("|")) <= words, argument
    named = set(re.findall(r"Fl (\S+)", synopsis))
    known = {name[1:] for name in options_of_help(text)}
    assert named <= known | {name[1:] for name in options_of_help(help_of())}
    if path.stem not in ("accel-check", "accel-launch", "accel-plan"):  # Their options are too many for the synopsis.
        assert named | {"h", "-help", "-json"} >= known


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_exit_codes_are_those_of_the_program(path, help_of):
    status, codes = section(path.read_text(), "EXIT STATUS"), exit_codes()
    if path.stem == "accel":
        assert sorted(map(int, re.findall(r"^\.It (\d+)$", status, re.MULTILINE))) == sorted(codes.values())
    else:
        named = [int(number) for number in re.findall(r"(?:^|; |\bor |\band )(\d+)\b", status, re.MULTILINE)]
        assert named and named[0] == 0
        assert set(named) <= set(codes.values())
    footer = help_of(*command_of(path)).split("Exit codes: ")[1]
    assert sorted(map(int, re.findall(r"\b\d+\b", footer))) == sorted(codes.values())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_references_exist(path):
    page, names = path.read_text(), {other.stem for other in PAGES}
    assert set(references(page)) <= names | FOREIGN
    also = references(section(page, "SEE ALSO"))
    assert also == sorted(set(also))
    assert path.stem not in also
    assert path.stem == "accel" or "accel" in also


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_is_valid(path):
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", path], capture_output=True, text=True)
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")
    text = subprocess.run(["mandoc", "-T", "utf8", path], capture_output=True, text=True, check=True).stdout
    assert path.stem.upper() in text
