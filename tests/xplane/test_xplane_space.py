"""Planes, lines, kinds and events of XPlane files, against the protobuf package's messages."""

from __future__ import annotations

from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried
from xplane_file import Plane, field, plane_class

from xsp.xplane import read_space

BIG = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.one_of(
    st.tuples(st.just("int64_value"), BIG),
    st.tuples(st.just("uint64_value"), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just("double_value"), st.floats(allow_nan=False)),
    st.tuples(st.just("str_value"), st.text(max_size=9).map(str.encode)),
    st.tuples(st.just("bytes_value"), st.binary(max_size=300)),
    st.tuples(st.just("ref_value"), st.integers(0, 4)),
)
STATS = st.lists(st.tuples(st.integers(0, 3), VALUES), max_size=4)
EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1 << 50), st.integers(0, 1 << 50), STATS),
    max_size=40,
)
LINES = st.lists(st.tuples(BIG, st.binary(max_size=5), st.integers(0, 1 << 60), EVENTS), max_size=3)


def built(lines: list[Any]) -> Any:
    """Return the message of a plane whose kinds and stats 0 to 2 have names."""
    plane = plane_class()(name=b"/host:CPU")
    for number in range(3):
        plane.event_metadata.add(key=number).value.name = f"kind {number}".encode()
        plane.stat_metadata.add(key=number).value.name = f"stat {number}".encode()
    for identity, name, origin, events in lines:
        line = plane.lines.add(id=identity, name=name, timestamp_ns=origin)
        for kind, offset, duration, stats in events:
            event = line.events.add(metadata_id=kind, offset_ps=offset, duration_ps=duration)
            for which, (sort, value) in stats:
                event.stats.add(metadata_id=which, **{sort: value})
    return plane


def known(event: Any, which: int) -> Any:
    """Return the last value of a stat of a message, as text."""
    value = None
    for stat in event.stats:
        sort = stat.WhichOneof("value")
        if stat.metadata_id == which and sort:
            value = getattr(stat, sort)
            if sort == "ref_value":
                value = f"stat {value}" if value < 3 else ""
            value = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return value


@unhurried
@given(lines=LINES)
def test_events_are_those_of_the_messages(lines: list[Any]) -> None:
    message = built(lines)
    (plane,) = read_space(field(1, message.SerializeToString())).planes
    read = plane.events({"stat 0": pl.String, "stat 2": pl.String})
    expected = [
        (
            at, line.id, line.name.decode(errors="replace"), f"kind {event.metadata_id}",
            line.timestamp_ns + event.offset_ps // 1000,
            line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1000,
            known(event, 0), known(event, 2),
        )
        for at, line in enumerate(message.lines)
        for event in line.events
        if event.metadata_id < 3
    ]  # fmt: skip
    assert read.frame.drop("number", "display").rows() == expected
    assert read.damaged == sum(len(line.events) for line in message.lines) - len(expected)


def two_threads() -> Plane:
    """Return a host with two threads of three events."""
    host = Plane("/host:CPU", version="2.21")
    for number, name in ((7, "python"), (-8, "pool")):
        line = host.line(number, name)
        for at in range(3):
            host.event(line, f"op {at}", at, at + 1, step=at)
    return host


def test_a_damaged_event_costs_no_other_event() -> None:
    host = two_threads().message
    content = host.SerializeToString()
    event = host.lines[0].events[1].SerializeToString()
    assert content.count(event) == 2
    (plane,) = read_space(field(1, content.replace(event, b"\xff" * len(event), 1))).planes
    read = plane.events()
    assert (read.frame.height, read.damaged) == (5, 1)


def test_a_damaged_line_keeps_what_lies_before() -> None:
    host = two_threads().message
    content = host.SerializeToString()
    line = host.lines[0].SerializeToString()
    last = len(field(4, host.lines[0].events[2].SerializeToString()))
    broken = line[:-last] + b"\x22\xff" + line[2 - last :]
    (plane,) = read_space(field(1, content.replace(line, broken))).planes
    read = plane.events()
    assert (read.frame.height, read.damaged) == (5, 1)


@unhurried
@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 20))
def test_any_damage_is_read_without_an_error(seed: int, changes: int) -> None:
    random, content = Random(seed), bytearray(two_threads().bytes() * 2)
    for _ in range(changes):
        content[random.randrange(len(content))] = random.randrange(256)
    space = read_space(bytes(content[: random.randrange(len(content))]))
    for plane in space.planes:
        read = plane.events({"step": pl.Int64})
        assert (read.frame["end_ns"] >= read.frame["start_ns"]).all()
        assert isinstance(plane.stats, dict)


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\x00" * 11_000,
        field(1, field(2, b"/host:CPU") + b"\x1a\x00" * 200_000),
        field(1, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
    ids=["planes", "lines", "a length in a plane", "a length"],
)
def test_hostile_sizes_are_damage(content: bytes) -> None:
    space = read_space(content)
    assert space.cut or space.damaged
    assert sum(plane.lines.height for plane in space.planes) == 0
