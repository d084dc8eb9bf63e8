"""Damaged files in, what is whole of them out; counts of what was not read in, text out."""

from __future__ import annotations

import io
import zlib
from collections import Counter
from typing import cast

from xsp.importers.source import Source

_PIECE = 1 << 20  # bytes that are read at once
_MOST_NAMED = 8


def content(source: Source) -> tuple[bytes, bool]:
    """Return the content of a file as far as it can be unpacked, and whether it ends too early."""
    parts = []
    with source.open() as file:
        try:
            while part := cast("io.BufferedReader", file).read1(_PIECE):
                parts.append(part)
        except (EOFError, zlib.error):
            return b"".join(parts), True
    return b"".join(parts), False


def listed(counts: Counter[str]) -> str:
    """Return the most frequent names with their numbers, and how many there are of others.

    >>> listed(Counter(a=2, b=1))
    '2 a, 1 b'
    """
    most = counts.most_common(_MOST_NAMED)
    rest = counts.total() - sum(count for _, count in most)
    parts = [f"{count:,} {name or 'without a name'}" for name, count in most]
    return ", ".join(parts + ([f"{rest:,} others"] if rest else []))
