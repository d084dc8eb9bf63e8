"""Reads the numbers of one file, in whatever locale Nsight Compute wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

# Marks between groups of digits that are never the mark before decimals: spaces of all widths,
# apostrophes, and the underscore.
_SPACES = "[ \u00a0\u2007\u2008\u2009\u202f'\u2019_]"
_SPACED = rf"(\d){_SPACES}(\d)"
# A metric of several instances: the value, and in parentheses the value of each instance.
_INSTANCES = r"^(\S[^(]*?)\s*\([^()]*;[^()]*\)$"
_UNKNOWN = ("", "n/a", "nan", "-nan", "nan(ind)", "-nan(ind)", "inf", "-inf", "+inf", "none")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that texts stand for.

    Attributes:
        values: Float64, one per text; null where the text is no number, or an ambiguous one.
        ambiguous: Whether each text can be read in two ways, and no other text tells which.
        unknown: Whether each text says that there is no number (`n/a`, `nan`).
    """

    values: pl.Series
    ambiguous: pl.Series
    unknown: pl.Series


def numbers(texts: pl.Series | Sequence[str | None]) -> Numbers:
    """Return the numbers that texts of one file stand for.

    Args:
        texts: Texts of one locale, in any order; null stands for "no number".

    >>> numbers(["1,500", "2,345.5"]).values.to_list()
    [1500.0, 2345.5]
    >>> numbers(["1,500", "2.345,5"]).values.to_list()
    [1.5, 2345.5]
    >>> numbers(["1,500"]).ambiguous.to_list()
    [True]
    """
    text = pl.Series("text", texts, dtype=pl.String).fill_null("").str.strip_chars()
    # Texts without instances, and without marks that only stand between groups.
    value = pl.col("text").str.replace(_INSTANCES, "$1")
    # Twice: of two marks with one digit between them, the first replacement misses one.
    bare = value.str.replace_all(_SPACED, "$1$2").str.replace_all(_SPACED, "$1$2")
    told = text.to_frame().unique().with_columns(bare=bare)
    point, comma = _fits(".", ","), _fits(",", ".")
    lower = pl.col("text").str.to_lowercase()
    told = told.with_columns(point=point, comma=comma, unknown=lower.is_in(_UNKNOWN))
    told = told.with_columns(
        as_point=_number("point", ".", ","),
        as_comma=_number("comma", ",", "."),
    )
    open_ = pl.col("as_point") != pl.col("as_comma")
    mark = _mark(told.filter("point"), told.filter("comma"))
    chosen = {".": pl.col("as_point"), ",": pl.col("as_comma"), "": pl.lit(None, pl.Float64)}[mark]
    told = told.with_columns(ambiguous=open_.fill_null(value=False) & pl.lit(not mark))
    told = told.with_columns(
        value=pl.when(open_).then(chosen).otherwise(pl.coalesce("as_point", "as_comma"))
    )
    found = text.to_frame().join(told, on="text", how="left", maintain_order="left")
    return Numbers(found["value"], found["ambiguous"], found["unknown"])


def _fits(mark: str, between: str) -> pl.Expr:
    """Tell which texts are numbers where `mark` is before decimals, `between` between groups.

    A number has one mark between groups: in `1 234,567` the comma stands before decimals. Digits
    are grouped by threes; in India the groups above are of two.
    """
    tail = rf"(\{mark}\d*)?([eE][+-]?\d+)?$"
    grouped = rf"[1-9]\d{{0,2}}(\{between}\d{{2,3}})*\{between}\d{{3}}"
    spaced = pl.col("text").str.contains(_SPACED)
    plain = pl.col("bare").str.contains(rf"^[+-]?\d+{tail}")
    return plain | (~spaced & pl.col("bare").str.contains(rf"^[+-]?{grouped}{tail}"))


def _number(fits: str, mark: str, between: str) -> pl.Expr:
    plain = pl.col("bare").str.replace_all(between, "", literal=True)
    plain = plain.str.replace(mark, ".", literal=True)
    value = pl.when(fits).then(plain).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _mark(point: pl.DataFrame, comma: pl.DataFrame) -> str:
    """Return the mark before decimals that all unambiguous texts agree on; empty if none does."""
    says_point = point["comma"].not_().any()
    says_comma = comma["point"].not_().any()
    return "" if says_point == says_comma else "." if says_point else ","
