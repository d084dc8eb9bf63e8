from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.cupti.provider import Reading, align

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
def test_a_clock_that_counts_ticks_is_recognized_and_its_rate_is_found(
    rate: float, first: list[tuple[int, int]], last: list[tuple[int, int]], length: int
) -> None:
    """As Kineto gives CUPTI one: read in the middle of 400 ns, for as long as a visit lasts."""
    begin = 10**9
    alignment = align(ticks(begin, rate, first), ticks(begin + length, rate, last))
    assert alignment.error_ns <= 2_000
    moments = np.linspace(begin, begin + length, 5).astype(np.int64)
    counted = np.rint((moments + 9 * 10**9) * rate).astype(np.int64)
    assert np.abs(alignment.convert(counted) - moments).max() <= alignment.error_ns + 1 / rate
