from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.cupti.clock import Reading, align, read

OFFSETS = st.integers(-(10**18), 10**18)
DELAYS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=9)


def readings(at: int, offset: int, delays: list[tuple[int, int]]) -> list[Reading]:
    found = []
    for number, (before, after) in enumerate(delays):
        moment = at + 2000 * number
        found.append(Reading(moment - before, moment - offset, moment + after))
    return found


@given(offset=OFFSETS, first=DELAYS, last=DELAYS)
def test_a_constant_offset_is_found_within_the_error_stated(
    offset: int, first: list[tuple[int, int]], last: list[tuple[int, int]]
) -> None:
    alignment = align(readings(10**6, offset, first), readings(10**9, offset, last))
    found = alignment.convert(np.array([5 * 10**8 - offset]))[0]
    assert abs(found - 5 * 10**8) <= alignment.error_ns
    assert alignment.error_ns <= 501


def test_the_tightest_reading_counts() -> None:
    slow, fast = [(5000, 5000)], [(0, 2)]
    alignment = align(readings(10**6, 77, slow + fast), readings(10**9, 77, slow))
    assert alignment.error_ns <= 1


def test_clocks_that_run_apart_are_followed_and_the_error_says_by_how_much() -> None:
    alignment = align(readings(0, 100, [(1, 1)]), readings(10**9, 1100, [(1, 1)]))
    halfway = np.array([5 * 10**8 - 600])
    assert abs(alignment.convert(halfway)[0] - 5 * 10**8) <= 1
    assert 1000 <= alignment.error_ns <= 1002


def test_both_clocks_are_read_in_turn() -> None:
    ticks = iter(range(100))
    found = read(lambda: next(ticks), lambda: next(ticks), 2)
    assert found == [Reading(0, 1, 2), Reading(3, 4, 5)]


TICKS = st.floats(1.6, 5.5) | st.floats(0.02, 0.6)  # per nanosecond


def ticks(at: int, rate: float, delays: list[tuple[int, int]]) -> list[Reading]:
    """Return readings of a counter of ticks that began 9 s before our clock did."""
    return [
        Reading(one.before, round((one.before + 9 * 10**9 + 200) * rate), one.after)
        for one in (
            Reading(at + 2000 * n, 0, at + 2000 * n + 400 + before + after)
            for n, (before, after) in enumerate(delays)
        )
    ]


MANY = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=8, max_size=16)


@given(rate=TICKS, first=MANY, last=MANY, length=st.integers(10**5, 10**10))
def test_a_clock_that_counts_ticks_is_recognised_and_its_rate_is_found(
    rate: float, first: list[tuple[int, int]], last: list[tuple[int, int]], length: int
) -> None:
    """As Kineto gives CUPTI one: read in the middle of 400 ns, for as long as a visit lasts."""
    begin = 10**9
    alignment = align(ticks(begin, rate, first), ticks(begin + length, rate, last))
    assert alignment.error_ns <= 2_000
    moments = np.linspace(begin, begin + length, 5).astype(np.int64)
    counted = np.rint((moments + 9 * 10**9) * rate).astype(np.int64)
    assert np.abs(alignment.convert(counted) - moments).max() <= alignment.error_ns + 1 / rate


def test_a_clock_that_was_set_is_no_other_clock() -> None:
    """Set by half of what the recording lasted, so that the ends alone would tell of a rate."""
    delays = [(40, 60)] * 16
    first, last = readings(10**6, 0, delays), readings(10**6 + 10**6, -500_000, delays)
    assert align(first, last).error_ns >= 500_000
