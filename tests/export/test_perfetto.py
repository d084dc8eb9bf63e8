from __future__ import annotations

import io
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import Any

import polars as pl
from hypothesis import given
from sketch import some
from timelines import frame, frames, row

from xsp.show.export.reduction import reduce
from xsp.show.export.timeline import write_perfetto

METADATA = {
    "name": "Net",
    "environment": {"host": "box", "gpus": [{"name": "H200"}]},
    "warnings": [{"code": "drift", "message": 'it "drifted"'}],
}


def refused(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def document(spans: pl.DataFrame, metadata: Any = METADATA, most: int | None = None) -> Any:
    file = io.BytesIO()
    write_perfetto(reduce(spans, most), metadata, file)
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
    assert arguments["xsp.overhead_ns"] is None  # JSON has no word for it
    assert arguments["xsp.runs"] == 3
    assert arguments["xsp.input_shapes"] == "4x3, 2"
    assert "xsp.device_ns" not in arguments


def test_warnings_are_an_event_and_told_of_the_whole() -> None:
    [event] = events(frame(row(1, None, 0, 9)), "i")
    assert event["args"] == {"warnings": ['drift: it "drifted"']}
    about = document(frame(row(1, None, 0, 9)))["otherData"]
    assert about["warnings"] == ['drift: it "drifted"']
    assert about["name"] == "Net"


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


def test_a_trace_longer_than_a_chunk_is_one_document() -> None:
    rows = [row(1, None, 0, 20_000)]
    rows += [row(n, 1, n, n + 1) for n in range(2, 10_000)]
    assert len(events(frame(*rows), "X")) == len(rows)
