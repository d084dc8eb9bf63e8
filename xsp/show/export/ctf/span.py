"""Turns spans into events: one where a span begins, one where it ends, nested on each thread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import polars as pl

from xsp.level import Kind, Level
from xsp.show.export import label
from xsp.show.export.ctf.packet import Events, Integers, records, string
from xsp.show.export.timeline import Track, nested
from xsp.trace import parent_rows

# What stands for a missing parent, and for a latency that is not known.
NO_PARENT, UNKNOWN = 2**32 - 1, -1

_BEGIN = np.dtype(
    [("kind_and_level", "u1"), ("span", "<u4"), ("parent", "<u4"), ("latency_ns", "<i8")]
)
_END = np.dtype([("span", "<u4")])
_KINDS = {kind.value: number for number, kind in enumerate(Kind)}
_LEVELS = {level.label: int(level) for level in Level}


class Threads(NamedTuple):
    """The threads on which spans are drawn: number and name of each track.

    Attributes:
        number: Number of each track; streams of devices have negative ones.
        name: Name of each track; no two are equal.
        of_thread: Number of each thread on which there are system calls.
    """

    number: list[int]
    name: list[str]
    of_thread: dict[int | None, int]


def numbered(tracks: Sequence[Track], threads: Sequence[int | None]) -> Threads:
    """Number tracks, and threads on which there are system calls.

    Viewers take numbers of 31 bits, so a thread whose own is larger gets another one; and so do
    spans that take turns on a thread, for which there are several tracks.

    >>> numbered([Track(None, 2**40, 0), Track(None, 7, 0), Track(0, 3, 0)], [7]).name
    ['thread 1', 'thread 7', 'GPU 0 stream 3']
    """
    hosts = [(track.number, track.lane) for track in tracks if track.device is None]
    keys = dict.fromkeys([*hosts, *((thread, 0) for thread in threads)])
    own = {
        (thread, lane): thread
        for thread, lane in keys
        if thread is not None and lane == 0 and 0 < thread < 2**31
    }
    free = (number for number in count(1) if (number, 0) not in own)
    numbers = {key: own[key] if key in own else next(free) for key in keys}
    devices = count(-1, -1)
    number, name = [], []
    for device, thread, lane in ((each.device, each.number, each.lane) for each in tracks):
        number.append(numbers[thread, lane] if device is None else next(devices))
        if device is None:
            name.append(f"thread {number[-1]}" if thread is not None else f"unknown {number[-1]}")
        else:
            stream = "" if thread is None else f" stream {thread}"
            name.append(f"GPU {device}{stream}" + (f" ({lane + 1})" if lane else ""))
    return Threads(number, name, {thread: numbers[thread, 0] for thread in threads})


def span_events(spans: pl.DataFrame, threads: Threads, track: Integers, origin_ns: int) -> Events:
    """Return the events of spans.

    Args:
        spans: Columns of `trace.spans` and of `reduction.EXTRA`.
        threads: Numbers and names of the tracks.
        track: Track of each span.
        origin_ns: Time of the spans that is 0 of the events.
    """
    parents = parent_rows(spans)
    rows, begins, time_ns = nested(spans, parents, track)
    levels, kinds = (
        spans[name].replace_strict(known, return_dtype=pl.Int64).to_numpy()
        for name, known in (("level", _LEVELS), ("kind", _KINDS))
    )
    latency = spans["latency_ns"].fill_nan(None).round().fill_null(UNKNOWN).cast(pl.Int64)
    numbers = np.arange(spans.height)
    heads = records(
        _BEGIN,
        kind_and_level=kinds | levels << 4,
        span=numbers,
        parent=np.where(parents < 0, NO_PARENT, parents),
        latency_ns=latency.to_numpy(),
    )
    names = label.names(spans)
    encoded = {name: string(name) for name in names.unique().to_list()}
    begin = [head + encoded[name] for head, name in zip(heads, names.to_list(), strict=True)]
    end = records(_END, span=numbers)
    events = zip(rows.tolist(), begins.tolist(), strict=True)
    return Events(
        time_ns=time_ns - origin_ns,
        number=np.where(begins, 0, 1),
        tid=np.array(threads.number)[track[rows]],
        thread=track[rows],
        names=[string(name) for name in threads.name],
        fields=[(begin if is_begin else end)[row] for row, is_begin in events],
    )


def call_events(
    calls: pl.DataFrame, threads: Threads, names: Sequence[str], origin_ns: int
) -> Events:
    """Return the events of system calls, which have no fields: arguments and results are not kept.

    Args:
        calls: Columns of `trace.typical_runs`.
        threads: Numbers of the threads.
        names: Names of the calls; that at place `n` has the events `2 * n` and `2 * n + 1`.
        origin_ns: Time of the calls that is 0 of the events.
    """
    tid, number = (
        calls[name].replace_strict(known, return_dtype=pl.Int64).to_numpy()
        for name, known in (
            ("thread", threads.of_thread),
            ("name", {name: place for place, name in enumerate(names)}),
        )
    )
    rows, begins, time_ns = nested(calls, np.full(calls.height, -1), tid)
    known, thread = np.unique(tid[rows], return_inverse=True)
    return Events(
        time_ns=time_ns - origin_ns,
        number=2 * number[rows] + np.where(begins, 0, 1),
        tid=tid[rows],
        thread=thread,
        names=[string(f"thread {each}") for each in known.tolist()],
        fields=[b""] * len(rows),
    )
