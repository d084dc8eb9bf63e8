"""Chrome's trace format: spans in, a timeline for ui.perfetto.dev and chrome://tracing out.

The host is a process of the timeline, and so is each device; a process has a track per
thread or stream. Times are microseconds with the nanoseconds as decimals, from 0 at the
root's start, on the timeline without overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

import polars as pl

from xsp.export import label
from xsp.export.picture import launches
from xsp.export.reduction import Reduced
from xsp.export.track import Track, device_name, host_name, order, track_name, tracks
from xsp.trace import attribute_column, headline, parent_rows, problem_lines

_ROWS = 8192
_HOST = 1
# Old readers took "ns" for the unit of the times themselves; new ones ignore it.
_HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'

Event = dict[str, Any]


def write(reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a trace as one document of Chrome's trace format.

    - Complete events (`X`) are the spans, with all attributes as `args`.
    - Flows (`s`, `f`) lead from each launch to what it started on a device.
    - The counter (`C`) `memory` is how many bytes are held that were allocated within
      the trace, where memory was recorded. A span's own allocations, those outside of the
      spans below it, are counted at its end, as their moments are not known.
    - Problems of the trace are an instant event (`i`) of the host.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to event by event.

    Raises:
        OSError: The file could not be written.
    """
    timeline = _Timeline.of(reduced.spans)
    separator = _HEAD
    for event in chain(
        _tracks(timeline, metadata.get("environment") or {}),
        _problems(metadata),
        _spans(timeline, metadata),
        _memory(timeline.spans),
    ):
        file.write(separator + label.json_of(event))
        separator = b",\n"
    file.write(b'\n],"otherData":%s}\n' % label.json_of(_about(reduced, metadata)))


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Spans and the track of each.

    Attributes:
        spans: Columns of `trace.spans` and of `reduction.EXTRA`.
        tracks: Every track; its thread id in the document is its index plus 1.
        of_row: Index of the track of each span.
        processes: Process id of each device, and of the host (None).
    """

    spans: pl.DataFrame
    tracks: Sequence[Track]
    of_row: Sequence[int]
    processes: Mapping[int | None, int]

    @classmethod
    def of(cls, spans: pl.DataFrame) -> _Timeline:
        """Return the timeline of spans."""
        found, of_row = tracks(spans)
        devices = sorted({track.device for track in found if track.device is not None})
        processes: dict[int | None, int] = {None: _HOST}
        processes.update((device, at) for at, device in enumerate(devices, _HOST + 1))
        return cls(spans, found, of_row, processes)

    def place(self, index: int) -> Event:
        """Return process and thread of a track as fields of an event."""
        return {"pid": self.processes[self.tracks[index].device], "tid": index + 1}


def _spans(timeline: _Timeline, metadata: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of the spans with their flows."""
    subject = str(metadata.get("name") or "")
    model = label.whole(timeline.spans)
    flows, row = _flows(timeline), 0
    for part in timeline.spans.iter_slices(_ROWS):
        fixed = part.select("kind", "start_ns", "end_ns", name=label.names(part, subject))
        columns = label.attributes(part, model)
        keys = [name.removeprefix(label.PREFIX) for name in columns.columns]
        for (kind, start, end, name), values in zip(
            fixed.iter_rows(), columns.iter_rows(), strict=True
        ):
            place = timeline.place(timeline.of_row[row])
            times = {"ts": start / 1000, "dur": (end - start) / 1000}
            args = {"args": _finite(label.known(keys, values))}
            yield {"ph": "X", "cat": kind, "name": name} | place | times | args
            # Viewers tie a flow to the span opened last on its track, so flows follow their span.
            yield from flows.get(row, ())
            row += 1


def _finite(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: label.finite(value) if isinstance(value, float) else value
        for name, value in arguments.items()
    }


def _flows(timeline: _Timeline) -> dict[int, list[Event]]:
    """Return the flow events of each row; both events of a flow have the same id."""
    flows: dict[int, list[Event]] = {}
    starts = timeline.spans["start_ns"]
    for number, rows in enumerate(launches(timeline.spans).iter_rows(), 1):
        for row, phase in zip(rows, ({"ph": "s"}, {"ph": "f", "bp": "e"}), strict=True):
            flow = {**phase, "id": number, "cat": "launch", "name": "launch"}
            place = timeline.place(timeline.of_row[row])
            flows.setdefault(row, []).append(flow | place | {"ts": starts[row] / 1000})
    return flows


def _memory(spans: pl.DataFrame) -> Iterator[Event]:
    """Yield the counter of held memory; nothing where none was recorded."""
    changes = own_memory(spans).sort("end_ns", maintain_order=True)
    held = changes.select("end_ns", held=pl.col("own_bytes").cum_sum())
    steps = held.unique("end_ns", keep="last", maintain_order=True)
    counter = {"ph": "C", "name": "memory", "pid": _HOST, "tid": 1}
    for at, value in [(0, 0), *steps.iter_rows()] if steps.height else []:
        yield counter | {"ts": at / 1000, "args": {"held bytes": value}}


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
    known = spans.select(
        "span_id",
        "parent_id",
        "thread",
        "end_ns",
        net=(
            attribute_column(spans, "allocated_bytes", pl.Int64)
            - attribute_column(spans, "freed_bytes", pl.Int64)
        )
        * spans["rolled_count"].fill_null(1),
    )
    below = _charged(known)
    return (
        known.filter(pl.col("net").is_not_null())
        .join(below, left_on="span_id", right_on="above", how="left", maintain_order="left")
        .select("end_ns", own_bytes=pl.col("net") - pl.col("below").fill_null(0))
    )


def _charged(known: pl.DataFrame) -> pl.DataFrame:
    """Return `net` summed by the nearest ancestor on the same thread that has a `net` as well."""
    parents = parent_rows(known).tolist()
    threads, nets = known["thread"].to_list(), known["net"].to_list()
    sums: dict[int, int] = {}
    for row, net in enumerate(nets):
        above = parents[row] if net is not None else -1
        while above >= 0 and (nets[above] is None or threads[above] != threads[row]):
            above = parents[above]
        if above >= 0:
            sums[above] = sums.get(above, 0) + net
    ids = known["span_id"].gather(list(sums))
    return pl.DataFrame(
        {"above": ids, "below": list(sums.values())},
        schema={"above": pl.UInt64, "below": pl.Int64},
    )


def _tracks(timeline: _Timeline, environment: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the names and the order of processes and tracks."""
    for device, process in timeline.processes.items():
        name = host_name(environment) if device is None else device_name(device, environment)
        yield from _named("process", {"pid": process}, name, process)
    for rank, index in enumerate(order(timeline.tracks)):
        name = track_name(timeline.tracks[index])
        yield from _named("thread", timeline.place(index), name, rank)


def _named(what: str, place: Event, name: str, rank: int) -> Iterator[Event]:
    yield {"ph": "M", "name": f"{what}_name", **place, "args": {"name": name}}
    yield {"ph": "M", "name": f"{what}_sort_index", **place, "args": {"sort_index": rank}}


def _problems(metadata: Mapping[str, Any]) -> Iterator[Event]:
    if said := problem_lines(metadata):
        mark = {"ph": "i", "s": "p", "cat": "problem", "name": f"problems: {len(said)}"}
        yield mark | {"pid": _HOST, "tid": 1, "ts": 0.0, "args": {"problems": said}}


def _about(reduced: Reduced, metadata: Mapping[str, Any]) -> dict[str, Any]:
    # Of what is left of a reduced trace counts are true, and parts of a program's time are not.
    told: dict[str, Any] = {
        "trace": headline(reduced.spans, {**metadata, "groups": ()}),
        "problems": problem_lines(metadata),
    }
    if reduced.left_out is not None:
        told["span-budget"] = reduced.left_out
    for name in ("name", "xsp_version", "created"):
        if metadata.get(name):
            told[name] = str(metadata[name])
    return told
