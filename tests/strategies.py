"""Hypothesis strategies for rows: trees that correlation must find again, and arbitrary ones.

`forests()` draws steps whose rows have one right place each, together with
that place; `scattered_rows()` draws rows that overlap as they please.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from xsp.level import Kind
from xsp.provider.row import SpanRows, no_rows, span_rows

HOST_KINDS = (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL, Kind.LAUNCH, Kind.SYSCALL)
MAIN_THREAD = 100

# Drawing a forest takes as long as it takes, above all where other work is running.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Shape:
    """A span without its place in time: `lead` before it, `tail` after its last child."""

    kind: Kind
    lead: int
    tail: int
    children: tuple[Shape, ...] = ()

    @property
    def momentary(self) -> bool:
        """Whether the span has no length. Only a deeper kind can lie inside of such a span."""
        if self.tail or len(self.children) > 1:
            return False
        return all(
            child.momentary and not child.lead and child.kind.order > self.kind.order
            for child in self.children
        )


@dataclass(frozen=True)
class Placed:
    """A span in its place."""

    name: str
    kind: Kind
    start: int
    end: int
    thread: int
    parent: str | None


@dataclass(frozen=True)
class Forest:
    """Input of correlation, with the result that it must have.

    Attributes:
        roots: One row per step.
        rows: All other rows, in a random order.
        trees: For each root the spans that belong to it, itself first; names are unique.
        orphans: How many rows are on a thread of their own and not region spans.
    """

    roots: SpanRows
    rows: SpanRows
    trees: tuple[tuple[Placed, ...], ...]
    orphans: int


@st.composite
def shapes(draw: st.DrawFn, *, depth: int = 4, width: int = 3) -> Shape:
    """Draw a span of any kind, with what it holds, of any kinds too."""
    kind = draw(st.sampled_from(HOST_KINDS))
    below = shapes(depth=depth - 1, width=width)
    children = draw(st.lists(below, max_size=width)) if depth else []
    return Shape(kind, draw(st.integers(0, 3)), draw(st.integers(0, 3)), tuple(children))


@st.composite
def forests(draw: st.DrawFn, *, evaluations: int = 3, threads: int = 2, depth: int = 4) -> Forest:
    """Draw steps on one thread, with rows beside them on up to `threads` others."""
    layout = _Layout()
    now = draw(st.sampled_from([0, -50, 10**15]))
    trees = []
    for _ in range(draw(st.integers(1, evaluations))):
        tops = draw(st.lists(shapes(depth=depth), max_size=4))
        root = Shape(Kind.REGION, draw(st.integers(0, 2)), draw(st.integers(0, 3)), tuple(tops))
        tree = layout.evaluation(root, now)
        for thread in range(draw(st.integers(0, threads))):
            beside = draw(st.lists(shapes(depth=depth - 1), min_size=1, max_size=3))
            tree += layout.beside(tree[0], beside, thread)
        trees.append(tuple(tree))
        now = tree[0].end + (tree[0].start == tree[0].end)
    rows = [span for tree in trees for span in tree[1:]]
    shuffled = _in_given_order_where_equal(draw(st.permutations(rows)), rows)
    return Forest(
        as_rows([tree[0] for tree in trees]), as_rows(shuffled), tuple(trees), layout.orphans
    )


@dataclass
class _Layout:
    """Gives shapes their times such that every span has one right place."""

    count: int = 0
    orphans: int = 0
    spans: list[Placed] = field(default_factory=list)

    def evaluation(self, root: Shape, now: int) -> list[Placed]:
        self.spans = []
        self._place(root, now + root.lead, MAIN_THREAD, None)
        return sorted(self.spans, key=lambda span: span.parent is not None)

    def beside(self, root: Placed, tops: list[Shape], thread: int) -> list[Placed]:
        self.spans = []
        for top, start in self._siblings(tops, root.start):
            if start + _length(top) < root.end:
                self.orphans += top.kind is not Kind.REGION
                self._place(top, start, thread, root.name)
        return self.spans

    def _place(self, shape: Shape, start: int, thread: int, parent: str | None) -> int:
        name = f"s{self.count}"
        self.count += 1
        end = start
        at = len(self.spans)
        for child, begin in self._siblings(shape.children, start, shape):
            end = self._place(child, begin, thread, name)
        # After an instant at its end one could not say whether it is inside or outside.
        last_is_moment = bool(shape.children) and shape.children[-1].momentary
        # A span of an outer kind that took as long would be taken for the one around it.
        outer = any(child.kind.order < shape.kind.order for child in shape.children)
        longer = outer or (last_is_moment and not shape.momentary)
        end += max(shape.tail, 1) if longer else shape.tail
        self.spans.insert(at, Placed(name, shape.kind, start, end, thread, parent))
        return end

    def _siblings(
        self, shapes: tuple[Shape, ...] | list[Shape], now: int, around: Shape | None = None
    ) -> Iterator[tuple[Shape, int]]:
        before: Shape | None = None
        for shape in shapes:
            touching = _may_begin(around, shape) if before is None else _may_touch(before, shape)
            now += shape.lead if touching else max(shape.lead, 1)
            yield shape, now
            now += _length(shape)
            before = shape


def _length(shape: Shape) -> int:
    layout = _Layout()
    return layout._place(shape, 0, 0, None)


def _may_begin(around: Shape | None, first: Shape) -> bool:
    # An instant also lies in what ends at that moment, if that is of an outer kind.
    return around is None or not first.momentary or first.kind.order >= around.kind.order


def _may_touch(before: Shape, after: Shape) -> bool:
    if before.momentary:
        alike = before.kind.order == after.kind.order
        return after.momentary and alike and not (before.children or after.children)
    return not after.momentary or after.kind.order <= before.kind.order


def _in_given_order_where_equal(shuffled: list[Placed], given: list[Placed]) -> list[Placed]:
    """Return the shuffled spans, but spans that only their order tells apart in that order."""

    def key(span: Placed) -> tuple[Any, ...]:
        return span.kind.order, span.start, span.end, span.thread

    waiting: dict[tuple[Any, ...], list[Placed]] = {}
    for span in given:
        waiting.setdefault(key(span), []).append(span)
    return [waiting[key(span)].pop(0) for span in shuffled]


@st.composite
def scattered_rows(draw: st.DrawFn, *, max_size: int = 25, span: int = 20) -> SpanRows:
    """Draw rows named r0, r1, … that overlap as they please, on three threads."""
    row = st.tuples(
        st.sampled_from(HOST_KINDS[:4]),
        st.integers(-2, span),
        st.integers(0, span),
        st.integers(0, 2),
    )
    drawn = draw(st.lists(row, max_size=max_size))
    return as_rows(
        [
            Placed(f"r{i}", kind, start, start + length, thread, None)
            for i, (kind, start, length, thread) in enumerate(drawn)
        ]
    )


def as_rows(spans: list[Placed]) -> SpanRows:
    """Return spans as rows; their parents are not stated."""
    if not spans:
        return no_rows()
    return span_rows(
        {
            "kind": [span.kind.value for span in spans],
            "name": [span.name for span in spans],
            "start_ns": [span.start for span in spans],
            "end_ns": [span.end for span in spans],
            "thread": [span.thread for span in spans],
        }
    )
