from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp.evaluation.ancestry import generations
from xsp.export.placement import Drawn, place


@dataclass(frozen=True)
class Piece:
    lane: int
    label: int
    lead: int
    tail: int
    children: tuple[Piece, ...] = ()


PIECES = st.recursive(
    st.builds(Piece, st.integers(0, 1), st.integers(0, 2), st.integers(0, 5), st.integers(0, 5)),
    lambda below: st.builds(
        Piece,
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 5),
        st.integers(0, 5),
        st.lists(below, max_size=6).map(tuple),
    ),
    max_leaves=40,
)


@dataclass
class Rows:
    parent: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    def add(self, piece: Piece, parent: int = -1, start: int = 0) -> int:
        row = len(self.parent)
        self.parent.append(parent)
        self.lane.append(piece.lane)
        self.label.append(piece.label)
        self.start.append(start)
        self.end.append(start)
        free = [start, start]
        for child in piece.children:
            free[child.lane] = self.add(child, row, free[child.lane] + child.lead)
        self.end[row] = max(free) + piece.tail
        return self.end[row]

    def drawn(self, *, host: bool = True) -> Drawn:
        parent, lane, start, end = (
            np.array(values, dtype=np.int64)
            for values in (self.parent, self.lane, self.start, self.end)
        )
        hosts = np.full(len(parent), host)
        return Drawn(parent, tuple(generations(parent)), lane, hosts, start, end)

    def groups(self) -> np.ndarray:
        """Group spans that have lane and label in common, and a group above."""
        known: dict[tuple[int, int, int], int] = {}
        group: list[int] = []
        for above, lane, label in zip(self.parent, self.lane, self.label, strict=True):
            key = (group[above] if above >= 0 else -1, lane, label)
            group.append(known.setdefault(key, len(known)))
        return np.array(group, dtype=np.int64)


def rows_of(piece: Piece) -> Rows:
    rows = Rows()
    rows.add(piece)
    return rows


@given(PIECES)
def test_groups_of_one_stay_where_they_were(piece: Piece) -> None:
    drawn = rows_of(piece).drawn()
    start, end = place(drawn, np.arange(len(drawn.parent)))
    assert start.tolist() == drawn.start_ns.tolist()
    assert end.tolist() == drawn.end_ns.tolist()


@given(PIECES)
def test_groups_are_as_long_as_their_members_together(piece: Piece) -> None:
    rows = rows_of(piece)
    drawn, group = rows.drawn(), rows.groups()
    start, end = place(drawn, group)
    lengths = np.zeros(len(start), dtype=np.int64)
    np.add.at(lengths, group, drawn.end_ns - drawn.start_ns)
    assert (end - start).tolist() == lengths.tolist()


@given(PIECES)
def test_groups_lie_in_their_parent_and_apart_from_each_other(piece: Piece) -> None:
    rows = rows_of(piece)
    drawn, group = rows.drawn(), rows.groups()
    start, end = place(drawn, group)
    seen: dict[tuple[int, int], int] = {}
    for number in range(1, len(start)):
        row = group.tolist().index(number)
        above = int(group[rows.parent[row]])
        assert start[above] <= start[number]
        assert end[number] <= end[above]
        before = seen.get((above, rows.lane[row]), 0)
        assert start[number] >= before
        seen[above, rows.lane[row]] = int(end[number])


@given(PIECES)
def test_groups_on_a_device_are_whole_and_apart_wherever_they_end(piece: Piece) -> None:
    rows = rows_of(piece)
    drawn, group = rows.drawn(host=False), rows.groups()
    drawn.start_ns[1:] += 3
    drawn.end_ns[1:] += 3
    start, end = place(drawn, group)
    lengths = np.zeros(len(start), dtype=np.int64)
    np.add.at(lengths, group, drawn.end_ns - drawn.start_ns)
    assert (end - start).tolist() == lengths.tolist()


def flat(*spans: tuple[int, int], host: bool = True, length: int = 100) -> Drawn:
    rows = Rows([-1] + [0] * len(spans), [0] * (len(spans) + 1))
    rows.start, rows.end = [0, *(s for s, _ in spans)], [length, *(e for _, e in spans)]
    return rows.drawn(host=host)


def test_turns_taken_are_drawn_one_group_after_the_other() -> None:
    drawn = flat((10, 20), (20, 25), (30, 50), (60, 65))
    start, end = place(drawn, np.array([0, 1, 2, 1, 2]))
    assert start.tolist() == [0, 15, 55]
    assert end.tolist() == [100, 45, 65]


def test_spans_that_overlap_stay_where_they_are() -> None:
    start, end = place(flat((10, 40), (20, 60), (70, 80)), np.array([0, 1, 2, 1]))
    assert start.tolist() == [0, 10, 20]
    assert end.tolist() == [100, 80, 60]


def test_what_lies_in_overlapping_spans_stays_within_their_group() -> None:
    rows = Rows([-1, 0, 0, 1, 2], [0] * 5)
    rows.start, rows.end = [0, 10, 20, 15, 50], [100, 40, 60, 30, 60]
    start, end = place(rows.drawn(), np.array([0, 1, 1, 2, 2]))
    assert start.tolist() == [0, 10, 35]
    assert end.tolist() == [100, 60, 60]


def test_device_spans_may_end_after_their_parent() -> None:
    drawn = flat((90, 120), (130, 150), (150, 155), host=False)
    start, end = place(drawn, np.array([0, 1, 2, 1]))
    assert start.tolist() == [0, 90, 135]
    assert end.tolist() == [100, 125, 155]


def test_host_spans_that_stick_out_are_kept_in_their_parent() -> None:
    start, end = place(flat((-5, 20), (30, 130)), np.array([0, 1, 1]))
    assert (start.tolist(), end.tolist()) == ([0, 10], [100, 100])
