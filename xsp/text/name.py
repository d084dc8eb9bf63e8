"""Makes names of users and vendors safe for a terminal, and short enough for a column."""

from __future__ import annotations


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
