"""What a terminal shows: as much of it as accel uses, with as many lines as there are."""

import re

TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """The lines after a text. A line that is wider than the screen is wrapped, as by a terminal."""

    def __init__(self, columns):
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0

    def feed(self, text):
        at = 0
        for match in TOKEN.finditer(text):
            assert match.start() == at, f"unknown control sequence {text[at:at + 20]!r}"
            at = match.end()
            token = match[0]
            if token == "\r":
                self.column = 0
            elif token == "\n":
                self.next_row()
            elif match[2] == "F":
                self.row, self.column = max(0, self.row - int(match[1] or 1)), 0
            elif match[2] == "J" and not match[1]:
                del self.lines[self.row + 1:]
                self.lines[self.row] = self.lines[self.row][:self.column]
            elif match[2] == "K" and not match[1]:
                self.lines[self.row] = self.lines[self.row][:self.column]
            elif match[2] != "m":
                assert match[2] is None, f"unknown control sequence {token!r}"
                self.write(token)
        assert at == len(text), f"unknown control sequence {text[at:at + 20]!r}"
        return self

    def next_row(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def write(self, text):
        for character in text:
            if self.column == self.columns:
                self.next_row()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[:self.column] + character + line[self.column + 1:]
            self.column += 1

    def shown(self):
        """The lines without those that are empty at the end."""
        return "\n".join(self.lines).rstrip("\n").split("\n")
