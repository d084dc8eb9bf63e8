"""Tells for how long the thread of each row was off the CPU, and why."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import Ints
from xsp.text import duration, printable
from xsp.trace.attribute import attribute_column
from xsp.trace.row import SUMS, Node, left_over

Floats = NDArray[np.float64]

OFF = "off the CPU"  # name of such a row


class OffCpu:
    """Time of each group of spans in which their threads waited.

    Args:
        spans: Frame with the columns of `trace.spans`.
        of: Number of the group of each span.
        parent: Row of the span around each span, -1 for the root.
    """

    def __init__(self, spans: pl.DataFrame, of: Ints, parent: Ints) -> None:
        calls = attribute_column(spans, "calls", pl.Int64).fill_null(1).to_numpy()
        size = int(of.max(initial=0)) + 1
        runnable, blocked = (
            np.nan_to_num(_numbers(spans, name)) * calls for name in ("runnable_ns", "blocked_ns")
        )
        self._runnable_ns, self._blocked_ns = (
            np.bincount(of, each, size) for each in (runnable, blocked)
        )
        self._total_ns = self._runnable_ns + self._blocked_ns
        # What ran on another thread takes nothing of a span's own time.
        thread = spans["thread"].fill_null(-1).to_numpy()
        inside = np.flatnonzero((parent >= 0) & (thread == thread[parent]))
        own = runnable + blocked
        np.subtract.at(own, parent[inside], (runnable + blocked)[inside])
        self._own_ns = np.bincount(of, np.maximum(own, 0.0), size)
        self._first = np.full(size, -1)
        self._first[of[::-1]] = np.arange(len(of))[::-1]
        self._causes = [attribute_column(spans, name) for name in ("blocked_in", "woken_by")]

    def rows(self, node: Node, least_ns: float) -> list[Node]:
        """Return a row for the time off the CPU of a span, if much of it lies in its own time.

        Args:
            node: The row of the span; of the root all time counts.
            least_ns: How much is much.
        """
        telling = self._own_ns if node.groups[0] else self._total_ns
        if node.kind in SUMS or not float(telling[node.groups].sum()) >= least_ns:
            return []
        totals = left_over(float(self._total_ns[node.groups].sum()), 0.0, node.totals)
        totals["busy_ns"] = float("nan")  # no share: it is part of what its siblings take
        return [Node("own", (OFF,), node.groups, node.tail, node.count, totals)]

    def why(self, groups: Ints) -> str:
        """Say for what these groups waited.

        Args:
            groups: Numbers of groups.
        """
        runnable, blocked = (
            float(each[groups].sum()) for each in (self._runnable_ns, self._blocked_ns)
        )
        where, waker = (column[int(self._first[groups[0]])] for column in self._causes)
        words = [f"{duration(runnable)} runnable"] if runnable else []
        if blocked:
            words.append(f"{duration(blocked)} blocked" + (f" in {where}" if where else ""))
            words += [f"woken by {waker}"] if waker else []
        return printable(", ".join(words))


def _numbers(spans: pl.DataFrame, name: str) -> Floats:
    return attribute_column(spans, name, pl.Float64).fill_null(float("nan")).to_numpy()
