"""Random programs in Nsight Systems' form: kernels lie where a slow, obvious reference says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from nsight import NEW, OLD, PID, Export, global_id

import xsp

# Where each range begins and ends, and where each call is made, as places on a line of time.
PLACES = st.integers(0, 40)
RANGES = st.lists(st.tuples(st.integers(1, 2), PLACES, PLACES), max_size=8)
CALLS = st.lists(st.tuples(st.integers(1, 2), PLACES), min_size=1, max_size=8, unique=True)


def nested(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the ranges, of thread, start and end, that cross no earlier one of their thread."""
    kept: list[tuple[int, int, int]] = []
    for thread, one, other in ranges:
        start, end = 100 * min(one, other), 100 * max(one, other) + 50
        if all(
            thread != t
            or end < s
            or e < start
            or (s < start and end < e)
            or (start < s and e < end)
            for t, s, e in kept
        ):
            kept.append((thread, start, end))
    return kept


@given(RANGES, CALLS, st.sampled_from([OLD, NEW]))
def test_kernel_lies_in_the_innermost_range_around_its_call(
    marks: list[tuple[int, int, int]], calls: list[tuple[int, int]], schema: dict[str, str]
) -> None:
    ranges = nested(marks)
    with tempfile.TemporaryDirectory() as folder:
        export = Export(Path(folder) / "report.sqlite", schema)
        for number, (thread, start, end) in enumerate(ranges):
            export.nvtx(f"range-{'abcdefgh'[number]}", start, end, globalTid=global_id(PID, thread))
        for number, (thread, place) in enumerate(calls, start=1):
            start, own = 100 * place + 10, {"globalTid": global_id(PID, thread)}
            export.call("cudaLaunchKernel_v7000", start, start + 20, number, **own)
            export.kernel(f"kernel-{'abcdefgh'[number - 1]}", 9000 - 100 * number, 9050, number)
        spans = xsp.read(export.write()).spans
    names = dict(spans.select("span_id", "name").iter_rows())
    found = spans.filter(pl.col("kind") == "kernel").select("name", "parent_id")
    for name, parent in found.iter_rows():
        thread, place = calls["abcdefgh".index(name[-1])]
        around = [
            (end - start, f"range-{'abcdefgh'[number]}")
            for number, (t, start, end) in enumerate(ranges)
            if t == thread and start <= 100 * place + 10 and 100 * place + 30 <= end
        ]
        assert names[parent] == (min(around)[1] if around else spans["name"][0])
    assert found.height == len(calls)
