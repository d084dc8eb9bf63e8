"""OTLP protobuf: a picture as export requests of bounded size.

The messages are ExportTraceServiceRequest of
opentelemetry/proto/collector/trace/v1/trace_service.proto, with ResourceSpans and
ScopeSpans of opentelemetry/proto/trace/v1/trace.proto in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import polars as pl

from xsp import __version__
from xsp.export import keyvalue, message, wire
from xsp.trace import SCHEMA_URL

if TYPE_CHECKING:
    from xsp.export.picture import Picture, Service, Slice

# Servers take 4 MiB by default. A quarter of it costs nothing here, and a store that is
# slow to write answers well within the timeout.
MOST_BYTES = 1024 * 1024

# The repeated field of ExportTraceServiceRequest, ResourceSpans and ScopeSpans.
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
# Protobuf messages are below 2^31 bytes, so this holds a tag and a length.
_WIDEST = 6
# Spans that are encoded at one go: about as many as a chunk holds, and fewer where their
# texts are larger than this.
_ROWS = 2048
_MOST_TEXT_BYTES = 8 * MOST_BYTES


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some spans, ready to be sent.

    Attributes:
        body: An encoded ExportTraceServiceRequest.
        spans: How many spans are in it.
    """

    body: bytes
    spans: int


@dataclass(frozen=True, slots=True, eq=False)
class _Envelope:
    """What stands around the spans of one service, encoded; each is equal to itself only.

    Attributes:
        resource: Fields of ResourceSpans before its ScopeSpans.
        scope: Fields of ScopeSpans before its spans.
        schema: Fields of ScopeSpans after them.
    """

    resource: bytes
    scope: bytes
    schema: bytes

    @property
    def most_bytes(self) -> int:
        """How many bytes it takes with the tags and lengths of any content."""
        return len(self.resource) + len(self.scope) + len(self.schema) + 2 * _WIDEST

    def around(self, spans: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the pieces of a field of the request that holds encoded spans.

        They are joined once, with all others: a message is inside of another inside of
        another here, and each could be a copy of the spans.
        """
        inside = len(self.scope) + sum(map(len, spans)) + len(self.schema)
        scope = wire.tag(_SCOPE_SPANS, wire.LENGTH) + wire.varint(inside) + self.scope
        size = len(self.resource) + len(scope) - len(self.scope) + inside
        start = wire.tag(_RESOURCE_SPANS, wire.LENGTH) + wire.varint(size)
        return (start, self.resource, scope, *spans, self.schema)


def chunks(picture: Picture, most_bytes: int = MOST_BYTES) -> Iterator[Chunk]:
    """Yield the spans of a picture in requests, each span in one of them.

    Args:
        picture: What is encoded; at no time more of it than a slice and a chunk.
        most_bytes: Most bytes of a body. A span that alone takes more has a chunk of
            its own.
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


def split(chunk: Chunk) -> tuple[Chunk, ...]:
    """Return two chunks with half of the spans each; a single span cannot be split.

    Raises:
        ValueError: The body is not one that `chunks` made.
    """
    if chunk.spans < 2:
        return (chunk,)
    spans = list(_walk(chunk.body))
    half = (len(spans) + 1) // 2
    return tuple(_chunk(_grouped(part)) for part in (spans[:half], spans[half:]))


def _spans(picture: Picture) -> Iterator[tuple[int, bytes]]:
    """Yield service and encoded span, in order."""
    for part in picture.slices(_ROWS):
        for piece in _pieces(part):
            encoded = message.encode(piece, picture.trace_id, picture.trace_state)
            fields = (wire.field(_SPANS, span) for span in encoded)
            yield from zip(piece.spans["service"].to_list(), fields, strict=True)


def _pieces(part: Slice) -> Iterator[Slice]:
    """Yield a slice, or parts of it: the bytes of a million long texts are not made at once."""
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
    resource = (keyvalue.attribute(1, key, value) for key, value in service.attributes.items())
    scope = wire.text(1, "xsp") + wire.text(2, __version__)
    return _Envelope(
        wire.field(1, b"".join(resource)), wire.field(1, scope), wire.text(3, SCHEMA_URL)
    )


def _chunk(groups: Mapping[_Envelope, Sequence[bytes]]) -> Chunk:
    body = b"".join(chain.from_iterable(around.around(spans) for around, spans in groups.items()))
    return Chunk(body, sum(map(len, groups.values())))


def _walk(body: bytes) -> Iterator[tuple[_Envelope, bytes]]:
    """Yield what stands around each span of a request, and the span."""
    for _, resource_spans in wire.contents(body):
        outer = list(wire.contents(resource_spans))
        resource = b"".join(wire.field(n, content) for n, content in outer if n != _SCOPE_SPANS)
        for scope_spans in (content for n, content in outer if n == _SCOPE_SPANS):
            inner = list(wire.contents(scope_spans))
            scope, schema = (
                b"".join(wire.field(n, content) for n, content in inner if n in numbers)
                for numbers in ((1,), (3,))
            )
            around = _Envelope(resource, scope, schema)
            yield from ((around, wire.field(n, span)) for n, span in inner if n == _SPANS)


def _grouped(spans: Iterable[tuple[_Envelope, bytes]]) -> dict[_Envelope, list[bytes]]:
    groups: dict[_Envelope, list[bytes]] = {}
    for around, span in spans:
        groups.setdefault(around, []).append(span)
    return groups
