"""OTLP messages of spans: a slice's columns, straight to bytes.

Protobuf's own objects would cost ten times as much: here each column becomes a list of
encoded fields, and a span is its row of them, joined. The messages are those of
opentelemetry/proto/trace/v1/trace.proto; fields are written in the order of their numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import polars as pl

from xsp.export import keyvalue, wire
from xsp.export.label import PREFIX

if TYPE_CHECKING:
    from xsp.export.picture import Slice

_INTERNAL = wire.tag(6, wire.VARINT) + wire.varint(1)
_SAMPLED = wire.tag(16, wire.FIXED32) + (1).to_bytes(4, "little")
_ERROR = wire.tag(3, wire.VARINT) + wire.varint(2)
# Bytes of a span's id.
_ID = 8


def encode(part: Slice, trace_id: bytes, trace_state: str = "") -> list[bytes]:
    """Return each span of a slice as an encoded Span message.

    Args:
        part: At least one span.
        trace_id: 16 bytes.
        trace_state: W3C tracestate of the trace, empty where there is none.
    """
    spans = part.spans
    columns = [_identities(spans, trace_id, trace_state), _texts(5, spans["name"]), _times(spans)]
    attributes = (name for name in spans.columns if name.startswith(PREFIX))
    columns += _attributes(9, {name.removeprefix(PREFIX): spans[name] for name in attributes})
    for number, rows, encoded in (
        (11, part.events, _events(part.events)),
        (13, part.links, _links(part.links)),
    ):
        if encoded:
            columns.append(_by_row(number, rows["row"], encoded, height=spans.height))
    if spans["error"].null_count() < spans.height:
        columns.append(_statuses(spans["error"]))
    columns.append([_SAMPLED] * spans.height)
    return [b"".join(row) for row in zip(*columns, strict=True)]


def _identities(spans: pl.DataFrame, trace_id: bytes, trace_state: str) -> list[bytes]:
    """Encode trace_id 1, span_id 2, trace_state 3 and, where there is one, parent_span_id 4."""
    span_ids, parents = (spans[name].to_numpy() for name in ("span_id", "parent_span_id"))
    alone = wire.field(1, trace_id) + wire.tag(2, wire.LENGTH) + wire.varint(_ID)
    parent = wire.text(3, trace_state) + wire.tag(4, wire.LENGTH) + wire.varint(_ID)
    with_parent = (alone, wire.fixed(span_ids, ">u8"), parent, wire.fixed(parents, ">u8"))
    encoded = wire.rows(spans.height, *with_parent)
    for row in (parents == 0).nonzero()[0].tolist():
        encoded[row] = encoded[row][: -len(wire.field(4, bytes(_ID)))]
    return encoded


def _times(spans: pl.DataFrame) -> list[bytes]:
    """Encode kind 6, start_time_unix_nano 7 and end_time_unix_nano 8."""
    start, end = (wire.fixed(spans[f"{name}_unix_ns"].to_numpy()) for name in ("start", "end"))
    tags = [wire.tag(number, wire.FIXED64) for number in (7, 8)]
    return wire.rows(spans.height, _INTERNAL + tags[0], start, tags[1], end)


def _events(events: pl.DataFrame) -> list[bytes]:
    """Encode Event messages: time_unix_nano 1, name 2, attributes 3."""
    if events.is_empty():
        return []
    times = wire.fixed(events["unix_ns"].to_numpy())
    columns = [wire.rows(events.height, wire.tag(1, wire.FIXED64), times)]
    columns += [_texts(2, events["name"]), *_attributes(3, {"message": events["message"]})]
    return [b"".join(row) for row in zip(*columns, strict=True)]


def _links(links: pl.DataFrame) -> list[bytes]:
    """Encode Link messages: trace_id 1, span_id 2, attributes 4."""
    if links.is_empty():
        return []
    encode = functools.cache(functools.partial(wire.field, 1))
    identity = wire.tag(2, wire.LENGTH) + wire.varint(_ID)
    span_ids = wire.rows(links.height, identity, wire.fixed(links["span_id"].to_numpy(), ">u8"))
    columns = [[encode(trace_id) for trace_id in links["trace_id"].to_list()], span_ids]
    columns += _attributes(4, {"xsp.relation": links["relation"]})
    return [b"".join(row) for row in zip(*columns, strict=True)]


def _attributes(number: int, columns: Mapping[str, pl.Series]) -> list[list[bytes]]:
    # Columns that belong to another kind of span are null from top to bottom.
    return [
        keyvalue.column(number, key, values)
        for key, values in columns.items()
        if values.null_count() < len(values)
    ]


def _texts(number: int, values: pl.Series) -> list[bytes]:
    encode = functools.cache(functools.partial(wire.text, number))
    return list(map(encode, values.fill_null("").to_list()))


def _statuses(errors: pl.Series) -> list[bytes]:
    """Encode status 15 (message 2, code 3); what is fine has none."""

    @functools.cache
    def encode(error: str | None) -> bytes:
        return b"" if error is None else wire.field(15, wire.text(2, error) + _ERROR)

    return list(map(encode, errors.to_list()))


def _by_row(number: int, rows: pl.Series, encoded: list[bytes], *, height: int) -> list[bytes]:
    """Return for each span its messages, as field `number`; `rows` is sorted."""
    column = [b""] * height
    pairs = zip(rows.to_list(), encoded, strict=True)
    for row, group in groupby(pairs, key=itemgetter(0)):
        column[row] = b"".join(wire.field(number, message) for _, message in group)
    return column
