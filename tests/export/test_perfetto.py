from __future__ import annotations

import io
import json
from collections import defaultdict
from decimal import Decimal
from itertools import combinations, pairwise
from typing import Any

import gpu
import polars as pl
from gpu import Gpu
from hypothesis import given
from sketch import some
from timelines import frame, frames, row

from xsp.export import perfetto
from xsp.export.perfetto import own_memory
from xsp.export.reduction import reduce
from xsp.export.track import Track, tracks
from xsp.merge.assembly import merge

METADATA = {
    "name": "Net",
    "environment": {"host": "box", "gpus": [{"name": "H200"}]},
    "problems": [{"code": "drift", "message": 'it "drifted"'}],
}


def refused(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def document(spans: pl.DataFrame, metadata: Any = METADATA, most: int | None = None) -> Any:
    file = io.BytesIO()
    perfetto.write(reduce(spans, most), metadata, file)
    return json.loads(file.getvalue(), parse_constant=refused, parse_float=Decimal)


def events(spans: pl.DataFrame, phase: str) -> list[dict[str, Any]]:
    return [event for event in document(spans)["traceEvents"] if event["ph"] == phase]


def nanoseconds(microseconds: Any) -> int:
    number = Decimal(microseconds) * 1000
    assert number == int(number)
    return int(number)


def names(spans: pl.DataFrame, what: str) -> dict[Any, str]:
    return {
        (event["pid"], event["tid"]) if "tid" in event else event["pid"]: event["args"]["name"]
        for event in events(spans, "M")
        if event["name"] == what
    }


@some
@given(frames())
def test_every_span_is_there_to_the_nanosecond_below_its_parent(spans: pl.DataFrame) -> None:
    found = events(spans, "X")
    assert [
        (
            nanoseconds(event["ts"]),
            nanoseconds(event["dur"]),
            event["cat"],
        )
        for event in found
    ] == spans.select("start_ns", pl.col("end_ns") - pl.col("start_ns"), "kind").rows()


@some
@given(frames())
def test_spans_nest_on_every_track(spans: pl.DataFrame) -> None:
    by_track = defaultdict(list)
    for event in events(spans, "X"):
        start = nanoseconds(event["ts"])
        by_track[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
    for times in by_track.values():
        open_until: list[int] = []
        for start, end in sorted(times, key=lambda time: time[0]):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    tids = [tid for _, tid in by_track]
    assert len(set(tids)) == len(tids)


@some
@given(frames())
def test_every_track_has_a_name_and_a_place(spans: pl.DataFrame) -> None:
    placed = {(event["pid"], event["tid"]) for event in events(spans, "X")}
    named = names(spans, "thread_name")
    assert named.keys() == placed
    assert len({(pid, named[pid, tid]) for pid, tid in placed}) == len(placed)
    assert names(spans, "process_name").keys() >= {pid for pid, _ in placed}
    places = [
        (event["pid"], event["args"]["sort_index"])
        for event in events(spans, "M")
        if event["name"] == "thread_sort_index"
    ]
    assert len(set(places)) == len(placed)


@some
@given(frames())
def test_flows_lead_from_launches_to_what_they_started(spans: pl.DataFrame) -> None:
    written = document(spans)["traceEvents"]
    starts = {event["id"]: event for event in written if event["ph"] == "s"}
    ends = {event["id"]: event for event in written if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) + len(ends) == sum(event["ph"] in "sf" for event in written)
    for number, start in starts.items():
        assert start["name"] == ends[number]["name"]
        assert start["cat"] == ends[number]["cat"]
        assert ends[number]["bp"] == "e"
    for before, event in pairwise(written):
        if event["ph"] in "sf":  # a flow stands right behind its span, or behind another flow
            assert before["ph"] in "Xsf"
            assert all(before[key] == event[key] for key in ("pid", "tid", "ts"))


def test_a_kernel_without_a_launch_has_no_flow() -> None:
    spans = frame(
        row(1, None, 0, 9), row(2, 1, 1, 2, kind="kernel", device=0, stream=1, correlation_id=4)
    )
    assert events(spans, "s") == []
    assert events(spans, "f") == []


def test_host_and_devices_are_processes_with_their_threads_and_streams() -> None:
    spans = frame(
        row(1, None, 0, 9),
        row(2, 1, 0, 1, thread=140_000_000_000_000),
        row(3, 1, 1, 2, kind="kernel", device=1, stream=9),
        row(4, 1, 1, 2, kind="kernel", device=0, stream=30),
        row(5, 1, 1, 2, kind="kernel", device=0, stream=7),
        row(6, 1, 1, 2, kind="sync", device=0),
    )
    assert names(spans, "process_name") == {1: "host box", 2: "device 0 H200", 3: "device 1"}
    assert sorted(names(spans, "thread_name").values()) == [
        "across streams",
        "stream 30",
        "stream 7",
        "stream 9",
        "thread 1",
        "thread 140000000000000",
    ]
    order = {
        (event["pid"], event["tid"]): event["args"]["sort_index"]
        for event in events(spans, "M")
        if event["name"] == "thread_sort_index"
    }
    named = {name: place for place, name in names(spans, "thread_name").items()}
    assert order[named["stream 7"]] < order[named["stream 30"]]
    assert all(tid < 2**32 for _, tid in order)


def test_layers_are_called_by_their_path_and_class() -> None:
    spans = frame(
        row(1, None, 0, 9, name="predict"),
        row(2, 1, 0, 4, kind="layer", name="c", module_path="block.c", module_class="Conv2d"),
    )
    assert events(spans, "X")[1]["name"] == "block.c Conv2d"


def test_the_attributes_are_arguments() -> None:
    spans = frame(
        row(
            1,
            None,
            0,
            9,
            latency_low_ns=8.5,
            latency_high_ns=9.5,
            overhead_ns=float("inf"),
            input_shapes=[[4, 3], [2]],
        )
    )
    [event] = events(spans, "X")
    arguments = event["args"]
    assert arguments["xsp.latency_ns"] == 9
    assert arguments["xsp.interval_low_ns"] == 8
    assert arguments["xsp.overhead_ns"] == "Infinity"
    assert arguments["xsp.runs"] == 3
    assert arguments["xsp.input_shapes"] == "4x3, 2"
    assert "xsp.device_ns" not in arguments


def test_names_of_any_kind_come_through() -> None:
    nasty = 'a "b" \\ \n\x00{}[] Ω \x7f'
    spans = frame(row(1, None, 0, 9), row(2, 1, 0, 4, name=nasty))
    assert events(spans, "X")[1]["name"] == nasty


def test_problems_are_an_event_and_told_of_the_whole() -> None:
    [event] = events(frame(row(1, None, 0, 9)), "i")
    assert event["args"] == {"problems": ['drift: it "drifted"']}
    about = document(frame(row(1, None, 0, 9)))["otherData"]
    assert about["problems"] == ['drift: it "drifted"']
    assert about["name"] == "Net"


def test_what_the_budget_left_out_is_told() -> None:
    spans = frame(row(1, None, 0, 9), row(2, 1, 0, 4), row(3, 1, 4, 8))
    assert "span-budget" not in document(spans)["otherData"]
    assert "shown: 1 span for the 3" in document(spans, most=1)["otherData"]["span-budget"]


def test_a_sound_trace_has_no_problems() -> None:
    written = document(frame(row(1, None, 0, 9)), {"name": "Net"})
    assert not [event for event in written["traceEvents"] if event["ph"] == "i"]
    assert written["displayTimeUnit"] == "ms"


def memory(*rows: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (nanoseconds(event["ts"]), event["args"]["held bytes"])
        for event in events(frame(*rows), "C")
    ]


def used(allocated: int, freed: int) -> dict[str, int]:
    return {"allocated_bytes": allocated, "freed_bytes": freed}


def test_memory_is_counted_once_where_it_was_allocated() -> None:
    assert memory(
        row(1, None, 0, 100),
        row(2, 1, 0, 90, kind="layer", **used(96, 64)),
        row(3, 2, 10, 50, **used(96, 0)),
        row(4, 3, 10, 30, **used(64, 0)),
    ) == [(0, 0), (30, 64), (50, 96), (90, 32)]


def test_memory_is_unknown_where_it_was_not_recorded() -> None:
    assert memory(row(1, None, 0, 100), row(2, 1, 0, 90)) == []


def test_memory_of_another_thread_is_its_own() -> None:
    spans = frame(
        row(1, None, 0, 100, **used(10, 0)),
        row(2, 1, 0, 50, thread=2, **used(7, 0)),
        row(3, 2, 0, 40, thread=1, **used(4, 1)),
    )
    assert own_memory(reduce(spans, None).spans).rows() == [(100, 7), (50, 7), (40, 3)]


def test_rolled_up_spans_change_memory_as_often_as_there_are() -> None:
    rows = [row(n, 1, n * 10, n * 10 + 10, name="aten::add", **used(8, 3)) for n in range(2, 12)]
    whole = frame(row(1, None, 0, 120, **used(80, 30)), *rows)
    reduced = reduce(whole, 2).spans
    assert reduced["rolled_count"].to_list() == [None, 10]
    assert own_memory(reduced)["own_bytes"].to_list() == [0, 50]


def test_spans_that_are_each_others_parents_are_written_all_the_same() -> None:
    spans = frame(
        row(1, None, 0, 50, **used(5, 0)),
        row(2, 3, 0, 50, thread=2, **used(3, 0)),
        row(3, 4, 0, 50, **used(2, 0)),
        row(4, 3, 0, 50, **used(1, 0)),
    )
    assert len(events(spans, "X")) == 4
    assert own_memory(reduce(spans, None).spans)["own_bytes"].sum() == 5 + 3


def test_spans_that_end_together_change_memory_together() -> None:
    assert memory(
        row(1, None, 0, 50, **used(30, 0)),
        row(2, 1, 0, 50, **used(20, 0)),
    ) == [(0, 0), (50, 30)]


def test_a_trace_longer_than_a_chunk_is_one_document() -> None:
    rows = [row(1, None, 0, 20_000)]
    rows += [row(n, 1, n, n + 1) for n in range(2, 10_000)]
    assert len(events(frame(*rows), "X")) == len(rows)


def test_a_trace_of_a_gpu_has_a_flow_for_each_thing_that_a_launch_started() -> None:
    spans = merge(Gpu(gpu.transformer(), drain=False).measure(1)).spans
    assert spans["stream"].n_unique() == 3  # two, and none on the host
    starts, ends = ({event["id"]: event for event in events(spans, phase)} for phase in ("s", "f"))
    executed = spans.filter(pl.col("device").is_not_null()).height
    assert len(starts) == len(ends) == executed > 20
    assert starts.keys() == ends.keys()
    for number, begun in starts.items():
        assert begun["pid"] == 1 < ends[number]["pid"]
        assert begun["ts"] <= ends[number]["ts"]


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


def test_a_span_that_begins_before_its_parent_has_a_track_all_the_same() -> None:
    damaged = frame(row(1, None, 10, 20), row(2, 1, 5, 15), row(3, 2, 0, 30))
    _, of_row = tracks(damaged)
    assert min(of_row) >= 0
    assert len(set(of_row)) == 3  # all overlap, none is drawn in another
    assert len(events(damaged, "X")) == 3
