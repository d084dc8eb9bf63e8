"""Makes names of users and vendors safe for a terminal, and short enough for a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def printable(text: str) -> str:
    r"""Return text that moves no cursor: characters that cannot be printed become escapes.

    Names come from users and vendors; a newline would break the tree, an escape
    sequence would drive the terminal.

    >>> printable("a\nb")
    'a\\nb'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def writable(value: Any) -> Any:
    r"""Return text that UTF-8 can hold: a question mark stands for half of a surrogate pair.

    Args:
        value: The text; of sequences and mappings each text is made so, all else is left alone.

    >>> writable("a\ud800"), writable({"b": ["\udc80", 1]})
    ('a?', {'b': ['?', 1]})
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {writable(key): writable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [writable(each) for each in value]
    return value


def printable_lines(text: str) -> str:
    r"""Return text of several lines for a terminal: each line `printable`.

    >>> printable_lines("one\ntwo\x1b[2J")
    'one\ntwo\\x1b[2J'
    """
    return "\n".join(map(printable, text.split("\n")))


def shorten(text: str, width: int) -> str:
    """Return text of at most `width` characters, with an ellipsis in the place of its middle.

    >>> shorten("a_very_long_name", 9)
    'a_ve…name'
    """
    if len(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(width, 0)]
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
