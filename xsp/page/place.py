"""Places: a trace in, the span that a row of a table or a mark of a plot is about out.

A row says by its columns of which span it is. Where it is about many, as a row for each operator
is, it stands for the longest of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from xsp.level import Kind
from xsp.trace import Trace, attribute_column

# By the first of these columns that a table has; and what the column has in common with spans.
_COLUMNS: Mapping[str, str] = {
    "path": "path",
    "path_a": "path",
    "module": "module",
    "operator": "operator",
    "kernel": "kernel",
}
_KINDS = {"operator": Kind.OP, "kernel": Kind.KERNEL}


def telling(table: pl.DataFrame) -> str | None:
    """Return the column by which the rows of a table say of which span they are, if there is one.

    >>> telling(pl.DataFrame({"part": ["predict"], "module": ["layer1.0"]}))
    'module'
    """
    found = next((name for name in _COLUMNS if name in table.columns), None)
    return found if found and table[found].dtype == pl.String else None


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
        named = table.select(key=column).join(
            self._by(_COLUMNS[column]), on="key", how="left", maintain_order="left"
        )
        return named["row"].fill_null(-1).to_list()

    def _by(self, what: str) -> pl.DataFrame:
        """Return the row of the longest span for each `key`."""
        spans = self._spans
        if what in _KINDS:
            spans = spans.filter(pl.col("kind") == _KINDS[what].value).with_columns(
                pl.col("name").alias(what)
            )
        longest = spans.sort("latency_ns", descending=True, nulls_last=True, maintain_order=True)
        return longest.select("row", key=what).drop_nulls().unique("key", keep="first")
