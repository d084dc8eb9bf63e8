"""JSON text of single values, for the formats that are written span by span.

Numbers that JSON has no notation for become the strings of the proto3 JSON mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii

import polars as pl

from xsp.export.label import PREFIX
from xsp.export.picture import SPAN_SCHEMA, Value

# What each span of a slice has, beside its attributes.
COLUMNS = tuple(SPAN_SCHEMA)

# Writes an attribute; its name is JSON already.
Form = Callable[[str, Value], str]


def string(text: str) -> str:
    r"""Return a JSON string that readers with simple parsers take as well.

    Trace Compass counts every quote, escaped or not, and reads bytes as
    characters: quotes inside are written as code points, and all is ASCII.

    >>> print(string('a "quoted" Ω\n'))
    "a \u0022quoted\u0022 \u03a9\n"
    """
    if not text.isascii():
        # What comes from JSON or the environment may hold half a surrogate pair.
        text = text.encode("utf-8", "replace").decode()
    literal = encode_basestring_ascii(text)
    if '\\"' in literal:
        literal = '"' + literal[1:-1].replace('\\"', "\\u0022") + '"'
    return literal


def number(value: float) -> str:
    """Return a number, or one of the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.

    >>> number(0.1), number(float("-inf"))
    ('0.1', '"-Infinity"')
    """
    if math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return '"NaN"'
    return '"Infinity"' if value > 0 else '"-Infinity"'


def plain(value: Value) -> str:
    """Return a value as the JSON that it is by nature.

    >>> plain([True and "yes", "no"]), plain(True), plain(2**60)
    ('["yes","no"]', 'true', '1152921504606846976')
    """
    if isinstance(value, str):
        return string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    return "[" + ",".join(map(string, value)) + "]"


def listed(pairs: Mapping[str, Value], form: Form) -> str:
    """Return pairs as the inside of a JSON array, each as `form` writes it."""
    return ",".join(form(string(key), value) for key, value in pairs.items())


def attributes(spans: pl.DataFrame, form: Form) -> list[str]:
    """Return the attributes of each row as the inside of a JSON array or object.

    Args:
        spans: Columns `attr.NAME`, null where a row lacks it; others are left alone.
        form: Writes an attribute; its name is JSON already.
    """
    columns: list[Iterable[str | None]] = [
        _written(spans[column], column.removeprefix(PREFIX), form)
        for column in spans.columns
        if column.startswith(PREFIX)
    ]
    if not columns:
        return [""] * spans.height
    return [",".join(filter(None, row)) for row in zip(*columns, strict=True)]


def by_row(rows: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return the texts of each row joined by commas.

    >>> by_row([(0, "a"), (3, "b"), (0, "c")])
    {0: 'a,c', 3: 'b'}
    """
    found: dict[int, list[str]] = {}
    for row, text in rows:
        found.setdefault(row, []).append(text)
    return {row: ",".join(texts) for row, texts in found.items()}


def _written(column: pl.Series, name: str, form: Form) -> list[str | None]:
    key = string(name)
    return [None if value is None else form(key, value) for value in column.to_list()]
