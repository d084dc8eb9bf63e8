"""Gives the spans of a trace what they have outside of xsp: services, ids and wall-clock times.

Every OTLP format encodes pictures. Spans come in slices, so that no second copy of the trace is
held in memory. Services are resources in OpenTelemetry's terms, with the names of its
conventions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import polars as pl

from xsp import __version__
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import ON_DEVICE, Keys
from xsp.show.export import label
from xsp.show.export.reduction import Reduced
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
# Jaeger writes the service before each span and colors spans by it, so xsp's services are
# kinds of span in a short word. region spans belong to the service that the user named.
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

DEFAULT_SERVICE = "xsp"
_UNKNOWN_HOST = "unknown"
_NEVER_EMPTY = ("host.id", "host.name")
# Packages that xsp itself needs say nothing about the model.
_OWN_TOOLS = frozenset({"polars", "click", "rich", "psutil"})
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    **dict.fromkeys(("armv6l", "armv7l", "armv8l"), "arm32"),
    **dict.fromkeys(("i386", "i486", "i586", "i686"), "x86"),
    "ppc": "ppc32",
    "ppc64le": "ppc64",
}
_SYSTEMS = {"macos": "darwin"}
_PLAIN = {
    "host.cpu.model.name": "cpu",
    "os.description": "os",
    "process.pid": "pid",
    "process.executable.name": "executable",
    "process.runtime.version": "python",
}

_log = logging.getLogger("xsp.export")


@dataclass(frozen=True, slots=True)
class Service:
    """A service that spans belong to: in OpenTelemetry's terms, a resource.

    Attributes:
        name: Its `service.name`.
        attributes: The resource's attributes, `service.name` among them.
    """

    name: str
    attributes: Mapping[str, Value]


class Row(NamedTuple):
    """A span of a slice: its values in the columns of `SPAN_SCHEMA`, and all that belongs to it.

    Attributes:
        attributes: By name, without those that the span lacks.
        events: `unix_ns`, `name` and `message` of each event.
        links: `trace_id`, `span_id` and `relation` of each link.
    """

    span_id: int
    parent_span_id: int
    service: int
    name: str
    start_unix_ns: int
    end_unix_ns: int
    error: str | None
    attributes: dict[str, Value]
    events: Sequence[tuple[int, str, str]]
    links: Sequence[tuple[bytes, int, str]]


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

    def rows(self) -> Iterator[Row]:
        """Yield each span with its attributes, events and links."""
        fixed = len(SPAN_SCHEMA)
        keys = [name.removeprefix(label.PREFIX) for name in self.spans.columns[fixed:]]
        events, links = _by_row(self.events), _by_row(self.links)
        for at, row in enumerate(self.spans.iter_rows()):
            more = (label.known(keys, row[fixed:]), events.get(at, ()), links.get(at, ()))
            yield Row._make((*row[:fixed], *more))

    def cut(self, first: int, end: int) -> Slice:
        """Return the spans from row `first` to before row `end`, with their events and links."""
        own = pl.col("row").is_between(first, end, closed="left")
        events, links = (
            rows.filter(own).with_columns(pl.col("row") - first)
            for rows in (self.events, self.links)
        )
        return replace(self, spans=self.spans[first:end], events=events, links=links)


def _by_row(frame: pl.DataFrame) -> dict[int, list[Any]]:
    rows: dict[int, list[Any]] = {}
    for row, *rest in frame.iter_rows():
        rows.setdefault(row, []).append(rest)
    return rows


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
        self._origin_ns = began_unix_ns(metadata)
        self._model = label.whole(spans)
        base = service_name()
        kinds = spans["kind"].unique(maintain_order=True)
        named = {kind: _SERVICES.get(kind, base) for kind in kinds}
        names = list(dict.fromkeys(named.values()))
        shared = {"service.namespace": base, **resource(metadata.get("environment", {}))}
        self.services = tuple(Service(name, {"service.name": name, **shared}) for name in names)
        self._service_of = {kind: names.index(name) for kind, name in named.items()}

    @property
    def trace_id(self) -> bytes:
        """The trace's 16 bytes."""
        return self.identity.trace_id

    @property
    def height(self) -> int:
        """Number of spans."""
        return self._reduced.spans.height

    def slices(self, rows: int = _ROWS) -> Iterator[Slice]:
        """Yield the spans in order, `rows` at a time."""
        for offset in range(0, self.height, rows):
            yield self._slice(self._reduced.spans.slice(offset, rows), first=offset == 0)

    def _slice(self, source: pl.DataFrame, *, first: bool) -> Slice:
        start, end = (self._origin_ns + source[name] for name in ("start_ns", "end_ns"))
        # Jaeger takes a span of no length for a damaged one.
        end = pl.select(pl.max_horizontal(end, start + 1)).to_series()
        parents = self.identity.span_ids(source["parent_id"])
        spans = pl.DataFrame(
            {
                "span_id": self.identity.span_ids(source["span_id"]),
                "parent_span_id": parents.fill_null(self.identity.parent_span_id),
                "service": source["kind"].replace_strict(self._service_of, return_dtype=pl.Int64),
                "name": label.names(source, self._subject),
                "start_unix_ns": start,
                "end_unix_ns": end,
                "error": label.errors(source),
            }
        )
        events = label.events(source, start)
        if first:
            of_trace = label.warnings(self._metadata, start[0], left_out=self._reduced.left_out)
            events = pl.concat([of_trace, events]).sort("row", maintain_order=True)
            subject = pl.Series([self._subject] + [None] * (spans.height - 1), dtype=pl.String)
            subject = label.shortened(subject).alias(f"{label.PREFIX}xsp.subject")
            spans = spans.with_columns(subject)
        events = events.with_columns(label.shortened(events["message"]))
        columns = label.attributes(source, self._model)
        return Slice(spans.hstack(columns), events, self._links(source))

    def _links(self, source: pl.DataFrame) -> pl.DataFrame:
        """Return the links of activities to their launches, and of spans to other pictures."""
        rows = source.select("span_id", "parent_id", "kind").with_row_index("row")
        launched = rows.join(self._launches, on="span_id")
        found = [_links(launched, launched["launch_id"], self.identity, "launch")]
        for to in self._linked:
            # The root has none: Jaeger draws no critical path where the root has a link.
            spans = rows.filter(pl.col("kind").is_in(to.kinds) & pl.col("parent_id").is_not_null())
            links = _links(spans, spans["span_id"], to.identity, "run")
            found.append(links.drop_nulls("span_id"))
        return pl.concat(found).sort("row", maintain_order=True)

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


def _links(rows: pl.DataFrame, ids: pl.Series, to: Identity, relation: str) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "row": rows["row"].cast(pl.Int64),
            "trace_id": pl.repeat(to.trace_id, rows.height, dtype=pl.Binary, eager=True),
            "span_id": to.span_ids(ids),
            "relation": pl.repeat(relation, rows.height, dtype=pl.String, eager=True),
        }
    )


def began_unix_ns(metadata: Mapping[str, Any]) -> int:
    """Return when the root began; a trace made by hand may lack every time, and begins now."""
    if (began := metadata.get("began_unix_ns")) is not None:
        return int(began)
    if created := metadata.get("created"):
        return int(datetime.fromisoformat(str(created)).timestamp()) * 1_000_000_000
    return time.time_ns()


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


def resource(
    environment: Mapping[str, Any], variables: Mapping[str, str] = os.environ
) -> dict[str, str | int]:
    """Return the attributes that all resources of a trace share: all but `service.name`.

    Facts that the trace lacks are left out, except `host.id` and `host.name`. Attributes in
    `OTEL_RESOURCE_ATTRIBUTES` win. Where the host differs between two services, Jaeger moves
    spans for clock skew, so all services have the same attributes.

    Args:
        environment: The entry `environment` of a trace's metadata.
        variables: Environment variables.
    """
    name = environment.get("host") or _UNKNOWN_HOST
    machine = str(environment.get("machine") or "").lower()
    # `platform.platform()` begins with the system's name: Linux-6.18-x86_64-…
    system = str(environment.get("os") or "").partition("-")[0].lower()
    versions = (environment.get("versions") or {}).items()
    found: dict[str, Any] = {
        # Jaeger's query service tells machines apart by `ip` alone, and moves spans without
        # `ip` as if they came from machines whose clocks differ.
        "ip": "127.0.0.1",
        "host.id": environment.get("host_id") or name,
        "host.name": name,
        "host.arch": _ARCHITECTURES.get(machine, machine),
        "os.type": _SYSTEMS.get(system, system),
        "process.runtime.name": str(environment.get("python_implementation") or "").lower(),
        "telemetry.sdk.name": "xsp",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
        **{outside: environment.get(key) for outside, key in _PLAIN.items()},
        **{f"xsp.versions.{one}": version for one, version in versions if one not in _OWN_TOOLS},
    }
    # OpenTelemetry's `hw.*` attributes describe a single component, not all GPUs of a machine.
    if gpus := environment.get("gpus") or ():
        found["xsp.gpu.count"] = len(gpus)
        for field in ("name", "driver", "memory"):
            values = (str(gpu[field]) for gpu in gpus if field in gpu)
            found[f"xsp.gpu.{field}"] = "; ".join(dict.fromkeys(values))
    known = {outside: _text(value) for outside, value in found.items() if value not in (None, "")}
    given = dict(_given(variables.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    given.pop("service.name", None)
    return {**known, **{key: v for key, v in given.items() if v or key not in _NEVER_EMPTY}}


def service_name(variables: Mapping[str, str] = os.environ) -> str:
    """Return the user's name for the service, or `DEFAULT_SERVICE`.

    `OTEL_SERVICE_NAME` wins over `service.name` in `OTEL_RESOURCE_ATTRIBUTES`.
    """
    given = dict(_given(variables.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    name = _text(variables.get("OTEL_SERVICE_NAME", "").strip())
    return name or given.get("service.name") or DEFAULT_SERVICE


@functools.lru_cache(maxsize=1)  # so that each malformed text is warned of once
def _given(text: str) -> tuple[tuple[str, str], ...]:
    """Return the attributes of `key=value,…`, percent-encoded."""
    pairs = []
    for part in filter(None, map(str.strip, text.split(","))):
        key, separator, value = (_text(unquote(one.strip())) for one in part.partition("="))
        if separator and key:
            pairs.append((key, value))
        else:
            _log.warning(
                "OTEL_RESOURCE_ATTRIBUTES holds %r, which is not key=value and is left out: write "
                "key1=value1,key2=value2, with commas and per cent signs as %%2C and %%25",
                part,
            )
    return tuple(pairs)


def _text(value: Any) -> Any:
    """Return a text with escapes for bytes of the environment that were not UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
