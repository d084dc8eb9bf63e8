"""The tree that analyses read: a trace's spans in, rows by kind, ancestors and own times out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Ints
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace, attribute_column, parent_rows

Floats = NDArray[np.float64]

_TREES: WeakKeyDictionary[Trace, Tree] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Tree:
    """The spans of a trace, and where each one's parent is.

    Attributes:
        spans: Columns of `trace.spans`, the root first, parents before their children.
        parent: Row of each span's parent, -1 for the root.
    """

    spans: pl.DataFrame
    parent: Ints

    @classmethod
    def of(cls, trace: Trace) -> Tree:
        """Return the tree of a trace: the same for all analyses, as long as there is the trace."""
        tree = _TREES.get(trace)
        if tree is None:
            spans = trace.spans
            tree = _TREES[trace] = cls(spans, parent_rows(spans))
        return tree

    def attribute(self, name: str, dtype: Any = pl.String) -> pl.Series:
        """Return one attribute of all spans, null where a span does not have it."""
        return attribute_column(self.spans, name, dtype)

    def is_of(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Return which spans are of some kinds."""
        return self.spans["kind"].is_in([kind.value for kind in kinds]).to_numpy()

    def rows(self, *kinds: Kind) -> Ints:
        """Return the rows of all spans of some kinds."""
        return np.flatnonzero(self.is_of(*kinds))

    def nearest(self, among: NDArray[np.bool_]) -> Ints:
        """Return the row of each span's innermost ancestor among some spans, -1 for none.

        >>> tree = Tree(pl.DataFrame(), np.array([-1, 0, 1, 2]))
        >>> tree.nearest(np.array([True, True, False, False]))
        array([-1,  0,  1,  1])
        """
        found = self.parent.copy()
        while True:
            on = np.flatnonzero((found >= 0) & ~among[found])
            if not len(on):
                return found
            # What was found for the ancestor lies twice as far away in each pass.
            found[on] = found[found[on]]

    def latency_ns(self) -> Floats:
        """Return the latency of each span in ns; NaN where it is not known."""
        known: Floats = self.spans["latency_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
        return known

    def own_ns(self, among: NDArray[np.bool_]) -> Floats:
        """Return of each span among some its latency less that of the next ones among them below.

        So the own times of all layers sum to the layers' time, wherever operators lie between.
        Not below 0: latencies of different rungs may contradict each other by their errors. What
        ran on another thread than the span above it takes nothing of that span's time.

        Returns:
            Own times in ns; NaN for spans that are not among them, or whose latency is not known.
        """
        return self.own(self.latency_ns(), among)

    def own(self, values: Floats, among: NDArray[np.bool_]) -> Floats:
        """Return any quantity of each span less that of the next spans below, as `own_ns` does.

        Args:
            values: What each span has, with what the spans below have; NaN where not known.
            among: Which spans count.
        """
        values = np.where(among, values, np.nan)
        inside, above = self.inside(among)
        own = values.copy()
        np.subtract.at(own, above, np.nan_to_num(values[inside]))
        return np.maximum(own, 0.0)

    def inside(self, among: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the spans that lie in another one among some on its thread, and that one."""
        above = self.nearest(among)
        thread = self.spans["thread"].fill_null(-1).to_numpy()
        inside = np.flatnonzero(among & (above >= 0) & (thread == thread[above]))
        return inside, above[inside]

    def deepest(self) -> tuple[Kind, ...]:
        """Return the kinds of the deepest level at which the trace shows work.

        Kernels, copies and sets where a device worked; else library calls, else operators, else
        layers, else pipeline spans. The paper's analyses of kernels are of these.
        """
        for kinds in (DEVICE_ACTIVITIES, (Kind.CALL,), (Kind.OP,), (Kind.LAYER,)):
            if self.is_of(*kinds).any():
                return kinds
        return (Kind.PIPELINE,)
