"""The tree of a trace's spans that analyses read: rows by kind, ancestors and self times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints
from xsp.trace import Trace, attribute_column, parent_rows

Floats = NDArray[np.float64]
T = TypeVar("T")

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
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, trace: Trace) -> Tree:
        """Return the tree of a trace: the same for all analyses, as long as there is the trace."""
        tree = _TREES.get(trace)
        if tree is None:
            spans = trace.spans
            tree = _TREES[trace] = cls(spans, parent_rows(spans))
        return tree

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return a result computed from the tree at the first call, and kept as long as the tree.

        Several analyses of one trace need the same: nobody must change it.
        """
        if what not in self._kept:
            self._kept[what] = make()
        kept: T = self._kept[what]
        return kept

    def attribute(self, name: str, dtype: Any = pl.String) -> pl.Series:
        """Return one attribute of all spans, null where a span does not have it."""
        return attribute_column(self.spans, name, dtype)

    def is_of(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Return which spans are of some kinds; the array cannot be written to."""
        return self.once(kinds, lambda: self._is_of(kinds))

    def rows(self, *kinds: Kind) -> Ints:
        """Return the rows of all spans of some kinds."""
        return np.flatnonzero(self.is_of(*kinds))

    def nearest(self, among: NDArray[np.bool_]) -> Ints:
        """Return the row of each span's innermost ancestor among some spans, -1 for none.

        The array cannot be written to.

        >>> tree = Tree(pl.DataFrame(), np.array([-1, 0, 1, 2]))
        >>> tree.nearest(np.array([True, True, False, False]))
        array([-1,  0,  1,  1])
        """
        return self.once(np.packbits(among).tobytes(), lambda: self._nearest(among))

    def latency_ns(self) -> Floats:
        """Return the latency of each span in ns; NaN where it is not known."""
        known: Floats = self.spans["latency_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
        return known

    def own_ns(self, among: NDArray[np.bool_]) -> Floats:
        """Return of each span among some its latency less that of the next ones among them below.

        So the self times of all layers sum to the layers' time, wherever operators lie between.
        Not below 0: latencies of different passes may contradict each other by their errors. What
        ran on another thread than the span above it takes nothing of that span's time.

        Returns:
            Self times in ns; NaN for spans that are not among them, or whose latency is not known.
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
        inside = np.flatnonzero(among & (above >= 0))
        inside = inside[thread[inside] == thread[above[inside]]]
        return inside, above[inside]

    def deepest(self) -> tuple[Kind, ...]:
        """Return the kinds of the deepest level at which the trace shows work.

        Kernels, copies and sets where a device worked; else library calls, else operators, else
        layers, else region spans. The paper's analyses of kernels are of these.
        """
        for kinds in (DEVICE_ACTIVITIES, (Kind.CALL,), (Kind.OP,), (Kind.LAYER,)):
            if self.is_of(*kinds).any():
                return kinds
        return (Kind.REGION,)

    def _is_of(self, kinds: tuple[Kind, ...]) -> NDArray[np.bool_]:
        found = self.spans["kind"].is_in([kind.value for kind in kinds]).to_numpy()
        found.setflags(write=False)
        return found

    def _nearest(self, among: NDArray[np.bool_]) -> Ints:
        found = self.parent.copy()
        on = np.flatnonzero(found >= 0)
        while len(on := on[~among[found[on]]]):
            # What was found for the ancestor lies twice as far away in each pass.
            found[on] = found[found[on]]
            on = on[found[on] >= 0]
        found.setflags(write=False)
        return found
