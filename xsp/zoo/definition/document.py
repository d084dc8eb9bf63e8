"""Documents: the text of a TOML file in, its values and the line of each key out.

Python's own reader of TOML says where a text is no TOML, and not where its keys stand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]


class DefinitionError(ValueError):
    """A zoo file or a shorthand says something that is not possible."""


@dataclass(frozen=True, slots=True)
class Document:
    """A TOML file.

    Attributes:
        name: The file as it was named.
        values: What it says.
        lines: The line of each key and table, from 1, by its names and numbers from outside in.
        text: The file's lines.
    """

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)
    text: tuple[str, ...] = ()

    def place(self, path: Path, word: str = "") -> str:
        """Return where a key stands, for messages: `zoo.toml, line 3`.

        Args:
            path: Names and numbers of the key from outside in.
            word: A text of its value: where that has several lines, the line of the word counts.
        """
        line = self.line(path, word)
        return f"{self.name}, line {line}" if line else self.name

    def line(self, path: Path, word: str = "") -> int | None:
        """Return the line of a key, as of `place`; None where nothing of it has a line."""
        known = [path, (*path, 0), *(path[:end] for end in range(len(path) - 1, 0, -1))]
        begin = next((self.lines[part] for part in known if part in self.lines), None)
        if begin is None or not word:
            return begin
        end = min(
            (line for line in self.lines.values() if line > begin), default=len(self.text) + 1
        )
        quoted = (f'"{word}"', f"'{word}'")
        for number in range(begin, end):
            if any(text in self.text[number - 1] for text in quoted):
                return number
        return begin

    def error(self, path: Path, message: str, word: str = "") -> DefinitionError:
        """Return the error that says where something is wrong."""
        return DefinitionError(f"{self.place(path, word)}: {message}")


def parse(text: str, name: str) -> Document:
    """Return a document.

    Raises:
        DefinitionError: The text is no TOML; the message names file and line.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{name} is no TOML file: {error}") from error
    lines = tuple(text.splitlines())
    return Document(name, values, _lines(lines), lines)


def _lines(lines: tuple[str, ...]) -> dict[Path, int]:
    """Return the line of each key and table."""
    found: dict[Path, int] = {}
    table: Path = ()
    counts: dict[Path, int] = {}  # of tables in each array of tables
    for number, statement in _statements(lines):
        said = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _table(said, counts)
            found.setdefault(table, number)
        else:
            for path in _paths(said):
                found.setdefault((*table, *path), number)
    return found


def _statements(lines: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield each header and each key with its value, and the line at which it begins."""
    begin = 0
    for end in range(1, len(lines) + 1):
        statement = "\n".join(lines[begin:end])
        try:
            said = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # it goes on in the next line
            continue
        if said:
            yield begin + 1, statement
        begin = end


def _table(said: Mapping[str, Any], counts: dict[Path, int]) -> Path:
    """Return the path of the table whose header was read alone."""
    path: Path = ()
    value: Any = said
    while value:
        name, value = next(iter(value.items()))
        path = (*path, name)
        if isinstance(value, list):
            counts[path] = counts.get(path, -1) + 1
            value = value[0]
        if path in counts:
            path = (*path, counts[path])
    return path


def _paths(said: Mapping[str, Any]) -> Iterator[Path]:
    for name, value in said.items():
        yield (name,)
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))
