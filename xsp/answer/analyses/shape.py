"""Writes shapes of tensors as text, by which calls of operators are told apart."""

from __future__ import annotations

import polars as pl


def shapes_text(shapes: pl.Series) -> pl.Series:
    """Return shapes as text, such as `1×3×224×224, 64×3×7×7`."""
    one = pl.element().cast(pl.List(pl.String)).list.join("×").replace("", "scalar").fill_null("?")
    return shapes.list.eval(one).list.join(", ")
