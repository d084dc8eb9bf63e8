"""Collects the warnings of all ranks; a warning of several ranks is stated once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xsp.reading.rank.naming import listed
from xsp.warning import TraceWarning


def warnings_of_all(
    warnings: Sequence[Iterable[TraceWarning]], names: Sequence[str]
) -> Iterator[TraceWarning]:
    """Yield the warnings of several processes, with the names of those that have each.

    Args:
        warnings: Of each process.
        names: The name of each.
    """
    having: dict[TraceWarning, list[str]] = {}
    for each, name in zip(warnings, names, strict=True):
        for warning in each:
            having.setdefault(warning, []).append(name)
    for warning, named in having.items():
        whose = "" if len(set(named)) == len(names) else f"{listed(named)}: "
        yield TraceWarning(warning.code, whose + warning.message)
