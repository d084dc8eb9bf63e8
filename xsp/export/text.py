"""Text: values as receivers can keep and people can read them."""

from __future__ import annotations

from typing import Any

import polars as pl

# Jaeger's Badger storage refuses a span with a value of more than 65,000 bytes, and a
# character takes four of them at most.
MOST_CHARACTERS = 8_192

_TEXT = pl.String()
_TEXTS = pl.List(pl.String())


def shortened(values: pl.Series) -> pl.Series:
    """Return text of at most `MOST_CHARACTERS` characters, with a note where it was longer."""
    length = values.str.len_chars()
    if not (length > MOST_CHARACTERS).any():
        return values
    cut = pl.format("{}… (cut: {} characters)", values.str.head(MOST_CHARACTERS), length)
    known = pl.when(length > MOST_CHARACTERS).then(cut).otherwise(values)
    return pl.select(known.alias(values.name)).to_series()


def joined(values: pl.Series) -> pl.Series:
    """Return lists of texts, numbers or shapes as one text each: `1x3x224x224, -`."""
    if values.dtype == pl.List(pl.List(pl.Int64())):
        shape = pl.element().cast(_TEXTS).list.join("x")
        values = values.list.eval(shape)
    values = values.cast(_TEXTS)
    return values.list.eval(pl.element().replace("", "-")).list.join(", ", ignore_nulls=True)


def plain(values: pl.Series) -> pl.Series:
    """Return values as one of the types that an attribute can have.

    A column with a number that is not finite becomes text: Jaeger cannot show a
    trace at all that holds a number which JSON has not.
    """
    dtype = values.dtype
    if isinstance(dtype, pl.List):
        return _plain_lists(values)
    if dtype.is_nested() or dtype == pl.Binary:
        return shortened(_written(values))
    if dtype.is_integer() and dtype != pl.UInt64:
        dtype = pl.Int64()
    elif dtype.is_float():
        finite = values.is_finite().fill_null(value=True).all()
        dtype = pl.Float64() if finite else _TEXT
    elif dtype != pl.Boolean:
        dtype = _TEXT
    known: pl.Series = values.cast(dtype)
    return shortened(known) if dtype == _TEXT else known


def _plain_lists(values: pl.Series) -> pl.Series:
    written = [None if items is None else [str(item) for item in items] for items in values]
    texts = pl.Series(written, dtype=_TEXTS)
    whole = texts.list.join(", ")
    return shortened(whole) if (whole.str.len_chars() > MOST_CHARACTERS).any() else texts


def _written(values: pl.Series) -> pl.Series:
    return pl.Series([_text(value) for value in values], dtype=_TEXT)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
