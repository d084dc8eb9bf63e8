"""Finds the span that a row of a table, or a mark of a plot, is about.

A row says by its columns of which span it is. Where it is about many, as a row for each operator
is, it stands for the longest of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from xsp.level import Kind
from xsp.trace import Trace, attribute_column

# By the first of these columns that a table has.
_COLUMNS = ("path", "path_a", "layer", "module", "operator", "kernel")
# The first of these that a table has leads to the spans: a path is too long to stand in front.
_LINKS = ("layer", "module", "operator", "kernel", "path", "path_a")


def telling(table: pl.DataFrame) -> str | None:
    """Return the column by which the rows of a table say of which span they are, if there is one.

    >>> telling(pl.DataFrame({"part": ["predict"], "module": ["layer1.0"]}))
    'module'
    """
    return _first(_COLUMNS, table)


def leading(table: pl.DataFrame) -> str | None:
    """Return the column whose cells lead to the spans, if there is one."""
    return _first(_LINKS, table)


def _first(names: Sequence[str], table: pl.DataFrame) -> str | None:
    texts = (name for name in names if table.schema.get(name) == pl.String)
    return next(texts, None)


class Places:
    """The spans of a trace by path, by module, and by name.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        spans = trace.spans
        self._spans = spans.select(
            "path",
            "name",
            "kind",
            "latency_ns",
            module=attribute_column(spans, "module_path"),
            row=pl.int_range(pl.len(), dtype=pl.Int64),
        )

    def rows_of(self, table: pl.DataFrame) -> list[int]:
        """Return the row of `trace.spans` that each row of a table is about, -1 for none."""
        column = telling(table)
        if column is None:
            return [-1] * table.height
        # The row of the longest span for each `key`, a value of a table's column.
        key, among = _KEYS[column]
        spans = self._spans.filter(among).select("row", "latency_ns", key=key).drop_nulls("key")
        longest = spans.sort("latency_ns", descending=True, nulls_last=True, maintain_order=True)
        by = longest.select("row", "key").unique("key", keep="first")
        named = table.select(key=column).join(by, on="key", how="left", maintain_order="left")
        return named["row"].fill_null(-1).to_list()


# What the values of a table's column are of a span, and which spans.
_LAYER = pl.coalesce(pl.col("module").replace("", None), "name")
_EVERY = pl.lit(value=True)
_KEYS: Mapping[str, tuple[pl.Expr, pl.Expr]] = {
    "path": (pl.col("path"), _EVERY),
    "path_a": (pl.col("path"), _EVERY),
    "layer": (_LAYER, pl.col("kind") == Kind.LAYER.value),
    "module": (pl.col("module"), pl.col("kind") == Kind.LAYER.value),
    "operator": (pl.col("name"), pl.col("kind") == Kind.OP.value),
    "kernel": (pl.col("name"), _EVERY),
}
