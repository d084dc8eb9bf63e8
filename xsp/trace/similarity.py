"""Fields of the column `attributes`, which a trace may lack or a user's may be mistaken for."""

from __future__ import annotations

from typing import Any

import polars as pl


def field(spans: pl.DataFrame, name: str, dtype: Any = pl.String) -> pl.Series:
    """Return one attribute as a series, null throughout where the trace has none of it.

    A user's own attribute may bear the name and be of another type: it is not ours.
    """
    if pl.Field(name, dtype) not in getattr(spans.schema["attributes"], "fields", ()):
        return pl.Series(name, [None] * spans.height, dtype=dtype)
    found: pl.Series = spans["attributes"].struct.field(name)
    return found
