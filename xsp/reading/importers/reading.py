"""Unpacks files, maps each text once, and lists names with counts.

Several formats need these functions, and each would otherwise have them for itself.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable
from typing import cast

import polars as pl

from xsp.reading.importers.source import Source

_PIECE = 1 << 20  # bytes that are read at once
_MOST_NAMED = 8


def content(source: Source) -> tuple[bytes, bool]:
    """Return the content of a file as far as it can be unpacked, and whether it ends too early."""
    parts = []
    with source.open() as file:
        try:
            while part := cast("io.BufferedReader", file).read1(_PIECE):
                parts.append(part)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return b"".join(parts), True
    return b"".join(parts), False


def each_once(texts: pl.Series, value_of: Callable[[str], str]) -> pl.Series:
    """Return a value for each text, null for null; a text that comes often is asked of once.

    >>> each_once(pl.Series(["a", None, "a"]), str.upper).to_list()
    ['A', None, 'A']
    """
    known = {text: value_of(text) for text in texts.drop_nulls().unique().to_list()}
    return texts.replace_strict(known, default=None, return_dtype=pl.String)


def listed(counts: Counter[str]) -> str:
    """Return the most frequent names with their numbers, and how many there are of others.

    >>> listed(Counter(a=2, b=1))
    '2 a, 1 b'
    """
    most = counts.most_common(_MOST_NAMED)
    rest = counts.total() - sum(count for _, count in most)
    parts = [f"{count:,} {name or 'without a name'}" for name, count in most]
    return ", ".join(parts + ([f"{rest:,} others"] if rest else []))
