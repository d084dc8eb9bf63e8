"""Chrome's trace format: a trace as a timeline for ui.perfetto.dev and chrome://tracing.

A process for the host and one for each device; in them a track per thread and per
stream. Times are microseconds with the nanoseconds as decimals, from 0 at the root's
start, on the timeline without overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

import polars as pl

from xsp.export import label, lane, literal
from xsp.export.lane import Track
from xsp.export.literal import plain, string
from xsp.export.picture import Value
from xsp.export.reduction import Reduced
from xsp.trace import headline, remarks
from xsp.trace import similarity as shape

_ROWS = 8192
_HOST = 1
# Old readers took "ns" for the unit of the times themselves; new ones ignore it.
_HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'
_FLOW = '"cat":"launch","name":"launch"'


def write(reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a trace as one document of Chrome's trace format.

    - Complete events (`X`) are the spans, with all attributes as `args`.
    - Flows (`s`, `f`) lead from each launch to what it started on a device.
    - The counter (`C`) `memory` says how many bytes are held that were allocated
      within the trace, where that was recorded. What a span allocated or freed
      outside of the spans below it is counted at its end: its moment is not known.
    - Problems of the trace are an instant event (`i`) of the host.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Where to; the text of some thousand spans is held at a time.

    Raises:
        OSError: The file could not be written.
    """
    timeline = _Timeline.of(reduced.spans)
    events = chain(_tracks(timeline, metadata.get("environment") or {}), _problems(metadata))
    file.write(_HEAD + ",\n".join(events).encode("ascii"))
    for chunk in chain(_spans(timeline, metadata), _memory(timeline.spans)):
        file.write(b",\n" + chunk.encode("ascii"))
    file.write(f'\n],"otherData":{_about(reduced, metadata)}}}\n'.encode("ascii"))


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Spans with the place of each.

    Attributes:
        spans: Columns of `trace.spans` and those of a reduction.
        tracks: Every track; a track's thread id is its index and 1.
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
        tracks, of_row = lane.tracks(spans)
        devices = sorted({track.device for track in tracks if track.device is not None})
        processes: dict[int | None, int] = {None: _HOST}
        processes.update((device, at) for at, device in enumerate(devices, _HOST + 1))
        return cls(spans, tracks, of_row, processes)

    def place(self, row: int) -> str:
        """Return process and thread of a span as fields of its event."""
        index = self.of_row[row]
        return f'"pid":{self.processes[self.tracks[index].device]},"tid":{index + 1}'


def _spans(timeline: _Timeline, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the events of the spans with their flows, some thousand at a time."""
    spans = timeline.spans
    subject = str(metadata.get("name") or "")
    root_ns: float | None = spans["latency_ns"][0] if spans.height else None
    flows = _flows(timeline)
    for first in range(0, spans.height, _ROWS):
        part = spans.slice(first, _ROWS)
        columns = part.select("kind", "start_ns", "end_ns").with_columns(
            name=label.names(part, subject)
        )
        arguments = literal.attributes(label.attributes(part, root_ns), _field)
        chunk: list[str] = []
        for row, (kind, start, end, name) in enumerate(columns.iter_rows(), first):
            chunk.append(
                f'{{"ph":"X","cat":{string(kind)},"name":{string(name)},{timeline.place(row)},'
                f'"ts":{_microseconds(start)},"dur":{_microseconds(end - start)},'
                f'"args":{{{arguments[row - first]}}}}}'
            )
            # Readers tie a flow to the span last opened on its track: it follows that.
            chunk += flows.get(row, ())
        yield ",\n".join(chunk)


def _flows(timeline: _Timeline) -> dict[int, list[str]]:
    """Return the flow events that follow the event of a row; the two of a flow share an id."""
    flows: dict[int, list[str]] = {}
    starts = timeline.spans["start_ns"]
    for number, rows in enumerate(lane.launches(timeline.spans).iter_rows(), 1):
        for row, phase in zip(rows, ('"s"', '"f","bp":"e"'), strict=True):
            flows.setdefault(row, []).append(
                f'{{"ph":{phase},"id":{number},{_FLOW},{timeline.place(row)},'
                f'"ts":{_microseconds(starts[row])}}}'
            )
    return flows


def _memory(spans: pl.DataFrame) -> Iterator[str]:
    """Yield the counter of held memory, as one text; nothing where none was recorded."""
    changes = own_memory(spans).sort("end_ns", maintain_order=True)
    held = changes.select("end_ns", held=pl.col("own_bytes").cum_sum())
    steps = held.unique("end_ns", keep="last", maintain_order=True)
    if steps.height:
        yield ",\n".join(_counter(at, value) for at, value in [(0, 0), *steps.iter_rows()])


def own_memory(spans: pl.DataFrame) -> pl.DataFrame:
    """Return what each span changed memory by outside of those below it.

    What a span allocated and freed is all that its thread did in its time; what the
    spans below it on that thread account for is taken off. What is rolled up has the
    value that all in it share, so it counts as often.

    Args:
        spans: Columns of `trace.spans` and those of a reduction, parents before children.

    Returns:
        `end_ns` and `own_bytes` of the spans whose memory was recorded.
    """
    known = spans.select(
        "span_id",
        "parent_id",
        "thread",
        "end_ns",
        net=(
            shape.field(spans, "allocated_bytes", pl.Int64)
            - shape.field(spans, "freed_bytes", pl.Int64)
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
    """Return the `net` of spans summed by the nearest one above that has such on their thread."""
    place = {span_id: row for row, span_id in enumerate(known["span_id"])}
    parents = [place.get(parent, -1) for parent in known["parent_id"]]
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


def _counter(at_ns: int, held_bytes: int) -> str:
    return (
        f'{{"ph":"C","name":"memory","pid":{_HOST},"tid":1,"ts":{_microseconds(at_ns)},'
        f'"args":{{"held bytes":{held_bytes}}}}}'
    )


def _tracks(timeline: _Timeline, environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names and the order of processes and tracks."""
    for device, process in timeline.processes.items():
        name = _host_name(environment) if device is None else _device_name(device, environment)
        yield from _named("process", f'"pid":{process}', name, process)
    for rank, index in enumerate(_order(timeline.tracks)):
        track = timeline.tracks[index]
        place = f'"pid":{timeline.processes[track.device]},"tid":{index + 1}'
        yield from _named("thread", place, _track_name(track), rank)


def _order(tracks: Sequence[Track]) -> list[int]:
    """Return tracks as they stand in their process: threads by first span, streams by number."""
    firsts: dict[tuple[int | None, int | None], int] = {}
    ranks: list[tuple[int, int]] = []
    for index, track in enumerate(tracks):
        first = firsts.setdefault((track.device, track.number), index)
        by_number = None if track.device is None else track.number
        ranks.append((first if by_number is None else by_number, track.lane))
    return sorted(range(len(tracks)), key=ranks.__getitem__)


def _named(what: str, place: str, name: str, rank: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"{what}_name",{place},"args":{{"name":{string(name)}}}}}'
    yield f'{{"ph":"M","name":"{what}_sort_index",{place},"args":{{"sort_index":{rank}}}}}'


def _host_name(environment: Mapping[str, Any]) -> str:
    return f"host {environment.get('host') or ''}".rstrip()


def _device_name(device: int, environment: Mapping[str, Any]) -> str:
    gpus = environment.get("gpus") or ()
    model = f" {gpus[device].get('name', '')}" if 0 <= device < len(gpus) else ""
    return f"device {device}{model}".rstrip()


def _track_name(track: Track) -> str:
    if track.number is None:  # of a device: waits for all of it, what a graph replays of layers
        name = "unknown thread" if track.device is None else "across streams"
    else:
        name = f"{'thread' if track.device is None else 'stream'} {track.number}"
    return f"{name}, at the same time ({track.lane + 1})" if track.lane else name


def _problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    if said := remarks(metadata):
        name = string(f"problems: {len(said)}")
        yield (
            f'{{"ph":"i","s":"p","cat":"problem","name":{name},"pid":{_HOST},"tid":1,'
            f'"ts":0.000,"args":{{"problems":{plain(said)}}}}}'
        )


def _about(reduced: Reduced, metadata: Mapping[str, Any]) -> str:
    told: dict[str, Value] = {
        "trace": headline(reduced.spans, metadata),
        "problems": remarks(metadata),
    }
    if reduced.left_out is not None:
        told["span-budget"] = reduced.left_out
    for name in ("name", "xsp_version", "created"):
        if metadata.get(name):
            told[name] = str(metadata[name])
    return f"{{{literal.listed(told, _field)}}}"


def _field(key: str, value: Value) -> str:
    return f"{key}:{plain(value)}"


def _microseconds(nanoseconds: int) -> str:
    """Return nanoseconds as microseconds, exactly.

    >>> _microseconds(1_234_567), _microseconds(-1)
    ('1234.567', '-0.001')
    """
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 1000)
    return f"{sign}{whole}.{rest:03d}"
