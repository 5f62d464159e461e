"""Rules for the text of the sources: the width of prose and the length of files."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH = 100
LONGEST = 500


def tracked(*patterns: str) -> list[pathlib.Path]:
    if not (ROOT / ".git").exists():  # An unpacked release has no git repository.
        return [path for pattern in patterns for path in ROOT.glob(f"**/{pattern.rsplit('/', 1)[-1]}")
                if "build" not in path.relative_to(ROOT).parts[0]]
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in names.stdout.split("\n") if name and (ROOT / name).is_file()]


def test_prose_in_markdown_is_wrapped():
    """Tables, code blocks, headings, and lines that are one unbreakable word such as a link are exempt."""
    long = []
    for path in tracked("*.md"):
        code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            exempt = code or line.startswith(("|", "#", "```", "    ")) or " " not in line.strip(" -*")
            if len(line) > WIDTH and not exempt:
                long.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns")
    assert not long, "\n".join(long)


def test_no_file_is_longer_than_one_idea():
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path in
            tracked("src/*", "tests/*.py", "tests/*.[ch]pp", "bench/*.py", "bench/*.cpp", "tools/*")
            if (lines := len(path.read_bytes().splitlines())) > LONGEST]
    assert not long, "\n".join(long)
