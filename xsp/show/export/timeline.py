"""Lays spans on the tracks of a timeline, and writes that for ui.perfetto.dev in Chrome's format.

Viewers draw spans that overlap on a track as if one called the other. So a span lies on the
track of its parent or on a free track: coroutines that take turns on a thread get tracks of
their own. In the document the host is a process, and so is each device. Times are microseconds
with the nanoseconds as decimals, from 0 at the root's start, on the timeline without overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import ON_DEVICE
from xsp.show.export import label
from xsp.show.export.picture import launches
from xsp.show.export.reduction import Reduced
from xsp.trace import attribute_column, headline, parent_rows, warning_lines

_ROWS = 8192
_HOST = 1
# Old readers took "ns" for the unit of the times themselves; new ones ignore it.
_HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'

Event = dict[str, Any]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """One row of a timeline: spans of one thread or stream that nest.

    Attributes:
        device: Number of the device; None on the host.
        number: The host's thread or the device's stream; None where that is not known.
        lane: Which of the tracks of its thread or stream this track is, from 0.
    """

    device: int | None
    number: int | None
    lane: int


def tracks(spans: pl.DataFrame) -> tuple[list[Track], list[int]]:
    """Return the tracks that spans need, and the index of the track of each row.

    On each track spans nest by time, and a span within another is its descendant in the tree.
    Spans are placed in the order in which they begin.

    Args:
        spans: Columns of `trace.spans`, parents before children.
    """
    numbers = pl.when(ON_DEVICE).then("stream").otherwise("thread")
    keys = spans.select("device", numbers.alias("number")).rows()
    parents = parent_rows(spans).tolist()
    starts, ends = spans["start_ns"].to_list(), spans["end_ns"].to_list()
    found: list[Track] = []
    of_key: dict[tuple[int | None, int | None], list[int]] = {}
    of_row = [-1] * len(keys)
    open_rows: list[list[int]] = []  # of each track, the innermost last

    def innermost(track: int, now: int, keep: int = -1) -> int | None:
        """List the spans open on a track; a parent of no length, `keep`, has children too."""
        rows = open_rows[track]
        while rows and ends[rows[-1]] <= now and rows[-1] != keep:
            rows.pop()
        return rows[-1] if rows else None

    for row in sorted(range(len(keys)), key=starts.__getitem__):
        above, start, own = parents[row], starts[row], of_key.setdefault(keys[row], [])
        # Where times are damaged, a span may begin before its parent, which has no track yet.
        track = of_row[above] if above >= 0 and keys[above] == keys[row] else -1
        if track >= 0 and (innermost(track, start, above) != above or ends[row] > ends[above]):
            track = -1
        if track < 0:
            free = (each for each in own if innermost(each, start) is None)
            track = next(free, len(found))
        if track == len(found):
            device, number = keys[row]
            found.append(Track(device, number, lane=len(own)))
            own.append(track)
            open_rows.append([])
        open_rows[track].append(row)
        of_row[row] = track
    return found, of_row


class Nesting(NamedTuple):
    """The begins and ends of spans, in order of time, those of a thread nested.

    Attributes:
        row: The span's row.
        begins: Whether the event is its begin.
        time_ns: When it happens.
    """

    row: Integers
    begins: NDArray[np.bool_]
    time_ns: Integers


def nested(spans: pl.DataFrame, parents: Integers, track: Integers) -> Nesting:
    """Order the events of spans on tracks, as `timeline.tracks` places them.

    A span without length begins and ends between its neighbors, whose times may all be its own.
    So the events of each track are ordered first, and then all by time.

    >>> spans = pl.DataFrame({"start_ns": [0, 4], "end_ns": [4, 4]})
    >>> nested(spans, np.array([-1, 0]), np.array([0, 0])).row.tolist()
    [0, 1, 1, 0]
    """
    starts, ends = (spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    ends = np.maximum(starts, ends)
    inside = (parents >= 0) & (track[parents] == track)
    inside &= (starts >= starts[parents]) & (ends <= ends[parents])
    above, on = np.where(inside, parents, -1).tolist(), track.tolist()
    open_rows: dict[int, list[int]] = {each: [] for each in set(on)}
    codes: dict[int, list[int]] = {each: [] for each in open_rows}  # an end is `~row`
    for row in np.argsort(starts, kind="stable").tolist():
        stack, events = open_rows[on[row]], codes[on[row]]
        while stack and stack[-1] != above[row]:
            events.append(~stack.pop())
        stack.append(row)
        events.append(row)
    for each, stack in open_rows.items():
        codes[each] += [~row for row in reversed(stack)]
    code = np.fromiter(chain.from_iterable(codes.values()), np.int64, 2 * len(on))
    begins = code >= 0
    rows = np.where(begins, code, ~code)
    time_ns = np.where(begins, starts[rows], ends[rows])
    order = np.argsort(time_ns, kind="stable")
    return Nesting(rows[order], begins[order], time_ns[order])


def order(tracks: Sequence[Track]) -> list[int]:
    """Return tracks in the order to be shown: threads by first span, streams by number."""
    firsts: dict[tuple[int | None, int | None], int] = {}
    ranks: list[tuple[int, int]] = []
    for index, track in enumerate(tracks):
        first = firsts.setdefault((track.device, track.number), index)
        by_number = None if track.device is None else track.number
        ranks.append((first if by_number is None else by_number, track.lane))
    return sorted(range(len(tracks)), key=ranks.__getitem__)


def device_name(device: int | None, environment: Mapping[str, Any]) -> str:
    """Return the name of a device, or of the host (None), with that of its model or machine."""
    if device is None:
        return f"host {environment.get('host') or ''}".rstrip()
    gpus = environment.get("gpus") or ()
    model = f" {gpus[device].get('name', '')}" if 0 <= device < len(gpus) else ""
    return f"device {device}{model}".rstrip()


def track_name(track: Track) -> str:
    """Return the name of a track among those of the same host or device."""
    # Without a stream, on a device: waits for the whole device, layers replayed from a graph.
    if track.number is None:
        name = "unknown thread" if track.device is None else "across streams"
    else:
        name = f"{'thread' if track.device is None else 'stream'} {track.number}"
    return f"{name}, at the same time ({track.lane + 1})" if track.lane else name


def write_perfetto(
    reduced: Reduced,
    metadata: Mapping[str, Any],
    file: IO[bytes],
    utilization: pl.DataFrame | None = None,
) -> None:
    """Write a trace as one document of Chrome's trace format.

    - Complete events (`X`) are the spans, with all attributes as `args`.
    - Flows (`s`, `f`) lead from each launch to what it started on a device.
    - The counter (`C`) `memory` is how many bytes are held that were allocated within
      the trace, where memory was recorded. A span's own allocations, those outside of the
      spans below it, are counted at its end, as their moments are not known.
    - Counters of a process `monitor` are power, utilization and memory of each device.
    - Warnings of the trace are an instant event (`i`) of the host.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to event by event.
        utilization: Table of the analysis `utilization-timeline`; None: nothing was read.

    Raises:
        OSError: The file could not be written.
    """
    found, of_row = tracks(reduced.spans)
    devices = sorted({track.device for track in found if track.device is not None})
    processes: dict[int | None, int] = {None: _HOST}
    processes.update((device, at) for at, device in enumerate(devices, _HOST + 1))
    places = [{"pid": processes[track.device], "tid": at} for at, track in enumerate(found, 1)]
    of_span = [places[track] for track in of_row]
    environment = metadata.get("environment") or {}
    separator = _HEAD
    for event in chain(
        _named(
            "process",
            [({"pid": at}, device_name(each, environment)) for each, at in processes.items()],
        ),
        _named("thread", [(places[at], track_name(found[at])) for at in order(found)]),
        _warnings(metadata),
        _spans(reduced.spans, of_span, metadata),
        _memory(reduced.spans),
        _utilization(reduced.spans, utilization, max(processes.values()) + 1),
    ):
        file.write(separator + label.json_of(event))
        separator = b",\n"
    # Of what is left of a reduced trace counts are true, and parts of a program's time are not.
    about: dict[str, Any] = {
        "trace": headline(reduced.spans, {**metadata, "groups": ()}),
        "warnings": warning_lines(metadata),
    }
    if reduced.left_out is not None:
        about["span-budget"] = reduced.left_out
    for name in ("name", "xsp_version", "created"):
        if metadata.get(name):
            about[name] = str(metadata[name])
    file.write(b'\n],"otherData":%s}\n' % label.json_of(about))


def _named(what: str, names: Sequence[tuple[Event, str]]) -> Iterator[Event]:
    """Yield the names and the order of processes or tracks."""
    for rank, (place, name) in enumerate(names):
        yield {"ph": "M", "name": f"{what}_name", **place, "args": {"name": name}}
        yield {"ph": "M", "name": f"{what}_sort_index", **place, "args": {"sort_index": rank}}


def _spans(
    spans: pl.DataFrame, places: Sequence[Event], metadata: Mapping[str, Any]
) -> Iterator[Event]:
    """Yield the events of the spans with their flows; `places` has a place for each span."""
    subject = str(metadata.get("name") or "")
    model = label.whole(spans)
    flows, row = _flows(spans, places), 0
    for part in spans.iter_slices(_ROWS):
        fixed = part.select("kind", "start_ns", "end_ns", name=label.names(part, subject))
        columns = label.attributes(part, model)
        keys = [name.removeprefix(label.PREFIX) for name in columns.columns]
        for (kind, start, end, name), values in zip(
            fixed.iter_rows(), columns.iter_rows(), strict=True
        ):
            times = {"ts": start / 1000, "dur": (end - start) / 1000}
            args = {"args": label.known(keys, values)}
            yield {"ph": "X", "cat": kind, "name": name} | places[row] | times | args
            # Viewers tie a flow to the span opened last on its track, so flows follow their span.
            yield from flows.get(row, ())
            row += 1


def _flows(spans: pl.DataFrame, places: Sequence[Event]) -> dict[int, list[Event]]:
    """Return the flow events of each row; both events of a flow have the same id."""
    flows: dict[int, list[Event]] = {}
    starts = spans["start_ns"]
    for number, rows in enumerate(launches(spans).iter_rows(), 1):
        for row, phase in zip(rows, ({"ph": "s"}, {"ph": "f", "bp": "e"}), strict=True):
            flow = {**phase, "id": number, "cat": "launch", "name": "launch"}
            flows.setdefault(row, []).append(flow | places[row] | {"ts": starts[row] / 1000})
    return flows


def _memory(spans: pl.DataFrame) -> Iterator[Event]:
    """Yield the counter of held memory; nothing where none was recorded."""
    counter = {"ph": "C", "name": "memory", "pid": _HOST, "tid": 1}
    for at, value in held_memory(spans):
        yield counter | {"ts": at / 1000, "args": {"held bytes": value}}


def held_memory(spans: pl.DataFrame) -> list[tuple[int, int]]:
    """List when the memory held changed, in ns, and the bytes held from then on."""
    changes = own_memory(spans).sort("end_ns", maintain_order=True)
    held = changes.select("end_ns", held=pl.col("own_bytes").cum_sum())
    steps = held.unique("end_ns", keep="last", maintain_order=True)
    return [(0, 0), *steps.iter_rows()] if steps.height else []


def _utilization(spans: pl.DataFrame, table: pl.DataFrame | None, process: int) -> Iterator[Event]:
    """Yield counters of what monitors read; beside a measured step they have their own times."""
    if table is None:
        return
    beside = attribute_column(spans, "whole_block", pl.Boolean)[0]
    name = "monitor" if beside else "monitor: other steps, from the first one's begin"
    yield from _named("process", [({"pid": process}, name)])
    for track, what, times, values in monitored(table):
        counter = {"ph": "C", "name": track, "pid": process, "tid": 1}
        for start, value in zip(times, values, strict=True):
            yield counter | {"ts": start / 1000, "args": {what: value}}


def monitored(table: pl.DataFrame) -> Iterator[tuple[str, str, pl.Series, pl.Series]]:
    """List the tracks of what monitors read: name, metric, times in ns, and values.

    Args:
        table: Table of the analysis `utilization-timeline`.
    """
    for (device,), own in table.group_by("device", maintain_order=True):
        for what in own.drop("device", "start_ns").columns:
            known = own.select("start_ns", what).drop_nulls()
            if known.height:
                yield f"{device} {what}", what, known["start_ns"], known[what]


def own_memory(spans: pl.DataFrame) -> pl.DataFrame:
    """Return how each span changed the memory held, without the changes by spans below it.

    A span's `allocated_bytes` and `freed_bytes` count everything that its thread did in its
    time, so the counts of the spans below it on that thread are subtracted. A rolled-up span
    bears the counts that each of its members has, so they are multiplied by their number.

    Args:
        spans: Columns of `trace.spans` and of `reduction.EXTRA`, parents before children.

    Returns:
        `end_ns` and `own_bytes` of the spans whose memory was recorded.
    """
    allocated, freed = (
        attribute_column(spans, f"{what}_bytes", pl.Int64) for what in ("allocated", "freed")
    )
    net = (allocated - freed) * pl.col("rolled_count").fill_null(1)
    nets, threads = spans.select(net=net)["net"].to_list(), spans["thread"].to_list()
    parents, own = parent_rows(spans).tolist(), list(nets)
    for row, changed in enumerate(nets):
        above = parents[row] if changed is not None else -1
        while above >= 0 and (nets[above] is None or threads[above] != threads[row]):
            above = parents[above]
        if above >= 0:
            own[above] -= changed
    changes = pl.Series("own_bytes", own, dtype=pl.Int64)
    return pl.DataFrame([spans["end_ns"], changes]).drop_nulls("own_bytes")


def _warnings(metadata: Mapping[str, Any]) -> Iterator[Event]:
    if said := warning_lines(metadata):
        mark = {"ph": "i", "s": "p", "cat": "warning", "name": f"warnings: {len(said)}"}
        yield mark | {"pid": _HOST, "tid": 1, "ts": 0.0, "args": {"warnings": said}}
