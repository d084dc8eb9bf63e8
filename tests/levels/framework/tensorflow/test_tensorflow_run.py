from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.framework.tensorflow.profiler.run import innermost

Range = tuple[int, int, int]


def split(line: int, start: int, end: int, cuts: list[int]) -> list[Range]:
    """Ranges that nest: one, and in it as many as the cuts leave room for."""
    found = [(line, start, end)]
    middle = start + (end - start) // 2
    if cuts and end - start > 4:
        found += split(line, start + cuts[0] % 2, middle, cuts[1:])
        found += split(line, middle + 1, end - cuts[0] % 3 // 2, cuts[1:])
    return found


nested = st.lists(st.integers(0, 5), max_size=4).map(
    lambda cuts: split(0, 0, 100, cuts) + split(1, 10, 60, cuts)
)
other = st.tuples(st.integers(0, 2), st.integers(0, 110), st.integers(0, 30)).map(
    lambda each: (each[0], each[1], each[1] + each[2])
)


def frame(ranges: list[Range]) -> pl.DataFrame:
    schema = dict.fromkeys(("line", "start_ns", "end_ns"), pl.Int64)
    return pl.DataFrame(ranges, schema, orient="row")


@given(nested, st.lists(other, max_size=12))
def test_innermost_range_is_the_shortest_around(outer: list[Range], inner: list[Range]) -> None:
    found = innermost(frame(outer), frame(inner)).tolist()
    for (line, start, end), at in zip(inner, found, strict=True):
        around = [
            each[2] - each[1]
            for each in outer
            if each[0] == line and each[1] <= start and end <= each[2]
        ]
        if at < 0:
            assert not around
        else:
            assert outer[at][2] - outer[at][1] == min(around)
