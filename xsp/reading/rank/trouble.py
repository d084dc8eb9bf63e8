"""Collects the warnings of all ranks; a warning of several ranks is stated once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from xsp.reading.rank.naming import listed
from xsp.warning import TraceWarning

_COUNT = re.compile(r".*\b\d")


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
        everyone = len(set(named)) == len(names)
        # A count of one process is not that of all.
        prefix = "in each process: " if len(names) > 1 and _COUNT.match(warning.message) else ""
        whose = prefix if everyone else f"{listed(named)}: "
        yield TraceWarning(warning.code, whose + warning.message)
