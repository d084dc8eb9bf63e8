from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.evaluation.ancestry import generations
from xsp.export.reduction import place


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

    def place(self, group: list[int], *, host: bool = True) -> tuple[list[int], list[int]]:
        """Return where these groups are drawn."""
        columns = {"lane": self.lane, "start_ns": self.start, "end_ns": self.end}
        spans = pl.DataFrame(columns).with_columns(pl.lit(host).alias("host"))
        parent = np.array(self.parent)
        start, end = place(spans, parent, list(generations(parent)), np.array(group))
        return start.tolist(), end.tolist()

    def lengths(self, group: list[int]) -> list[int]:
        """Return how long the members of each group are together."""
        lengths = [0] * (max(group) + 1)
        for number, start, end in zip(group, self.start, self.end, strict=True):
            lengths[number] += end - start
        return lengths

    def groups(self) -> list[int]:
        """Group spans that have lane and label in common, and a group above."""
        known: dict[tuple[int, int, int], int] = {}
        group: list[int] = []
        for above, lane, label in zip(self.parent, self.lane, self.label, strict=True):
            key = (group[above] if above >= 0 else -1, lane, label)
            group.append(known.setdefault(key, len(known)))
        return group


def rows_of(piece: Piece) -> Rows:
    rows = Rows()
    rows.add(piece)
    return rows


def lengths(start: list[int], end: list[int]) -> list[int]:
    return [stop - begin for begin, stop in zip(start, end, strict=True)]


@given(PIECES)
@settings(deadline=None)
def test_groups_of_one_stay_where_they_were(piece: Piece) -> None:
    rows = rows_of(piece)
    assert rows.place(list(range(len(rows.parent)))) == (rows.start, rows.end)


@given(PIECES)
@settings(deadline=None)
def test_groups_are_as_long_as_their_members_together(piece: Piece) -> None:
    rows = rows_of(piece)
    group = rows.groups()
    assert lengths(*rows.place(group)) == rows.lengths(group)


@given(PIECES)
@settings(deadline=None)
def test_groups_lie_in_their_parent_and_apart_from_each_other(piece: Piece) -> None:
    rows = rows_of(piece)
    group = rows.groups()
    start, end = rows.place(group)
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number in range(1, len(start)):
        row = group.index(number)
        above = group[rows.parent[row]]
        assert start[above] <= start[number]
        assert end[number] <= end[above]
        seen.setdefault((above, rows.lane[row]), []).append((start[number], end[number]))
    for times in seen.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(times)))


@given(PIECES)
@settings(deadline=None)
def test_groups_on_a_device_are_whole_wherever_they_end(piece: Piece) -> None:
    rows = rows_of(piece)
    group = rows.groups()
    rows.start[1:] = [start + 3 for start in rows.start[1:]]
    rows.end[1:] = [end + 3 for end in rows.end[1:]]
    assert lengths(*rows.place(group, host=False)) == rows.lengths(group)


def flat(*spans: tuple[int, int], length: int = 100) -> Rows:
    rows = Rows([-1] + [0] * len(spans), [0] * (len(spans) + 1))
    rows.start, rows.end = [0, *(s for s, _ in spans)], [length, *(e for _, e in spans)]
    return rows


def test_turns_taken_are_drawn_one_group_after_the_other() -> None:
    rows = flat((10, 20), (20, 25), (30, 50), (60, 65))
    assert rows.place([0, 1, 2, 1, 2]) == ([0, 10, 40], [100, 40, 50])


def test_what_would_stick_out_is_drawn_as_far_left_as_it_must() -> None:
    rows = flat((0, 10), (60, 80), (80, 100), length=100)
    assert rows.place([0, 1, 2, 1]) == ([0, 0, 60], [100, 30, 80])
    rows = flat((50, 60), (70, 80), (80, 100), length=100)
    assert rows.place([0, 1, 2, 1]) == ([0, 50, 80], [100, 80, 90])
    rows = flat((70, 80), (80, 90), (90, 100), length=100)
    assert rows.place([0, 1, 2, 1]) == ([0, 70, 90], [100, 90, 100])


def test_spans_that_overlap_stay_where_they_are() -> None:
    rows = flat((10, 40), (20, 60), (70, 80))
    assert rows.place([0, 1, 2, 1]) == ([0, 10, 20], [100, 80, 60])


def test_what_lies_in_overlapping_spans_stays_within_their_group() -> None:
    rows = Rows([-1, 0, 0, 1, 2], [0] * 5)
    rows.start, rows.end = [0, 10, 20, 15, 50], [100, 40, 60, 30, 60]
    start, end = rows.place([0, 1, 1, 2, 2])
    assert (start, end) == ([0, 10, 15], [100, 60, 40])


def test_device_spans_may_end_after_their_parent() -> None:
    rows = flat((90, 120), (130, 150), (150, 155))
    assert rows.place([0, 1, 2, 1], host=False) == ([0, 90, 130], [100, 125, 150])


def test_host_spans_that_stick_out_are_kept_in_their_parent() -> None:
    assert flat((-5, 20), (30, 130)).place([0, 1, 1]) == ([0, 0], [100, 90])
