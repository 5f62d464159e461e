#!/usr/bin/env python3
"""Writes the reference of keys, docs/guide/keys.md and the list in man/accel.yaml.5, and parts of man/*.1.

    tools/reference.py ACCEL

The keys are made from `ACCEL check --schema`, which is made from the tables in src/core/config/keys. The sections SYNOPSIS,
OPTIONS and COMMANDS of man/*.1 are made from `ACCEL COMMAND --help`, and the options of accel-export(1) from its parsers. A
test compares the files with what this program would write.
"""

import json
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs/guide/keys.md"
MAN = ROOT / "man/accel.yaml.5"
PAGES = sorted((ROOT / "man").glob("*.1"))
EXPORTER = ROOT / "tools/export"
EXPORT_PAGE = EXPORTER / "data/share/man/man1/accel-export.1"
BEGIN, END = '.\\" The list of keys begins here. tools/reference.py writes it.\n', '.\\" The list of keys ends here.\n'

OF_LAUNCH = ("check", "plan")  # They take the options of launch, and their pages refer to that page.
OWN_SYNOPSIS = ("", "launch", *OF_LAUNCH)  # These have several forms, and are written by hand.
COMMANDS = "commands"
NOTE = '.\\" tools/reference.py writes this section.\n'
# A description begins at column 30, on the next line if what stands before it is longer.
ENTRY = re.compile(r"^  (\S+)(?: (\S+))?( REQUIRED)?(?:\n {30}| +(?<=^.{30}))(\S.*)$", re.MULTILINE)

SECTIONS = {
    "": "The run",
    "fsdp_config": "The prefix `fsdp_` is optional: `fsdp_version` is `version`.",
    "parallelism_config": "The prefix `parallelism_config_` is optional.",
    "fp8_config": "For `mixed_precision: fp8`. The prefix `fp8_` is optional.",
    "dynamo_config": "For compiled layers. The prefix `dynamo_` is optional.",
    "launch": "Keys of accel alone, for the launcher.",
    "training": "Keys of accel alone: what stands in a Python script in Accelerate.",
}
INTRODUCTION = """# Keys

Every key of a configuration on which accel acts, as `accel check --schema` has them. A value is
taken from the first of these that has it: flags, the file, the environment, the default. `--set`
takes a key as its path with dots: `training.optimizer.lr`. `null` asks for the default.

Keys of systems that accel does not have, such as `deepspeed_config`, are in
[accelerate-configs](../accelerate-configs.md).
"""


def schema_of(program: str) -> dict:
    return json.loads(subprocess.run([program, "check", "--schema"], capture_output=True, text=True, check=True).stdout)


def keys_of(schema: dict, path: str = "") -> list[tuple[str, dict]]:
    """The keys below a section, with their schemas; other names of a key are left out."""
    found = []
    for name, value in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if "properties" in value:
            found += keys_of(value, below)
        elif "$ref" not in value:
            found.append((below, value))
    return found


def sections_of(schema: dict) -> dict[str, list[tuple[str, dict]]]:
    """The keys that do something, by section."""
    sections: dict[str, list[tuple[str, dict]]] = {section: [] for section in SECTIONS}
    for path, key in keys_of(schema):
        section = path.split(".")[0] if "." in path else ""
        description = key.get("description", "")
        works = description and not any(text in description.lower() for text in (
            "has no effect", "does not have", "it is not supported yet"))
        only_support = description.startswith("accel supports")
        if section in sections and works and not only_support:
            sections[section].append((path, key))
    return sections


def default_of(key: dict) -> str:
    if "default" in key:
        value = key["default"]
        return value if isinstance(value, str) else json.dumps(value).replace('"', "")
    stated = re.search(r"Default: (.*?)\.(?: accel supports|$)", key["description"])
    if stated:
        return stated[1]
    return "required" if "Required." in key["description"] else "none"


def text_of(key: dict) -> str:
    """The description without the default, which has a column of its own."""
    text = re.sub(r" ?Default: .*?\.(?= accel supports|$)", "", key["description"])
    text = re.sub(r" ?Required\.(?= accel supports|$)", "", text)
    choices = [str(choice) for choice in key.get("enum", ()) if choice is not None]
    if choices and "accel supports" not in text:
        text += f" One of {', '.join(choices)}."
    return text.strip()


def markdown(schema: dict) -> str:
    parts = [INTRODUCTION]
    for section, keys in sections_of(schema).items():
        title = f"`{section}`" if section else SECTIONS[section]
        parts.append(f"## {title}\n")
        if section:
            parts.append(f"{SECTIONS[section]}\n")
        rows = ["| key | default | meaning |", "| --- | --- | --- |"]
        for path, key in keys:
            name = path.removeprefix(f"{section}.") if section else path
            rows.append(f"| `{name}` | {default_of(key)} | {text_of(key)} |")
        parts.append("\n".join(rows).replace("<", "&lt;") + "\n")
    return "\n".join(parts)


def roff(text: str) -> str:
    """Text with one sentence a line, in which no line is taken for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    lines = re.sub(r"(?<=[.]) (?=[A-Z0-9a-z])", "\n", text).split("\n")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def manual(schema: dict) -> str:
    lines = []
    for section, keys in sections_of(schema).items():
        lines.append(f".Ss {f'Section {section}' if section else SECTIONS[section]}")
        if section:
            lines.append(roff(SECTIONS[section].replace("`", "")))
        lines.append(".Bl -tag -width indent")
        for path, key in keys:
            lines.append(f".It Li {path}")
            lines.append(roff(text_of(key)))
            default = default_of(key)
            lines.append("Required." if default == "required" else f"Default: {roff(default)}.")
        lines.append(".El")
    return "\n".join(lines) + "\n"


class Entry(NamedTuple):
    """An option, an argument or a command."""

    names: list[str]
    value: str
    required: bool
    text: str


def entries(program, command: str, section: str) -> list[Entry]:
    """What a section of the help lists: Options, Positionals or COMMANDS. The program itself is the command ""."""
    text = subprocess.run([program, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
    blocks = {title: block for title, block in re.findall(r"^(\S.*):\n((?:  .*\n)+)", text, re.MULTILINE)}
    if section == COMMANDS:  # They stand in groups.
        block = "".join(block for title, block in blocks.items() if title not in ("Options", "Positionals"))
    else:
        block = blocks.get(section, "")
    return [Entry(names.split(","), value, bool(required), text) for names, value, required, text in ENTRY.findall(block)]


def option_of(entry: Entry, separator: str) -> str:
    return separator.join(f"Fl {name[1:]}" for name in entry.names) + (f" Ar {entry.value}" if entry.value else "")


def synopsis(program, command: str, options: list[Entry]) -> str:
    lines = [f".Nm accel {command}"]
    lines += [("." if option.required else ".Op ") + option_of(option, " | ") for option in options]
    for argument in entries(program, command, "Positionals"):
        name = argument.names[0] if argument.value == "TEXT" else argument.value
        macro = ("" if argument.required else "Op ") + ("Cm" if name.islower() else "Ar")
        lines.append(f".{macro} {name.replace('|', ' | ')}")
    return "\n".join(lines) + "\n"


# What follows the options of a command.
APPLY = ".Pp\nThe options of\n.Xr accel 1\napply, too.\n"


def items(tagged: list[tuple[str, Entry]]) -> str:
    lines = "".join(f".It {tag}\n{roff(entry.text)}.\n" for tag, entry in tagged)
    return f"{NOTE}.Bl -tag -width indent\n{lines}.El\n" if tagged else ""


def page_of(program, page: pathlib.Path) -> str:
    """What the file of a page is to contain."""
    command = page.stem.removeprefix("accel").removeprefix("-")
    described = entries(program, "launch", "Options") if command in OF_LAUNCH else []
    options = [option for option in entries(program, command, "Options")
               if option not in described and (not command or "--help" not in option.names)]  # accel(1) has --help for all.
    made = {"SYNOPSIS": "" if command in OWN_SYNOPSIS else synopsis(program, command, options),
            "OPTIONS": items([(option_of(option, " , "), option) for option in options]) + (APPLY if command and options else ""),
            "COMMANDS": items([(f"Xr accel-{entry.names[0]} 1", entry) for entry in entries(program, command, COMMANDS)])}
    return with_sections(page, made)


def with_sections(page: pathlib.Path, made: dict[str, str]) -> str:
    text = page.read_text()
    for title, lines in made.items():
        section = re.compile(rf"^\.Sh {title}\n.*?(?=^\.Sh )", re.MULTILINE | re.DOTALL)
        if lines and not section.search(text):
            sys.exit(f"{page} needs a line '.Sh {title}'")
        if lines:
            text = section.sub(lambda _, new=f".Sh {title}\n{lines}": new, text)
    return text


def parsed_options(parser) -> list[Entry]:
    """The options of a parser of Python, as the list of a command's help has them."""
    formatter, found = parser.formatter_class(parser.prog), []
    for action in parser._actions:
        if action.option_strings:
            value = "" if action.nargs == 0 else formatter._metavar_formatter(action, action.dest.upper())(1)[0].strip("{}")
            text = formatter._expand_help(action)
            text = text[0].upper() + text[1:] if text.split()[0].isalpha() else text
            found.append(Entry(action.option_strings, value.replace(",", "|"), action.required, text))
    return found


def export_page() -> str:
    sys.path.insert(0, str(EXPORTER))
    from accel_export import cli, tokenizing
    made = {title: items([(option_of(option, " , "), option) for option in parsed_options(module.parser())])
            for title, module in (("OPTIONS", cli), ("TOKENIZE OPTIONS", tokenizing))}
    return with_sections(EXPORT_PAGE, made)


def texts(program: str) -> dict[pathlib.Path, str]:
    """The files, and what they are to contain."""
    schema = schema_of(program)
    page = MAN.read_text()
    before, rest = page.split(BEGIN)
    keys = {GUIDE: markdown(schema), MAN: before + BEGIN + manual(schema) + END + rest.split(END)[1]}
    return keys | {page: page_of(program, page) for page in PAGES} | {EXPORT_PAGE: export_page()}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for file, text in texts(sys.argv[1]).items():
        file.write_text(text)
