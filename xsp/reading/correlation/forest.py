"""Forest: rows of several steps in one frame, each with its lane, times and parent.

`parent` makes a forest of the rows of a visit; each rule takes a forest and returns another.

    row   name      root   lane   parent
    0     predict      0      0       -1
    1     fc           0      0        0
    2     predict      2      1       -1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.matching import orders
from xsp.provider import SpanRows, concat_rows
from xsp.reading.correlation.interval import Integers


@dataclass(frozen=True, slots=True)
class Forest:
    """Rows, with the time, the lane and the parent of each; n entries each, by index.

    Attributes:
        rows: The rows (`xsp.provider.ROW_SCHEMA`, `ambiguous`, and attributes).
        root: Index of the root of the row's step; a root's own index for the root.
        lane: Number of the row's lane (a thread or stream within one step).
        start: Start of the row, in nanoseconds.
        end: End of the row, in nanoseconds.
        order: Position of the kind from outside in (`Kind.order`).
        parent: Index of the row's parent, -1 for roots.
    """

    rows: SpanRows
    root: Integers
    lane: Integers
    start: Integers
    end: Integers
    order: Integers
    parent: Integers

    def __len__(self) -> int:
        return self.rows.height

    def with_rows(
        self, rows: SpanRows, like: Integers, *, parent: Integers, end: Integers | None = None
    ) -> Forest:
        """Return the forest with m more rows behind its own.

        Args:
            rows: The new rows.
            like: Index of the row whose root, lane and start each new row gets.
            parent: Index of each new row's parent.
            end: End of each new row, in nanoseconds; None: that of the row in `like`.
        """
        return Forest(
            rows=concat_rows([self.rows, rows]),
            root=np.append(self.root, self.root[like]),
            lane=np.append(self.lane, self.lane[like]),
            start=np.append(self.start, self.start[like]),
            end=np.append(self.end, self.end[like] if end is None else end),
            order=np.append(self.order, orders(rows)),
            parent=np.append(self.parent, parent),
        )

    def stated_parents(self, rows: SpanRows, root: Integers) -> Integers:
        """Return the index of the parent that each row states, -1 where it states none that exists.

        Args:
            rows: m rows with the column `parent_id` (0 for the root, null for no statement).
            root: Index of each row's root; parents are sought among the rows of that root.
        """
        if rows["parent_id"].null_count() == rows.height:
            return np.full(rows.height, -1, np.int64)
        known = self.rows.select("id", root=self.root, owner=np.arange(len(self)))
        known = known.filter(pl.col("id").is_not_null()).unique(["root", "id"], keep="first")
        asking = rows.select("parent_id", root=root).with_row_index("row")
        asking = asking.filter(pl.col("parent_id").is_not_null()).join(
            known, left_on=["root", "parent_id"], right_on=["root", "id"], how="left"
        )
        owner = pl.when(pl.col("parent_id") == 0).then("root").otherwise("owner")
        found = asking.select("row", owner=owner.cast(pl.Int64).fill_null(-1))
        stated = np.full(rows.height, -1, np.int64)
        stated[found["row"].to_numpy()] = found["owner"].to_numpy()
        return stated
