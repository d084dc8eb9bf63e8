"""Replaces characters that an output cannot encode with ASCII."""

from __future__ import annotations

import sys

_PLAIN = str.maketrans(
    {
        "±": "+-",
        "µ": "u",
        "×": "x",
        "≈": "~",
        "…": "...",
        "⋯": "...",
        "→": "->",
        "─": "-",
        "◀": "<",
        "⚠": "!",
        "·": "-",
    }
    | dict.fromkeys("│┃", "|")
    | dict.fromkeys("├└┌", "+")
)


def encodable(text: str, encoding: str | None = None) -> str:
    """Return a text as an output can encode it.

    Args:
        text: The text.
        encoding: The output's encoding; None: that of the standard output.

    >>> encodable("├─ fc 12 ± 1 µs", "ascii"), encodable("12 ± 1 µs", "utf-8")
    ('+- fc 12 +- 1 us', '12 ± 1 µs')
    """
    encoding = encoding or getattr(sys.stdout, "encoding", None)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return (
            text.translate(_PLAIN)
            .encode(encoding or "ascii", "replace")
            .decode(encoding or "ascii")
        )
    except LookupError:  # an output of the program's own
        return text
    return text
