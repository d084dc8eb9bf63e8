"""OTLP protobuf: a picture in, encoded export requests of bounded size out.

Protobuf's own objects would cost ten times as much. Here each column becomes a list of
encoded fields, a span is a row of fields, joined, and a request is many spans, joined. Fields
are in the order of their numbers. The messages are those of opentelemetry/proto:
ExportTraceServiceRequest (collector/trace/v1/trace_service.proto), ResourceSpans,
ScopeSpans and Span (trace/v1/trace.proto), KeyValue (key 1, value 2) and AnyValue (text 1,
boolean 2, integer 3, double 4, array 5; common/v1/common.proto).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from xsp import __version__
from xsp.export.label import PREFIX
from xsp.export.otlp import wire
from xsp.trace import SCHEMA_URL

if TYPE_CHECKING:
    from xsp.export.picture import Picture, Service, Slice, Value

# Servers take 4 MiB by default. Requests of a quarter of that are no slower to make, and
# even a slow store answers such a request well within the timeout.
MOST_BYTES = 1024 * 1024

# The repeated field of ExportTraceServiceRequest, ResourceSpans and ScopeSpans.
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
# Protobuf messages are below 2^31 bytes, so this holds a tag and a length.
_WIDEST = 6
# Spans encoded together: about as many as a chunk holds, and fewer where their texts are
# larger than _MOST_TEXT_BYTES.
_ROWS = 2048
_MOST_TEXT_BYTES = 8 * MOST_BYTES

_INTERNAL = wire.tag(6, wire.VARINT) + wire.varint(1)
_SAMPLED = wire.tag(16, wire.FIXED32) + (1).to_bytes(4, "little")
_ERROR = wire.tag(3, wire.VARINT) + wire.varint(2)
# Bytes of a span's id.
_ID = 8

_KEY, _VALUE = 1, 2
_TEXT, _ARRAY = 1, 5
_ITEM = 1
_BOOLEAN = wire.tag(2, wire.VARINT)
_INTEGER = wire.tag(3, wire.VARINT)
_DOUBLE = wire.tag(4, wire.FIXED64)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some spans, ready to be sent.

    Attributes:
        body: An encoded ExportTraceServiceRequest.
        spans: Number of spans in the request.
    """

    body: bytes
    spans: int


@dataclass(frozen=True, slots=True, eq=False)
class _Envelope:
    """The encoded fields around the spans of one service; an envelope equals itself only.

    Attributes:
        resource: Fields of ResourceSpans before its ScopeSpans.
        scope: Fields of ScopeSpans before its spans.
        schema: Fields of ScopeSpans after its spans.
    """

    resource: bytes
    scope: bytes
    schema: bytes

    @property
    def most_bytes(self) -> int:
        """Most bytes that the envelope takes, tags and lengths included."""
        return len(self.resource) + len(self.scope) + len(self.schema) + 2 * _WIDEST

    def around(self, spans: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return a `resource_spans` field that holds encoded spans, in pieces.

        The caller joins all pieces once: joining at each level of nested messages would
        copy the spans each time.
        """
        inside = len(self.scope) + sum(map(len, spans)) + len(self.schema)
        scope = wire.tag(_SCOPE_SPANS, wire.LENGTH) + wire.varint(inside) + self.scope
        size = len(self.resource) + len(scope) - len(self.scope) + inside
        start = wire.tag(_RESOURCE_SPANS, wire.LENGTH) + wire.varint(size)
        return (start, self.resource, scope, *spans, self.schema)


def chunks(picture: Picture, most_bytes: int = MOST_BYTES) -> Iterator[Chunk]:
    """Yield the spans of a picture in requests, each span once.

    Args:
        picture: The picture; a slice and a chunk of it are held in memory at a time.
        most_bytes: Most bytes of a body. A larger span has a chunk of its own.
    """
    envelopes = tuple(_envelope(service) for service in picture.services)
    groups: dict[_Envelope, list[bytes]] = {}
    size = 0
    for service, span in _spans(picture):
        around = envelopes[service]
        more = len(span) + (0 if around in groups else around.most_bytes)
        if groups and size + more > most_bytes:
            yield _chunk(groups)
            groups, size, more = {}, 0, len(span) + around.most_bytes
        groups.setdefault(around, []).append(span)
        size += more
    if groups:
        yield _chunk(groups)


def _spans(picture: Picture) -> Iterator[tuple[int, bytes]]:
    """Yield each span's service (index of `Picture.services`) and the encoded span."""
    for part in picture.slices(_ROWS):
        for piece in _pieces(part):
            encoded = encode_spans(piece, picture.trace_id, picture.trace_state)
            fields = (wire.field(_SPANS, span) for span in encoded)
            yield from zip(piece.spans["service"].to_list(), fields, strict=True)


def _pieces(part: Slice) -> Iterator[Slice]:
    """Yield a slice in parts of at most 8 MiB of text, which bounds the memory for encoding."""
    height = part.spans.height
    if height == 0:
        return
    if height == 1 or _text_bytes(part.spans) <= _MOST_TEXT_BYTES:
        yield part
        return
    half = height // 2
    yield from _pieces(_cut(part, 0, half))
    yield from _pieces(_cut(part, half, height))


def _text_bytes(spans: pl.DataFrame) -> int:
    return sum(int(texts.str.len_bytes().sum()) for texts in spans.select(pl.col(pl.String)))


def _cut(part: Slice, first: int, end: int) -> Slice:
    own = pl.col("row").is_between(first, end, closed="left")
    events, links = (
        rows.filter(own).with_columns(pl.col("row") - first) for rows in (part.events, part.links)
    )
    return replace(part, spans=part.spans[first:end], events=events, links=links)


def _envelope(service: Service) -> _Envelope:
    resource = (attribute(1, key, value) for key, value in service.attributes.items())
    scope = wire.text(1, "xsp") + wire.text(2, __version__)
    return _Envelope(
        wire.field(1, b"".join(resource)), wire.field(1, scope), wire.text(3, SCHEMA_URL)
    )


def _chunk(groups: Mapping[_Envelope, Sequence[bytes]]) -> Chunk:
    body = b"".join(chain.from_iterable(around.around(spans) for around, spans in groups.items()))
    return Chunk(body, sum(map(len, groups.values())))


def encode_spans(part: Slice, trace_id: bytes, trace_state: str = "") -> list[bytes]:
    """Return each span of a slice as an encoded Span message.

    Args:
        part: At least one span.
        trace_id: 16 bytes.
        trace_state: W3C tracestate of the trace, empty where there is none.
    """
    spans = part.spans
    columns = [
        _identities(spans, trace_id, trace_state),
        _text_fields(5, spans["name"]),
        _times(spans),
    ]
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
    """Encode trace_id 1, span_id 2, trace_state 3 and, of all but the root, parent_span_id 4."""
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
    columns += [_text_fields(2, events["name"]), *_attributes(3, {"message": events["message"]})]
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
    # Attributes of kinds of span that the slice lacks are null in every row.
    return [
        column(number, key, values)
        for key, values in columns.items()
        if values.null_count() < len(values)
    ]


def _text_fields(number: int, values: pl.Series) -> list[bytes]:
    encode = functools.cache(functools.partial(wire.text, number))
    return list(map(encode, values.fill_null("").to_list()))


def _statuses(errors: pl.Series) -> list[bytes]:
    """Encode status 15 (message 2, code 3); spans without an error have no status."""

    @functools.cache
    def encode(error: str | None) -> bytes:
        return b"" if error is None else wire.field(15, wire.text(2, error) + _ERROR)

    return list(map(encode, errors.to_list()))


def _by_row(number: int, rows: pl.Series, encoded: list[bytes], *, height: int) -> list[bytes]:
    """Return the encoded messages of each span as fields `number`; `rows` is sorted."""
    column = [b""] * height
    pairs = zip(rows.to_list(), encoded, strict=True)
    for row, group in groupby(pairs, key=itemgetter(0)):
        column[row] = b"".join(wire.field(number, message) for _, message in group)
    return column


def any_value(value: Value) -> bytes:
    """Return an AnyValue message."""
    if isinstance(value, str):
        return wire.field(_TEXT, wire.utf8(value))
    if isinstance(value, bool):
        return _BOOLEAN + wire.varint(value)
    if isinstance(value, int):
        return _INTEGER + wire.varint(value % 2**64)
    if isinstance(value, float):
        return _DOUBLE + struct.pack("<d", value)
    return wire.field(_ARRAY, b"".join(wire.field(_ITEM, any_value(item)) for item in value))


def attribute(number: int, key: str, value: Value) -> bytes:
    """Return one attribute as field `number` of the message that has it."""
    return _attribute(number, _key(key), value)


def column(number: int, key: str, values: pl.Series) -> list[bytes]:
    """Return one attribute for each row, empty where the value is null.

    Args:
        number: Field number of `attributes` in the message that has the attribute.
        key: Name of the attribute.
        values: Of a type that `label.plain` returns.
    """
    if values.null_count() == 0:
        return _encoder(values.dtype)(number, _key(key), values)
    present = _encoder(values.dtype)(number, _key(key), values.drop_nulls())
    encoded = [b""] * len(values)
    for row, one in zip(values.is_not_null().arg_true().to_list(), present, strict=True):
        encoded[row] = one
    return encoded


def _encoder(dtype: pl.DataType) -> Callable[[int, bytes, pl.Series], list[bytes]]:
    if dtype == pl.Int64:
        return _integers
    if dtype == pl.Float64:
        return _doubles
    if dtype == pl.Boolean:
        return _scalars
    if dtype == pl.List(pl.String):
        return _lists
    return _texts


def _integers(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    """Encode integers, all of one varint size together: the bytes before these are the same."""
    numbers = values.to_numpy().view(np.uint64)
    sizes = wire.varint_sizes(numbers)
    encoded = [b""] * len(numbers)
    for size in np.unique(sizes).tolist():
        places = np.flatnonzero(sizes == size)
        before = _before(number, key, size + len(_INTEGER)) + _INTEGER
        same = wire.rows(len(places), before, wire.varints(numbers[places], size))
        for place, one in zip(places.tolist(), same, strict=True):
            encoded[place] = one
    return encoded


def _doubles(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    before = _before(number, key, 8 + len(_DOUBLE)) + _DOUBLE
    return wire.rows(len(values), before, wire.fixed(values.to_numpy(), "<f8"))


def _scalars(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    encode = functools.cache(functools.partial(_attribute, number, key))
    return list(map(encode, values.to_list()))


def _lists(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    """Encode each distinct list once: polars is slow at making Python's lists."""
    same = pl.DataFrame({"values": values}).with_row_index("row").group_by("values").agg("row")
    encoded = [b""] * len(values)
    for items, rows in same.rows():
        one = _attribute(number, key, items)
        for row in rows:
            encoded[row] = one
    return encoded


def _texts(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    """Encode each distinct text once, and the bytes before texts once for each length."""

    @functools.cache
    def before(size: int) -> bytes:
        start = wire.tag(_TEXT, wire.LENGTH) + wire.varint(size)
        return _before(number, key, len(start) + size) + start

    @functools.cache
    def encode(text: str) -> bytes:
        encoded = wire.utf8(text)
        return before(len(encoded)) + encoded

    return list(map(encode, values.to_list()))


def _attribute(number: int, key: bytes, value: Value) -> bytes:
    return wire.field(number, key + wire.field(_VALUE, any_value(value)))


def _before(number: int, key: bytes, size: int) -> bytes:
    """Return the bytes of an attribute before its AnyValue, which has `size` bytes."""
    start = key + wire.tag(_VALUE, wire.LENGTH) + wire.varint(size)
    return wire.tag(number, wire.LENGTH) + wire.varint(len(start) + size) + start


def _key(key: str) -> bytes:
    return wire.field(_KEY, wire.utf8(key))
