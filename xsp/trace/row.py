"""The rows of a drawn tree: the words and numbers that each line shows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xsp.inexact import Inexact
from xsp.matching import Ints
from xsp.text import counted, duration, margin, printable, removed, share, surplus
from xsp.trace import folding

Floats = NDArray[np.float64]

# What spans are called in sentences, where not by their kind.
NOUNS = {
    "region": "region",
    "memcpy": "copy",
    "memset": "set",
    "sync": "synchronization",
    "syscall": "system call",
}
_MUCH = 5  # times the least that a function with a row took
# Kinds of row that are no kind of span: siblings of one class or name, the rest, self time.
SUMS = ("some", "rest", "own")
INTERVAL = ("latency_ns", "latency_low_ns", "latency_high_ns")
NUMBERS = (*folding.SUMMED, *INTERVAL[1:], "busy_ns")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tree: a span, several spans that look alike, or a sum of hidden spans.

    Attributes:
        depth: Depth in the tree; 0 for the root.
        last: Whether the row is the last of its siblings.
        parent: Whether the row has children.
        kind: Kind of span; `"some"` for hidden siblings of one class or name, `"rest"`
            for other hidden siblings, `"own"` for a span's self time.
        name: Printable name.
        detail: Class, phase and exception, as far as known; may be empty.
        count: Number of occurrences that the row stands for.
        latency_ns: Sum of the spans' latencies; None where no latency is known.
        margin_ns: Half the width of the latency's interval. Widths of folded spans are added
            up as if the errors were fully correlated, which gives the widest interval.
        overhead_ns: Sum of the overhead removed from the spans.
        share: Time in which at least one of the spans ran, as a fraction of the model's
            latency; what ran at once on several threads counts once.
        device_ns: Sum of the spans' device times; None where no device worked.
        inexact: Why the latency is not exact: all reasons that apply to any of the spans; none
            of self time, which is what the latencies inside leave.
        spans: Number of spans that the row stands for; a span may stand for several occurrences.
        share_margin: Half the width of the share's interval. An error that the model's latency
            has as well, of the machine's speed for one, is none of a share.
        most_ns: What the latency cannot be beyond: its interval's end, or what the row around may
            take; None where nothing tells.
        most_share: What the share cannot be beyond.
        first: Index of the first span that the row stands for; None for a row that is a sum.
        of_program: Whether all of the spans are parts of a program, whose overhead is what the
            program's clock showed beyond the latency, however wide the latency's interval is.
        inferred: Whether the number of occurrences is inferred from those that were counted.
        kinds: How long how many occurrences took, where there are two kinds of them.
        steps: How often the step ran that the row is part of; 1 where there are no steps.
        told: Number and mean latency of the occurrences, where neither the row around nor the
            steps tell them; or of both kinds.
        slowest: Whether no other layer without layers inside takes as much time.
    """

    depth: int
    last: bool
    parent: bool
    kind: str
    name: str
    detail: str
    count: int
    latency_ns: float | None
    margin_ns: float | None
    overhead_ns: float | None
    share: float | None
    device_ns: float | None = None
    inexact: tuple[Inexact, ...] = ()
    spans: int = 1
    share_margin: float | None = None
    most_ns: float | None = None
    most_share: float = 1.0
    first: int | None = None
    of_program: bool = False
    inferred: bool = False
    kinds: str = ""
    steps: int = 1
    told: str = ""
    slowest: bool = False

    @property
    def mean_ns(self) -> float | None:
        """Mean latency of the occurrences; None for a single one, and for unlike spans."""
        if self.count == 1 or self.latency_ns is None or self.kind in ("rest", "own"):
            return None
        return self.latency_ns / self.count

    @property
    def step_ns(self) -> float | None:
        """Latency per step; None where there are no steps."""
        if self.steps == 1 or self.latency_ns is None:
            return None
        return self.latency_ns / self.steps

    def each(self) -> str:
        """Return number and mean latency of the occurrences; empty for a single.

        Where a mean would say nothing of either of two kinds, the latencies of both.
        """
        if self.mean_ns is None:
            return ""
        if self.kinds:
            return self.kinds
        about = "~" if self.inferred else ""
        return f"{about}{self.count:,} \u00d7 {duration(self.mean_ns)}"

    def removed(self) -> str:
        """Return the overhead that was removed; `≈ 0` where that may be nothing."""
        if self.of_program:
            return surplus(self.overhead_ns)
        return removed(self.overhead_ns, self.margin_ns)

    def percents(self) -> str:
        """Return the share as a whole number of percents; empty where it is not known."""
        if self.share is None or not math.isfinite(self.share):
            return ""
        if 0 < self.share < 0.005:
            return "<1"
        return f"{min(100 * self.share, 100.0):.0f}"

    def part(self) -> str:
        """Return the row's share of the model's latency; empty where that is not known."""
        return share(self.share, self.share_margin, self.most_share)


@dataclass(frozen=True, slots=True)
class Outline:
    """Rows of the tree in the order of drawing, and the number of spans of the trace.

    Attributes:
        rows: The rows.
        spans: Number of spans of the trace.
        calls: Number of occurrences that these stand for.
        more: Whether a tree of more rows would show more.
    """

    rows: tuple[Row, ...]
    spans: int
    calls: int
    more: bool = False

    def without(
        self, reasons: Collection[Inexact], kinds: Collection[str] | None = None
    ) -> Outline:
        """Return the outline without some reasons why latencies are not exact.

        Args:
            reasons: The reasons.
            kinds: Kinds of row to take them from; None: all.
        """
        if not reasons:
            return self
        left = (
            replace(row, inexact=tuple(each for each in row.inexact if each not in reasons))
            if kinds is None or row.kind in kinds
            else row
            for row in self.rows
        )
        return replace(self, rows=tuple(left))

    @property
    def cut(self) -> bool:
        """Whether some spans are only part of a sum."""
        return self.spans > sum(row.spans for row in self.rows if row.kind not in SUMS)

    @property
    def contents(self) -> str:
        """Numbers of rows, spans and calls: `60 rows for 1,204 spans, 48,310 calls`."""
        calls = f", {self.calls:,} calls" if self.calls > self.spans else ""
        return f"{counted(len(self.rows), 'row')} for {counted(self.spans, 'span')}{calls}"


@dataclass(slots=True)
class Node:
    """A row before it is complete.

    Attributes:
        kind: As `Row.kind`.
        names: Names of a chain of operators, or a single name.
        groups: Numbers of the groups that the row sums up.
        tail: Number of the group whose children are the row's children.
        count: Number of occurrences that the spans in `groups` stand for.
        totals: Sums over `groups`, by the names in `NUMBERS`.
        children: The row's children, as far as the row has been opened.
        inexact: Code of the reasons why the row's latency is not exact.
    """

    kind: str
    names: tuple[str, ...]
    groups: Ints
    tail: int
    count: int
    totals: dict[str, float]
    children: list[Node] = field(default_factory=list)
    inexact: int = 0


class Tree(NamedTuple):
    """A tree: its root, and whether something small, or for lack of rows, is left out."""

    root: Node
    hidden: bool
    crowded: bool

    @property
    def size(self) -> int:
        """Number of rows."""
        stack, rows = [self.root], 0
        while stack:
            rows += 1
            stack.extend(stack.pop().children)
        return rows


def left_over(latency_ns: float, margin_ns: float, around: dict[str, float]) -> dict[str, float]:
    """Return the totals of self time, which has no interval unless it is not known at all.

    Args:
        latency_ns: The self time.
        margin_ns: How far it may be off, where it is not known at all.
        around: The totals of what it is part of; as many of it ran at once.
    """
    busy_ns = latency_ns * part_of_clock(around)
    totals = dict.fromkeys(NUMBERS, float("nan")) | {"latency_ns": latency_ns, "busy_ns": busy_ns}
    if margin_ns:
        totals |= {"latency_low_ns": 0.0, "latency_high_ns": latency_ns + margin_ns}
    return totals


def part_of_clock(totals: dict[str, float]) -> float:
    """Return how much of a row's latency is time of a clock: part where several ran at once."""
    return totals["busy_ns"] / totals["latency_ns"] if totals["latency_ns"] else 1.0


def margin_of(totals: dict[str, float]) -> float | None:
    """Return half the interval of a row's latency, if that is known."""
    reach = margin(*(totals[name] for name in INTERVAL))
    return None if reach is None else known(reach)


def function_rows(
    node: Node, functions: Mapping[int, Sequence[tuple[str, float, float]]], least_ns: float
) -> list[Node]:
    """Return rows for the functions that took much of a row's time.

    Args:
        node: The row.
        functions: By the number of a group its functions, each with its share of the row's time
            and how far the interval of that reaches.
        least_ns: How long a function took that has a row; the row itself took five times as long.
    """
    whole_ns = node.totals["latency_ns"]
    if whole_ns < _MUCH * least_ns:
        return []
    rows = []
    for name, part, reach in functions.get(int(node.groups[0]), ()):
        if part * whole_ns >= least_ns:
            totals = left_over(part * whole_ns, 0.0, node.totals)
            totals["latency_low_ns"] = max(part - reach, 0.0) * whole_ns
            totals["latency_high_ns"] = (part + reach) * whole_ns
            names = (printable(name),)
            rows.append(replace(node, kind="own", names=names, totals=totals, children=[]))
    return rows


def reach_of_rest(latency: Floats, low: Floats, high: Floats, *, error: float) -> float:
    """Return how far what latencies leave of the first one may be from their difference.

    The relative error of the model's latency is mostly that of the machine's speed, which all
    latencies share: of that part errors are subtracted as latencies are, of the rest squares are
    added. Parts of a program err by as much as the steps in them together, and what lies
    between these is measured by itself.

    Args:
        latency: The latency around, and those inside.
        low: The lower ends of their intervals.
        high: The upper ends.
        error: The relative error of the model's latency.

    >>> of = np.array([100.0, 60.0]), np.array([80.0, 48.0]), np.array([120.0, 72.0])
    >>> round(reach_of_rest(*of, error=0.2), 3), round(reach_of_rest(*of, error=0.0), 1)
    (8.0, 23.3)
    """
    half = np.nan_to_num(np.maximum(latency - low, high - latency))
    if math.isclose(half[0], half[1:].sum()):
        return 0.0
    common = np.nan_to_num(np.minimum(half, error * latency))
    own = np.sqrt(half - common) * np.sqrt(half + common)  # squares could be too large for numbers
    return math.hypot(*own.tolist(), float(common[0] - common[1:].sum()))


def known_sum(values: Floats) -> float:
    """Return the sum of the known values, NaN where no value is known: missing is not 0."""
    finite = values[np.isfinite(values)]
    return float(finite.sum()) if finite.size else float("nan")


def known(value: float) -> float | None:
    """Return a value, None where it is not known."""
    return value if np.isfinite(value) else None
