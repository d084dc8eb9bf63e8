"""Speedscope's profiles and folded stacks: every span is there, below what it lies in."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import polars as pl
import samples
from hypothesis import given
from samples import op, pipeline
from sketch import some
from timelines import frame, frames, row

from xsp.show.export.flame import write_folded, write_speedscope
from xsp.show.export.reduction import reduce

METADATA = {"name": "Net", "xsp_version": "0.1.0", "environment": {"gpus": [{"name": "H200"}]}}


def document(spans: pl.DataFrame) -> Any:
    file = io.BytesIO()
    write_speedscope(reduce(spans, None), METADATA, file)
    return json.loads(file.getvalue())


def lines(spans: pl.DataFrame, metadata: Any = METADATA) -> list[tuple[list[str], int]]:
    file = io.BytesIO()
    write_folded(reduce(spans, None), metadata, file)
    parted = [line.rpartition(" ") for line in file.getvalue().decode().splitlines()]
    return [(stack.split(";"), int(weight)) for stack, _, weight in parted]


def check(document: Any) -> None:
    """Verify what speedscope's file-format-schema.json demands, and what its importer does."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(document) <= {"$schema", "name", "exporter", "activeProfileIndex", "shared"} | {
        "profiles"
    }
    assert document["activeProfileIndex"] in range(len(document["profiles"]))
    assert set(document["shared"]) == {"frames"}
    frames = document["shared"]["frames"]
    assert all(set(one) == {"name"} and isinstance(one["name"], str) for one in frames)
    for profile in document["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "events"}
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        assert isinstance(profile["name"], str)
        check_events(profile, len(frames))


def check_events(profile: Any, frames: int) -> None:
    stack: list[int] = []
    for event in profile["events"]:
        assert set(event) == {"type", "frame", "at"}
        assert event["frame"] in range(frames)
        assert profile["startValue"] <= event["at"] <= profile["endValue"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert (event["type"], stack.pop()) == ("C", event["frame"])
    assert not stack
    assert all(one["at"] <= two["at"] for one, two in pairwise(profile["events"]))


def opened(document: Any) -> Counter[tuple[str, int]]:
    names = [one["name"] for one in document["shared"]["frames"]]
    return Counter(
        (names[event["frame"]], event["at"])
        for profile in document["profiles"]
        for event in profile["events"]
        if event["type"] == "O"
    )


@some
@given(frames())
def test_speedscope_takes_any_timeline_with_every_span_in_it(spans: pl.DataFrame) -> None:
    written = document(spans)
    check(written)
    named = spans["name"].replace("span 1", "span 1 Net")
    spanned = Counter(zip(named, spans["start_ns"], strict=True))
    assert spanned <= opened(written)


@some
@given(frames())
def test_stacks_of_the_roots_thread_sum_to_its_latency(spans: pl.DataFrame) -> None:
    weights = [weight for stack, weight in lines(spans) if stack[0] == "span 1 Net"]
    assert sum(weights) == spans["end_ns"][0] - spans["start_ns"][0]


@some
@given(samples.TREES)
def test_stacks_of_any_tree_sum_to_its_latency(node: samples.Node) -> None:
    trace = samples.trace(pipeline("predict", node))
    found = lines(trace.spans, trace.metadata)
    assert sum(weight for _, weight in found) == trace.spans["latency_ns"][0]
    assert all(stack[0] == "predict" for stack, _ in found)
    assert len({tuple(stack) for stack, _ in found}) == len(found)


def test_what_separates_names_and_lines_does_not_stand_in_a_name() -> None:
    trace = samples.trace(pipeline("a;b\nc", op("void f<int; 2>(x)\r\n 12", own_ns=4), own_ns=1))
    assert lines(trace.spans, trace.metadata) == [
        (["a:b\\nc"], 1),
        (["a:b\\nc", "void f<int: 2>(x)\\r\\n 12"], 4),
    ]


def test_a_stream_is_a_profile_whose_kernels_stand_on_their_operators() -> None:
    spans = frame(
        row(1, None, 0, 90),
        row(2, 1, 10, 20),
        row(3, 2, 15, 40, kind="kernel", device=0, stream=7),
        row(4, 1, 50, 60, thread=2),
    )
    written = document(spans)
    check(written)
    assert [profile["name"] for profile in written["profiles"]] == [
        "thread 1",
        "thread 2",
        "device 0 H200, stream 7",
    ]
    assert [profile["endValue"] for profile in written["profiles"]] == [90, 90, 90]
    assert lines(spans) == [
        (["span 1 Net"], 80),
        (["span 1 Net", "span 2"], 10),
        (["thread 2", "span 1 Net", "span 4"], 10),
        (["device 0 H200, stream 7", "span 1 Net", "span 2", "span 3"], 25),
    ]
