from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.framework.torch.profiler.anchor import find_anchors
from xsp_levels.framework.torch.profiler.event import PlainEvents
from xsp_levels.framework.torch.profiler.operand import NO_OPERANDS
from xsp_levels.native.alignment import PREFIX, AnchorReading, align

EPOCH = 1_795_213_250_310_402_999  # nanoseconds since 1970: more than a float can tell apart


@dataclass(frozen=True)
class Event:
    start: int
    duration: int
    number: int = 1
    name: str = PREFIX + "7"


def plain(*events: Event) -> PlainEvents:
    """Return events as columns."""
    names = tuple(dict.fromkeys(event.name for event in events))
    numbers = [(each.start, each.duration, each.number, -1, 0, 0, 0) for each in events]
    indices = [(names.index(each.name), 0, 0) for each in events]
    return PlainEvents(
        names, ("user_annotation",), (NO_OPERANDS,), np.array(indices), np.array(numbers, np.int64)
    )


def anchored(
    times: list[tuple[int, int, int, int, int]], shift: int
) -> tuple[list[AnchorReading], list[Event]]:
    """`before`, start, `inside`, end, `after` as gaps of one anchor each, 10 us apart."""
    readings, events = [], []
    for index, gaps in enumerate(times):
        before, start, inside, end, after = (10_000 * index + int(t) for t in np.cumsum(gaps))
        readings.append(AnchorReading(7, before, inside, after))
        events.append(Event(start + shift, end - start))
    return readings, events


gaps = st.tuples(*[st.integers(1, 2_000)] * 5)


@given(st.lists(gaps, min_size=1, max_size=30), st.integers(-EPOCH, EPOCH))
def test_true_offset_is_within_the_stated_error(
    times: list[tuple[int, int, int, int, int]], shift: int
) -> None:
    readings, events = anchored(times, shift)
    alignment = align(readings, find_anchors(plain(*events)))
    assert alignment is not None
    assert abs(alignment.offsets[0] + shift) <= alignment.error_ns
    converted = alignment.convert(np.array([event.start for event in events]))
    for reading, start in zip(readings, converted.tolist(), strict=True):
        assert reading.before <= start <= reading.inside


def test_tightest_bounds_of_all_anchors_count() -> None:
    times = [(1, 900, 900, 900, 900), (1, 40, 500, 500, 500), (1, 500, 60, 500, 500)]
    readings, events = anchored(times, EPOCH)
    alignment = align(readings, find_anchors(plain(*events)))
    assert alignment is not None
    assert alignment.error_ns == 50


def test_wall_clock_set_during_the_recording_is_evened_out() -> None:
    tight = [(1, 50, 50, 50, 50)] * 20
    readings, events = anchored(tight, EPOCH)
    step = 1_000_000
    drifted = [
        Event(event.start + step * index // 19, event.duration)
        for index, event in enumerate(events)
    ]
    alignment = align(readings, find_anchors(plain(*drifted)))
    assert alignment is not None
    ours = alignment.convert(np.array([event.start for event in drifted]))
    truth = np.array([event.start - EPOCH for event in events])
    # the anchors at either end drift as well, here by a hundred times what they ever would
    assert np.abs(ours - truth).max() < step / 3


def test_anchors_name_the_threads() -> None:
    first, other = Event(5, 1, 1, PREFIX + "700"), Event(6, 1, 3, PREFIX + "900")
    events = plain(first, other, Event(1, 1, 2, "aten::add"), Event(9, 1, 1, PREFIX + "700"))
    assert find_anchors(events).threads() == {1: 700, 3: 900}


def test_thread_that_lost_an_anchor_is_left_out() -> None:
    readings, events = anchored([(1, 50, 50, 50, 50)] * 3, EPOCH)
    lost = [AnchorReading(8, 0, 1, 2), AnchorReading(8, 3, 4, 5)]
    seen = find_anchors(plain(*events, Event(EPOCH, 1, 2, PREFIX + "8")))
    assert align([*readings, *lost], seen) == align(readings, find_anchors(plain(*events)))


def test_without_anchors_there_is_no_alignment() -> None:
    assert align([], find_anchors(plain(Event(1, 1, name="aten::add")))) is None
