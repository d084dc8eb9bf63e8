"""Pictures of spans that never were, and what protobuf itself makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import polars as pl
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from xsp.export import label
from xsp.export.picture import LINK_SCHEMA, SPAN_SCHEMA, Picture, Service, Slice

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = {
    pl.Int64: st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 20_000),
    pl.Float64: st.floats(),
    pl.String: TEXT,
    pl.Boolean: st.booleans(),
    pl.List(pl.String): st.lists(TEXT, max_size=3),
}


def any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=map(any_value, value)))
    return AnyValue(string_value=value)


TRACE_ID = bytes(range(16))
SPANS, EVENTS, LINKS = SPAN_SCHEMA, label.EVENT_SCHEMA, LINK_SCHEMA
TEXTS = {"text": pl.String}
SERVICES = tuple(
    Service(name, {"service.name": name, "host.id": "h", "cores": 2, "gpu": False, "load": 0.5})
    for name in ("model", "framework", "kernel")
)


@dataclass
class Drawn:
    parts: Sequence[Slice]
    services: tuple[Service, ...] = SERVICES
    trace_id: bytes = TRACE_ID
    trace_state: str = ""

    @property
    def height(self) -> int:
        return sum(part.spans.height for part in self.parts)

    def slices(self, rows: int = 8192) -> Iterator[Slice]:
        yield from self.parts


def drawn(*parts: Slice, **more: Any) -> Picture:
    return cast(Picture, Drawn(parts, **more))


def frame(rows: Sequence[dict[str, Any]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema)


def slice_of(
    spans: Sequence[dict[str, Any]],
    events: Sequence[dict[str, Any]] = (),
    links: Sequence[dict[str, Any]] = (),
    *,
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> Slice:
    columns = SPANS | {f"attr.{name}": dtype for name, dtype in attributes.items()}
    return Slice(frame(spans, columns), frame(events, EVENTS), frame(links, LINKS))


def span(number: int, **more: Any) -> dict[str, Any]:
    return {
        "span_id": number,
        "parent_span_id": number - 1,
        "service": 0,
        "name": f"span {number}",
        "start_unix_ns": 1_000 * number,
        "end_unix_ns": 1_000 * number + 500,
        **more,
    }


def plain(count: int, *, text: str = "", services: int = 3) -> Picture:
    rows = [span(i + 1, service=i % services, **{"attr.text": text}) for i in range(count)]
    return drawn(slice_of(rows, attributes=TEXTS))


UNSIGNED = st.integers(1, 2**64 - 1)
TIMES = st.integers(1, 2**63 - 1)


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    attributes = draw(st.dictionaries(TEXT.filter(bool), st.sampled_from(list(VALUES)), max_size=6))
    row = st.fixed_dictionaries(
        {
            "span_id": UNSIGNED,
            "parent_span_id": st.just(0) | UNSIGNED,
            "service": st.integers(0, len(SERVICES) - 1),
            "name": TEXT,
            "start_unix_ns": TIMES,
            "end_unix_ns": TIMES,
            "error": st.none() | TEXT,
            **{f"attr.{name}": st.none() | VALUES[dtype] for name, dtype in attributes.items()},
        }
    )
    spans = draw(st.lists(row, max_size=8))
    rows = st.integers(0, max(len(spans) - 1, 0))
    event = {"row": rows, "unix_ns": TIMES, "name": TEXT, "message": st.none() | TEXT}
    trace_ids = st.binary(min_size=16, max_size=16)
    link = {"row": rows, "trace_id": trace_ids, "span_id": UNSIGNED, "relation": TEXT}
    most = 4 if spans else 0
    events, links = (draw(by_row(st.fixed_dictionaries(one), most)) for one in (event, link))
    return slice_of(spans, events, links, attributes=attributes)


def by_row(one: st.SearchStrategy[dict[str, Any]], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(one, max_size=most).map(lambda rows: sorted(rows, key=lambda row: row["row"]))


def expected(picture: Picture) -> list[tuple[str, Span]]:
    """The spans of a picture with their services, built from protobuf's own objects."""
    return [
        (picture.services[row["service"]].name, built(number, row, part, picture))
        for part in picture.slices()
        for number, row in enumerate(part.spans.to_dicts())
    ]


def built(number: int, row: dict[str, Any], part: Slice, picture: Picture) -> Span:
    events = part.events.filter(pl.col("row") == number).to_dicts()
    links = part.links.filter(pl.col("row") == number).to_dicts()
    error = row["error"]
    return Span(
        trace_id=picture.trace_id,
        span_id=row["span_id"].to_bytes(8, "big"),
        trace_state=picture.trace_state,
        parent_span_id=row["parent_span_id"].to_bytes(8, "big") if row["parent_span_id"] else b"",
        name=row["name"],
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=row["start_unix_ns"],
        end_time_unix_nano=row["end_unix_ns"],
        attributes=key_values(
            {name[5:]: value for name, value in row.items() if name.startswith("attr.")}
        ),
        events=[
            Span.Event(
                time_unix_nano=one["unix_ns"],
                name=one["name"],
                attributes=key_values({"message": one["message"]}),
            )
            for one in events
        ],
        links=[
            Span.Link(
                trace_id=one["trace_id"],
                span_id=one["span_id"].to_bytes(8, "big"),
                attributes=key_values({"xsp.relation": one["relation"]}),
            )
            for one in links
        ],
        status=None if error is None else Status(code=Status.STATUS_CODE_ERROR, message=error),
        flags=1,
    )


def key_values(values: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=k, value=any_value(v)) for k, v in values.items() if v is not None]


def written(spans: Sequence[tuple[str, Span]]) -> list[tuple[str, bytes]]:
    """Spans as bytes, which differ wherever spans do and are equal for NaN."""
    return [(service, one.SerializeToString(deterministic=True)) for service, one in spans]
