"""The picture of a trace: a reduced frame in, slices of spans ready to be encoded out.

A picture gives spans what they have outside of xsp: names, services, ids and wall-clock
times. Every OTLP format encodes pictures. Spans come in slices, so that no second copy of
the trace is held in memory.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from xsp.evaluation import ON_DEVICE, Keys
from xsp.export import label
from xsp.export.reduction import Reduced
from xsp.export.resource import resource, service_name
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace_context import parse

Value = str | bool | int | float | list[str]

# Columns of `Slice.spans` before the attributes.
SPAN_SCHEMA: dict[str, Any] = {
    "span_id": pl.UInt64,
    "parent_span_id": pl.UInt64,
    "service": pl.Int64,
    "name": pl.String,
    "start_unix_ns": pl.Int64,
    "end_unix_ns": pl.Int64,
    "error": pl.String,
}
LINK_SCHEMA: dict[str, Any] = {
    "row": pl.Int64,
    "trace_id": pl.Binary,
    "span_id": pl.UInt64,
    "relation": pl.String,
}
# Jaeger writes the service before each span and colours spans by it, so xsp's services are
# kinds of span in a short word. Pipeline spans belong to the service that the user named.
_SERVICES = {
    "layer": "layer",
    "op": "op",
    "call": "call",
    "launch": "launch",
    "kernel": "device",
    "memcpy": "device",
    "memset": "device",
    "sync": "device",
    "syscall": "syscall",
}
# Kinds that a launch starts. Layers replayed from a graph are on a device as well, but the
# launch started the graph.
_STARTED = [kind.value for kind in (*DEVICE_ACTIVITIES, Kind.SYNC)]
_ROWS = 8192
# Ids of one picture share their upper half; the lower one counts its spans.
_UPPER = 0xFFFF_FFFF_0000_0000


@dataclass(frozen=True, slots=True)
class Service:
    """A service that spans belong to: in OpenTelemetry's terms, a resource.

    Attributes:
        name: Its `service.name`.
        attributes: The resource's attributes, `service.name` among them.
    """

    name: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Slice:
    """Some consecutive spans of a picture.

    Attributes:
        spans: One row per span, in the columns of `SPAN_SCHEMA`: `span_id` and
            `parent_span_id` (0: none), `service` (index of `Picture.services`),
            `name`, `start_unix_ns`, `end_unix_ns`, `error` (null where there is none);
            then one column `attr.NAME` per attribute, null where a span lacks it.
        events: Span events: `row` (of `spans`), `unix_ns`, `name` and `message`,
            sorted by row.
        links: Span links: `row`, `trace_id` (16 bytes), `span_id` and `relation`,
            sorted by row.
    """

    spans: pl.DataFrame
    events: pl.DataFrame
    links: pl.DataFrame

    def rows(self) -> Iterator[tuple[tuple[Any, ...], dict[str, Value]]]:
        """Yield each span: its values in the columns of `SPAN_SCHEMA`, and its attributes."""
        fixed = len(SPAN_SCHEMA)
        keys = [name.removeprefix(label.PREFIX) for name in self.spans.columns[fixed:]]
        for row in self.spans.iter_rows():
            yield row[:fixed], label.known(keys, row[fixed:])


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """The ids that a trace and its spans have outside of xsp.

    Attributes:
        trace_id: 16 bytes; the caller's where the trace hangs under a span of theirs.
        parent_span_id: The caller's span, 0 where there is none.
        base: Upper half of every span id; the lower half is the span's number, from 1.
        known: The trace's own span ids, sorted.
        numbers: Number of each span in `known`.
    """

    trace_id: bytes
    parent_span_id: int
    base: int
    known: Keys
    numbers: Keys

    def span_ids(self, ids: pl.Series) -> pl.Series:
        """Return the outside ids of the trace's own span ids; null for ids that it lacks.

        Outside ids grow in the order of the spans, so that a store that keeps microseconds
        and sorts by time, then id, gives siblings back in the order they ran.
        """
        if not self.known.size:
            return pl.Series([None] * ids.len(), dtype=pl.UInt64)
        wanted = ids.fill_null(0).to_numpy()
        place = np.minimum(np.searchsorted(self.known, wanted), self.known.size - 1)
        outside = pl.Series(self.numbers[place] + np.uint64(self.base))
        there = pl.Series(self.known[place] == wanted) & ids.is_not_null()
        return pl.select(pl.when(there).then(outside)).to_series()


@dataclass(frozen=True, slots=True)
class Linked:
    """Another picture that spans are linked to: each to the span there with the same path.

    Attributes:
        kinds: Kinds of span that are linked.
        identity: The other picture's ids.
    """

    kinds: tuple[str, ...]
    identity: Identity


class Picture:
    """A trace as it is exported, as part of the caller's own trace where there is one.

    The same trace, reduced in the same way, has the same ids each time, so that a store
    that has these ids already keeps one copy.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        parent: W3C `traceparent` to hang the root under; None for the trace's own.
        linked: Other pictures to link spans to.
    """

    def __init__(
        self,
        reduced: Reduced,
        metadata: Mapping[str, Any],
        *,
        parent: str | None = None,
        linked: tuple[Linked, ...] = (),
    ) -> None:
        spans = reduced.spans
        self.identity = identity(spans, metadata, parent or metadata.get("traceparent"))
        self.trace_state = "" if parent else str(metadata.get("tracestate") or "")
        self._reduced = reduced
        self._metadata = metadata
        self._linked = linked
        self._subject = str(metadata.get("name") or "")
        self._origin_ns = _began_unix_ns(metadata)
        self._model = label.whole(spans)
        base = service_name()
        kinds = spans["kind"].unique(maintain_order=True)
        named = {kind: _SERVICES.get(kind, base) for kind in kinds}
        names = list(dict.fromkeys(named.values()))
        self.services = _services(names, base, metadata)
        self._service_of = {kind: names.index(name) for kind, name in named.items()}

    @property
    def trace_id(self) -> bytes:
        """The trace's 16 bytes."""
        return self.identity.trace_id

    @property
    def height(self) -> int:
        """Number of spans."""
        return self._reduced.spans.height

    @cached_property
    def name(self) -> str:
        """Name of the root span."""
        names = label.names(self._reduced.spans.head(1), self._subject)
        return str(names[0]) if names.len() else ""

    def slices(self, rows: int = _ROWS) -> Iterator[Slice]:
        """Yield the spans in order, `rows` at a time."""
        for offset in range(0, self.height, rows):
            yield self._slice(self._reduced.spans.slice(offset, rows), first=offset == 0)

    def _slice(self, source: pl.DataFrame, *, first: bool) -> Slice:
        start = self._origin_ns + source["start_ns"]
        parents = self.identity.span_ids(source["parent_id"])
        spans = pl.DataFrame(
            {
                "span_id": self.identity.span_ids(source["span_id"]),
                "parent_span_id": parents.fill_null(self.identity.parent_span_id),
                "service": source["kind"].replace_strict(self._service_of, return_dtype=pl.Int64),
                "name": label.names(source, self._subject),
                "start_unix_ns": start,
                "end_unix_ns": _later(self._origin_ns + source["end_ns"], start),
                "error": label.errors(source),
            }
        )
        events = label.events(source, start)
        if first:
            of_trace = label.problems(self._metadata, start[0], left_out=self._reduced.left_out)
            events = pl.concat([of_trace, events]).sort("row", maintain_order=True)
            spans = spans.with_columns(_on_the_root("xsp.subject", self._subject, spans.height))
        events = events.with_columns(label.shortened(events["message"]))
        columns = label.attributes(source, self._model)
        return Slice(spans.hstack(columns), events, self._links(source))

    def _links(self, source: pl.DataFrame) -> pl.DataFrame:
        rows = source.select("span_id", "parent_id", "kind").with_row_index("row")
        return pl.concat([self._launched(rows), *(_linked(rows, to) for to in self._linked)]).sort(
            "row", maintain_order=True
        )

    def _launched(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the links from device activities to the calls that launched them."""
        found = rows.join(self._launches, on="span_id")
        ids = self.identity.span_ids(found["launch_id"])
        return _link_rows(found["row"], self.identity, ids, "launch")

    @cached_property
    def _launches(self) -> pl.DataFrame:
        pairs, ids = launches(self._reduced.spans), self._reduced.spans["span_id"]
        columns = {"span_id": pairs["execution"], "launch_id": pairs["launch"]}
        return pl.DataFrame({name: ids.gather(rows) for name, rows in columns.items()})


def launches(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs `launch` and `execution` that share a correlation id, as rows of `spans`.

    Where a call and a call within it have the same correlation id, the inner call is the launch.
    """
    rows = spans.select("kind", "thread", "device", "correlation_id").with_row_index("row")
    rows = rows.filter(pl.col("correlation_id").is_not_null())
    made = rows.filter(pl.col("kind") == Kind.LAUNCH.value)
    made = made.unique("correlation_id", keep="last", maintain_order=True)
    done = rows.filter(ON_DEVICE & pl.col("kind").is_in(_STARTED))
    pairs = done.join(made, on="correlation_id", suffix="_of_launch", maintain_order="left")
    return pairs.select(launch="row_of_launch", execution="row")


def _linked(rows: pl.DataFrame, to: Linked) -> pl.DataFrame:
    """Return the links from spans to the spans of the same path in another picture.

    The root has none: Jaeger draws no critical path where the root has a link.
    """
    found = rows.filter(pl.col("kind").is_in(to.kinds) & pl.col("parent_id").is_not_null())
    ids = to.identity.span_ids(found["span_id"])
    return _link_rows(found["row"], to.identity, ids, "run").drop_nulls("span_id")


def _link_rows(rows: pl.Series, identity: Identity, ids: pl.Series, relation: str) -> pl.DataFrame:
    return pl.DataFrame({"row": rows, "span_id": ids}).select(
        pl.col("row").cast(pl.Int64),
        pl.lit(identity.trace_id).alias("trace_id"),
        "span_id",
        pl.lit(relation).alias("relation"),
    )


def _later(end: pl.Series, start: pl.Series) -> pl.Series:
    """Return ends after the starts: Jaeger takes a span of no length for a damaged one."""
    return pl.select(pl.max_horizontal(end, start + 1)).to_series()


def _on_the_root(name: str, value: str, height: int) -> pl.Series:
    values = pl.Series([value] + [None] * (height - 1), dtype=pl.String)
    return label.shortened(values).alias(label.PREFIX + name)


def _began_unix_ns(metadata: Mapping[str, Any]) -> int:
    """Return when the root began; a trace made by hand may lack every time, and begins now."""
    if (began := metadata.get("began_unix_ns")) is not None:
        return int(began)
    if created := metadata.get("created"):
        return int(datetime.fromisoformat(str(created)).timestamp()) * 1_000_000_000
    return time.time_ns()


def _services(names: list[str], base: str, metadata: Mapping[str, Any]) -> tuple[Service, ...]:
    """Return the services of these names: resources that differ in nothing but their name."""
    shared = resource(metadata.get("environment", {}))
    return tuple(
        Service(name, {"service.name": name, "service.namespace": base, **shared}) for name in names
    )


def identity(
    spans: pl.DataFrame, metadata: Mapping[str, Any], traceparent: str | None = None
) -> Identity:
    """Return the identity made of spans, times and metadata; it is equal where they are equal.

    Args:
        spans: Frame with at least `span_id`, `start_ns` and `end_ns`.
        metadata: The trace's metadata.
        traceparent: W3C trace context of the span to hang the root under.
    """
    digest = hashlib.blake2b(digest_size=24)
    digest.update(json.dumps(metadata, default=dict, sort_keys=True).encode())
    for name in ("span_id", "start_ns", "end_ns"):
        digest.update(spans[name].to_numpy().tobytes())
    trace_id, seed = digest.digest()[:16], int.from_bytes(digest.digest()[16:], "big")
    parent = 0
    if found := parse(traceparent or ""):
        trace_id, parent = found[0].to_bytes(16, "big"), found[1]
    ids = spans["span_id"].to_numpy()
    order = np.argsort(ids)
    numbers = order.astype(np.uint64) + np.uint64(1)
    return Identity(trace_id, parent, seed & _UPPER, ids[order], numbers)
