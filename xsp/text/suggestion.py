"""Suggests known names that are close to a misspelled name, for an error's sentence."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` if a known name is close, else an empty text.

    >>> suggest("framwork", ("model", "framework")), suggest("gpu", ("model", "framework"))
    ('; did you mean framework?', '')
    """
    import difflib  # noqa: PLC0415  # needed for errors only: not on `import xsp`

    folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(folded[match] for match in close)}?" if close else ""
