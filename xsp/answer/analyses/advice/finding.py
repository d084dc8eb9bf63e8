"""Findings: what rules of advice take and return, and which findings are worth telling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from xsp.answer.analyses.structure.sums import Bools, bounds_ns, on_host, self_times
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints
from xsp.text import duration, shorten
from xsp.trace import Trace

# A gain of less than this part of the trace's latency is not told.
_LEAST = 0.01
# Names of kernels may have hundreds of letters.
_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found in a trace.

    Attributes:
        rule: Name of the rule.
        advice: What to do, one sentence.
        evidence: The numbers that say so.
        gain_ns: Size of the possible gain.
        error_ns: How far the interval of the times that the gain rests on reaches; None where
            these have no interval, as recordings have none.
        estimate: How the gain was estimated.
        verify: A command or code that shows whether it is so.
    """

    rule: str
    advice: str
    evidence: str
    gain_ns: float
    error_ns: float | None
    estimate: str
    verify: str

    def is_worth(self, whole_ns: float) -> bool:
        """Return whether the gain is no noise, and 1 % of the whole or more."""
        return self.gain_ns > 0 and self.gain_ns >= max(_LEAST * whole_ns, self.error_ns or 0.0)


class Case:
    """A trace as rules look at it: its tree, and what several of them need."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.tree = on_host(Tree.of(trace))
        self._is_of: dict[tuple[Kind, ...], Bools] = {}
        self._above: dict[tuple[Kind, ...], Ints] = {}
        self._own: dict[tuple[Kind, ...], pl.DataFrame] = {}

    def is_of(self, *kinds: Kind) -> Bools:
        """Return which spans are of some kinds, as `Tree.is_of` does, but once for all rules."""
        if kinds not in self._is_of:
            self._is_of[kinds] = found = self.tree.is_of(*kinds)
            found.setflags(write=False)
        return self._is_of[kinds]

    def rows(self, *kinds: Kind) -> Ints:
        """Return the rows of all spans of some kinds."""
        return np.flatnonzero(self.is_of(*kinds))

    def above(self, *kinds: Kind) -> Ints:
        """Return the row of each span's innermost ancestor of some kinds, -1 for none."""
        if kinds not in self._above:
            self._above[kinds] = self.tree.nearest(self.is_of(*kinds))
        return self._above[kinds]

    @property
    def whole_ns(self) -> float:
        """Latency of the trace."""
        return float(np.nan_to_num(self.tree.latency_ns()[0]))

    @cached_property
    def has_device(self) -> bool:
        """Whether a device worked."""
        return bool(self.is_of(*DEVICE_ACTIVITIES).any())

    @property
    def idle_ns(self) -> float:
        """How long no device works: more cannot be gained by waiting less for devices or data.

        The whole latency where no device works at all.
        """
        busy = self.tree.spans["device_ns"][0]
        return max(self.whole_ns - busy, 0.0) if busy is not None else self.whole_ns

    @cached_property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        names = self.tree.spans["name"]
        phases = self.tree.attribute("phase")
        return bool((phases == "backward").any() or names.str.starts_with("autograd::").any())

    @cached_property
    def _names(self) -> tuple[pl.Series, Ints]:
        """The different names, and for each span which of them it has."""
        known = self.tree.spans.select("name").unique(maintain_order=True).with_row_index("of")
        of = self.tree.spans.select("name").join(known, on="name", maintain_order="left")["of"]
        return known["name"], of.cast(pl.Int64).to_numpy()

    def is_named(self, pattern: str) -> Bools:
        """Return which spans have names in which a regular expression is found."""
        names, of = self._names
        found: Bools = names.str.contains(pattern).to_numpy()[of]
        return found

    def self_times(self, *kinds: Kind) -> pl.DataFrame:
        """Return the self times of spans of some kinds; see `structure.sums.self_times`."""
        if kinds not in self._own:
            self._own[kinds] = self_times(self.tree, self.is_of(*kinds))
        return self._own[kinds]

    def own(self, rows: Ints, *kinds: Kind) -> tuple[float, float | None]:
        """Return the self time of some rows among some kinds, and how far its interval reaches.

        That is None where no interval is known.
        """
        times = self.self_times(*kinds)[rows]
        return _sum_and_reach(times["own_ns"], times["own_low_ns"], times["own_high_ns"])

    def latency(self, rows: Ints) -> tuple[float, float | None]:
        """Return the latency of some rows, added up, and how far its interval reaches."""
        low, high = (pl.Series(each[rows]) for each in bounds_ns(self.tree))
        return _sum_and_reach(pl.Series(self.tree.latency_ns()[rows]), low, high)

    def work_ns(self) -> tuple[Floats, Floats]:
        """Return how long each span's work takes, and how far the interval of that reaches.

        Where a device worked that is what it did for the span, all added up; else the latency.
        NaN where no interval is known.
        """
        latency, (low, high) = self.tree.latency_ns(), bounds_ns(self.tree)
        if not self.has_device:
            reach = np.fmax(high - latency, latency - low)
            return np.nan_to_num(latency), reach
        below, rows = np.zeros(len(latency)), self.tree.rows(*DEVICE_ACTIVITIES)
        time, at = np.nan_to_num(latency[rows]), self.tree.parent[rows]
        while len(at):
            time, at = time[at >= 0], at[at >= 0]
            np.add.at(below, at, time)
            at = self.tree.parent[at]
        return below, np.full(len(latency), np.nan)

    def layers(self, rows: Ints, time: Floats, most: int = 3) -> str:
        """Return the layers in which some rows take most time, for people."""
        layers = self.above(Kind.LAYER)[rows]
        path = pl.coalesce(self.tree.attribute("module_path"), self.tree.spans["name"])
        names = pl.select(path).to_series()[np.maximum(layers, 0)]
        frame = pl.DataFrame({"name": names, "time": np.nan_to_num(time)})
        return named(frame.filter(pl.Series(layers >= 0) & (pl.col("name") != "")), most)


def named(frame: pl.DataFrame, most: int = 3) -> str:
    """Return the names that take most time, with their times: `conv1 (12.0 ms), fc (3.00 ms)`.

    Args:
        frame: Columns `name` and `time`, in ns.
        most: How many of them.
    """
    sums = frame.group_by("name", maintain_order=True).agg(pl.sum("time"))
    first = sums.sort("time", descending=True, maintain_order=True).head(most)
    return ", ".join(
        f"{shorten(name, _WIDTH)} ({duration(time)})" for name, time in first.iter_rows()
    )


def reach_of(reach: pl.Series) -> float | None:
    """Return how far a sum's interval reaches, of the reaches of its parts; None for unknown."""
    known = reach.fill_nan(None)
    return float(known.sum()) if known.count() else None


def _sum_and_reach(time: pl.Series, low: pl.Series, high: pl.Series) -> tuple[float, float | None]:
    values = [each.cast(pl.Float64).fill_null(np.nan).to_numpy() for each in (time, low, high)]
    reach = np.fmax(values[2] - values[0], values[0] - values[1])
    return float(np.nansum(values[0])), reach_of(pl.Series(reach))
