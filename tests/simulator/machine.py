"""Runs a model's tree, with costs and a mood, on a simulated clock.

Steps of one set of recorded kinds are drawn many at a time, as work; where they lie in time
is decided by the course of the mood when they are made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.cost import Cost
from simulator.mood import Course, Mood
from simulator.tree import Tree
from xsp.clock import Clock
from xsp.level import Kind
from xsp.provider import EmptySpan, Records, Request, SpanRows, no_rows, span_rows
from xsp.testing import FakeClock

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kinds = frozenset[Kind]

_CELLS = 200_000  # spans times steps that are drawn at once


class Layout:
    """The order in which a step passes through its spans.

    A step is a line of segments, each a part of one span's self time or of what recording
    the span costs. The self time of a span lies in equal parts before, between and after the
    spans inside.

    Args:
        tree: The spans, in depth-first order.
        recorded: Kinds of span that are recorded; recording the root costs nothing.

    Attributes:
        shown: The recorded spans, the root left out.
    """

    def __init__(self, tree: Tree, recorded: Kinds) -> None:
        self.shown: list[int] = [i for i, kind in enumerate(tree.kind) if i and kind in recorded]
        self._count = len(tree.kind)
        self._recorded = np.zeros(self._count, bool)
        self._recorded[self.shown] = True
        self._children: list[list[int]] = [[] for _ in tree.kind]
        for i, parent in enumerate(tree.parent[1:], 1):
            self._children[parent].append(i)
        self._source: list[int] = []  # column of [own | outside | inside]
        self._part: list[float] = []
        self._bounds = np.zeros((self._count, 2), np.int64)
        self._walk(0)
        self._sources, self._parts = np.array(self._source), np.array(self._part)

    def place(self, own: Floats, outside: Floats, inside: Floats) -> tuple[Floats, Floats, Floats]:
        """Return starts and ends of the shown spans `[steps, shown]`, and the total work."""
        columns = np.concatenate([own, outside, inside], axis=1)
        line = np.zeros((len(own), len(self._sources) + 1))
        np.cumsum(columns[:, self._sources] * self._parts, axis=1, out=line[:, 1:])
        bounds = self._bounds[self.shown]
        return line[:, bounds[:, 0]], line[:, bounds[:, 1]], line[:, -1]

    def _walk(self, span: int) -> None:
        # Trees are as deep as models are: no deeper than Python's stack.
        recorded, inside = self._recorded[span], self._children[span]
        if recorded:
            self._add(self._count + span, 0.5)
        self._bounds[span, 0] = len(self._source)
        if recorded:
            self._add(2 * self._count + span, 0.5)
        for child in inside:
            self._add(span, 1 / (len(inside) + 1))
            self._walk(child)
        self._add(span, 1 / (len(inside) + 1))
        if recorded:
            self._add(2 * self._count + span, 0.5)
        self._bounds[span, 1] = len(self._source)
        if recorded:
            self._add(self._count + span, 0.5)

    def _add(self, source: int, part: float) -> None:
        self._source.append(source)
        self._part.append(part)


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps that were drawn together, as work from the begin of each.

    Attributes:
        starts: `[steps, shown spans]`.
        ends: `[steps, shown spans]`.
        total: Work of each step.
    """

    starts: Floats
    ends: Floats
    total: list[float]


@dataclass(slots=True)
class Deck:
    """The steps of one set of recorded kinds, drawn and not yet made.

    Attributes:
        layout: Where the spans lie.
        batch: The steps drawn last.
        used: How many of them were made.
        made: How many steps were made in all.
    """

    layout: Layout
    batch: Batch
    used: int = 0
    made: int = 0


@dataclass(slots=True)
class Recorded:
    """Records of the simulated provider: the place and begin of each step.

    Of empty spans it keeps kind, start and end.
    """

    kinds: Kinds
    speed: float
    batches: list[Batch] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    empty: list[tuple[Kind, int, int]] = field(default_factory=list)

    def last(self, count: int) -> Recorded:
        """Return the last steps alone."""
        first = len(self.rows) - count
        lists = self.batches[first:], self.rows[first:], self.began[first:]
        return Recorded(self.kinds, self.speed, *lists)


class Machine:
    """Evaluates a tree at the pace of a mood, and moves the clock.

    Args:
        tree: What is evaluated.
        cost: What recording costs.
        mood: How the machine behaves.
        seed: Of everything that is random.

    Attributes:
        tree: What is evaluated.
        random: Where everything random comes from.
        course: The machine's factor over time.
        clock: The clock that steps move.
        speed: Factor of the process that works at the moment.
        recorded: What is being recorded at the moment; None: nothing.
        ten_times: Recorded kinds, and the number of a step that takes ten times as long.
    """

    def __init__(self, tree: Tree, cost: Cost, mood: Mood, seed: int = 0) -> None:
        self.tree = tree
        self.random = np.random.default_rng(seed)
        self.course: Course = mood.course(self.random)
        self.clock = FakeClock(1_000_000)
        self.speed = 1.0
        self.recorded: Recorded | None = None
        self.ten_times: tuple[Kinds, int] | None = None
        self._cost, self._mood = cost, mood
        self._own = np.array(tree.own_ns)
        self._decks: dict[Kinds, Deck] = {}

    def evaluate(self) -> None:
        """Make one step."""
        kinds = self.recorded.kinds if self.recorded else frozenset()
        deck = self._deck(kinds)
        row = deck.used
        if self.ten_times == (kinds, deck.made):
            _stretch(deck.batch, row)
        deck.used, deck.made = row + 1, deck.made + 1
        began = self._work(deck.batch.total[row])
        if self.recorded is not None:
            self.recorded.batches.append(deck.batch)
            self.recorded.rows.append(row)
            self.recorded.began.append(began)

    def make_empty_span(self, kind: Kind) -> None:
        """Record a span of a kind in which nothing happens but the recording of the span."""
        assert self.recorded is not None
        factor = np.exp(self._mood.jitter * self.random.standard_normal())
        outside, inside = (self.mean_cost(kind) * factor).tolist()
        self._work(outside / 2)
        start = self.clock.time_ns
        self._work(inside)
        self.recorded.empty.append((kind, start, self.clock.time_ns))
        self._work(outside / 2)

    def mean_cost(self, kind: Kind) -> Floats:
        """Average the cost of recording a span of a kind, outside and inside."""
        of_kind = [each is kind for each in self.tree.kind]
        return np.array(
            [self._cost.outside_ns[of_kind].mean(), self._cost.inside_ns[of_kind].mean()]
        )

    def _work(self, work_ns: float) -> float:
        """Do some work; return how much the machine had done before."""
        began, ended = self.course.advance(self.clock.time_ns, self.speed * work_ns)
        self.clock.time_ns = int(ended)
        return began

    def span_times(self, recorded: Recorded) -> tuple[Ints, Ints]:
        """Return start and end of the shown spans, `[steps, spans]`, on the clock."""
        began = np.array(recorded.began)[:, None]
        pairs = list(zip(recorded.batches, recorded.rows, strict=True))
        starts = np.array([batch.starts[row] for batch, row in pairs])
        ends = np.array([batch.ends[row] for batch, row in pairs])
        times = self.course.time_of(began + recorded.speed * np.stack([starts, ends]))
        whole = times.astype(np.int64)
        return whole[0], whole[1]

    def layout(self, kinds: Kinds) -> Layout:
        """Return where the spans lie when some kinds are recorded."""
        return self._deck(kinds).layout

    def draw(self, layout: Layout, evaluations: int) -> Batch:
        """Draw steps, as work."""
        own, run = self._self_times(evaluations)
        if not layout.shown:
            nothing = np.zeros((evaluations, 0))
            return Batch(nothing, nothing, (own.sum(axis=1) * run[:, 0]).tolist())
        shown = np.zeros(len(self._own), bool)
        shown[layout.shown] = True
        outside = np.where(shown, self._cost.draw(self.random, evaluations), 0.0)
        inside = np.broadcast_to(np.where(shown, self._cost.inside_ns, 0.0), own.shape)
        starts, ends, total = layout.place(own, outside, inside)
        return Batch(starts * run, ends * run, (total * run[:, 0]).tolist())

    def _deck(self, kinds: Kinds) -> Deck:
        deck = self._decks.get(kinds)
        if deck is None:
            layout = Layout(self.tree, kinds)
            deck = Deck(layout, self.draw(layout, self._at_once()))
            self._decks[kinds] = deck
        elif deck.used == len(deck.batch.total):
            deck.batch, deck.used = self.draw(deck.layout, self._at_once()), 0
        return deck

    def _at_once(self) -> int:
        return max(8, min(256, _CELLS // len(self._own)))

    def _self_times(self, evaluations: int) -> tuple[Floats, Floats]:
        """Return self times `[steps, spans]` and a factor of each run `[steps, 1]`."""
        mood, random = self._mood, self.random
        own = self._own * np.exp(
            mood.jitter * random.standard_normal((evaluations, len(self._own)))
        )
        run = np.exp(mood.jitter * random.standard_normal((evaluations, 1)))
        hit = np.flatnonzero(random.random(evaluations) < mood.spikes)
        where = random.choice(len(self._own), len(hit), p=self._own / self._own.sum())
        own[hit, where] += mood.spike_ns
        return own, run


def _stretch(batch: Batch, row: int) -> None:
    batch.starts[row] *= 10
    batch.ends[row] *= 10
    batch.total[row] *= 10


class SimulatedProvider:
    """Records the layers and operators of a simulated machine.

    Args:
        machine: The machine.
    """

    def __init__(self, machine: Machine) -> None:
        self.name = "simulated"
        self.kinds: Kinds = frozenset({Kind.REGION, Kind.LAYER, Kind.OP})
        self.level = Kind.REGION.level
        self._machine = machine

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Clock, request: Request) -> None:
        self._machine.recorded = Recorded(request.kinds & self.kinds, self._machine.speed)

    def stop(self) -> Records:
        recorded, self._machine.recorded = self._machine.recorded, None
        return Records(recorded)

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty span of a kind; None if recording one costs nothing inside."""
        if kind is Kind.REGION or not self._machine.mean_cost(kind)[1]:
            return None
        return EmptySpan("empty", partial(self._machine.make_empty_span, kind), bare=None)

    def spans(self, records: Records) -> SpanRows:
        machine, recorded = self._machine, records.data
        if recorded.empty:
            kinds, starts, ends = zip(*recorded.empty, strict=True)
            values = [kind.value for kind in kinds]
            return span_rows({"kind": values, "name": "empty", "start_ns": starts, "end_ns": ends})
        shown = machine.layout(recorded.kinds).shown
        if not len(shown):
            return no_rows()
        return span_rows(span_columns(machine.tree, shown, *machine.span_times(recorded)))


def span_columns(tree: Tree, spans: Sequence[int], start: Ints, end: Ints) -> dict[str, object]:
    """Return the columns of some spans `[steps, spans]`, one step after the other."""
    return {
        "kind": [tree.kind[i].value for i in spans] * len(start),
        "name": [tree.name[i] for i in spans] * len(start),
        "start_ns": start.ravel(),
        "end_ns": end.ravel(),
        "thread": threading.get_ident(),
    }


def shown_parents(tree: Tree, shown: Iterable[int]) -> list[int]:
    """Return the row of each shown span's parent, when the root is row 0 before the shown ones."""
    row = {0: 0} | {span: place for place, span in enumerate(shown, 1)}
    parents = []
    for span in list(row)[1:]:
        above = tree.parent[span]
        while above not in row:
            above = tree.parent[above]
        parents.append(row[above])
    return parents
