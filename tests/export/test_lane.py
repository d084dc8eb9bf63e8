from __future__ import annotations

from itertools import combinations

import polars as pl
from hypothesis import given
from sketch import some
from timelines import frame, frames, row

from xsp.export.lane import Track, launches, tracks


def lanes(*rows: tuple[int, int | None, int, int]) -> list[int]:
    found, of_row = tracks(frame(*(row(*each) for each in rows)))
    return [found[index].lane for index in of_row]


def ancestors(spans: pl.DataFrame) -> dict[int, set[int]]:
    above: dict[int, set[int]] = {}
    for span_id, parent in spans.select("span_id", "parent_id").iter_rows():
        above[span_id] = set() if parent is None else above[parent] | {parent}
    return above


@some
@given(frames())
def test_on_a_track_only_a_span_and_one_below_it_share_time(spans: pl.DataFrame) -> None:
    _, of_row = tracks(spans)
    above = ancestors(spans)
    times = spans.select("span_id", "start_ns", "end_ns").rows()
    for (a, (one, begin, end)), (b, (other, start, stop)) in combinations(enumerate(times), 2):
        if of_row[a] == of_row[b] and begin < stop and start < end:
            assert one in above[other] or other in above[one]


@some
@given(frames())
def test_a_track_holds_spans_of_one_thread_or_stream(spans: pl.DataFrame) -> None:
    found, of_row = tracks(spans)
    places = spans.select("device", "stream", "thread").rows()
    for index, (device, stream, thread) in zip(of_row, places, strict=True):
        number = thread if device is None else stream
        assert (found[index].device, found[index].number) == (device, number)
    assert sorted(set(of_row)) == list(range(len(found)))
    assert len(set(found)) == len(found)


def test_what_nests_is_on_one_track() -> None:
    assert lanes((1, None, 0, 9), (2, 1, 0, 4), (3, 2, 1, 4), (4, 1, 4, 9), (5, 4, 9, 9)) == [0] * 5


def test_a_coroutine_that_overlaps_has_a_track_with_all_below_it() -> None:
    rows = (1, None, 0, 20), (2, 1, 0, 10), (3, 1, 5, 15), (4, 3, 6, 7), (5, 1, 16, 20)
    assert lanes(*rows) == [0, 0, 1, 1, 0]


def test_a_sibling_within_another_is_not_drawn_as_its_child() -> None:
    assert lanes((1, None, 0, 20), (2, 1, 0, 10), (3, 1, 5, 6)) == [0, 0, 1]


def test_a_track_that_is_free_again_is_used_again() -> None:
    rows = (1, None, 0, 20), (2, 1, 0, 5), (3, 1, 2, 4), (4, 1, 6, 9), (5, 1, 7, 8)
    assert lanes(*rows) == [0, 0, 1, 0, 1]


def test_a_span_without_length_holds_what_is_below_it() -> None:
    assert lanes((1, None, 0, 9), (2, 1, 5, 5), (3, 2, 5, 5)) == [0, 0, 0]


def test_threads_and_streams_have_tracks_of_their_own() -> None:
    found, of_row = tracks(
        frame(
            row(1, None, 0, 9),
            row(2, 1, 1, 2, thread=5),
            row(3, 1, 1, 12, kind="kernel", device=0, stream=5),
        )
    )
    assert [found[index] for index in of_row] == [
        Track(None, 1, 0),
        Track(None, 5, 0),
        Track(0, 5, 0),
    ]


def test_the_innermost_call_with_the_same_id_is_the_launch() -> None:
    spans = frame(
        row(1, None, 0, 9),
        row(2, 1, 1, 4, kind="launch", correlation_id=7),
        row(3, 2, 2, 3, kind="launch", correlation_id=7),
        row(4, 1, 5, 8, kind="kernel", device=0, correlation_id=7),
        row(5, 1, 8, 9, kind="memset", device=0, correlation_id=7),
        row(6, 1, 8, 9, kind="kernel", device=0, correlation_id=8),
        row(7, 3, 5, 9, kind="layer", device=0, correlation_id=7),  # replayed by a graph
    )
    assert launches(spans).rows() == [(2, 3), (2, 4)]
