"""Prints CTF traces by babeltrace2, for the tests of what writes and reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_babeltrace = pytest.mark.skipif(
    shutil.which("babeltrace2") is None, reason="babeltrace2 is not installed"
)

_LINE = re.compile(
    r"\[(\d+)\.(\d{9})\] (?:.*? )?([\w:]+): (?:\{ cpu_id = \d+ \}, )?\{ v?tid = (-?\d+), "
    r'procname = "((?:[^"\\]|\\.)*)" \}, \{ (.*)\}'
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\33", "f": "\f", "v": "\v"}


@dataclass(frozen=True)
class Event:
    """An event as babeltrace2 prints it; `fields` is the text of its own fields."""

    time_ns: int
    name: str
    tid: int
    thread: str
    fields: str

    def number(self, name: str) -> int:
        found = re.search(rf"\b{name} = (-?\d+)", self.fields)
        assert found, self
        return int(found[1])

    @property
    def label(self) -> str:
        """The field `name`."""
        found = re.search(r' name = "((?:[^"\\]|\\.)*)" $', self.fields)
        assert found, self
        return unescaped(found[1])

    @property
    def kind(self) -> str:
        return self.fields.split('"')[1]


def ascii_of(name: str) -> str:
    """Return a name as exports have it: printable, in ASCII, and not empty."""
    plain = name.translate({0xD7: "x", 0x2026: "...", 0x2192: "->"}) or "(no name)"
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
    return "".join(shown).encode("ascii", "backslashreplace").decode()


def unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return re.sub(r"\\(x[0-9a-f]{2}|.)", character, text)


def events(folder: Path) -> list[Event]:
    """Return the events of all traces in a folder; babeltrace2 must not complain."""
    command = ["babeltrace2", "--clock-seconds", "--no-delta", str(folder)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert not done.stderr
    lines = done.stdout.decode().split("\n")
    assert lines.pop() == ""
    matches = [_LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    return [
        Event(int(m[1]) * 10**9 + int(m[2]), m[3], int(m[4]), unescaped(m[5]), m[6])
        for m in matches
        if m
    ]
