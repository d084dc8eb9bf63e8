"""Gives spans to a `SpanExporter` of OpenTelemetry's SDK that the user brings.

So spans go over gRPC, too: by the `OTLPSpanExporter` of opentelemetry-exporter-otlp-proto-grpc.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from xsp import __version__
from xsp.delivery import Delivery
from xsp.show.export.delivery import failure
from xsp.show.export.picture import Picture, Row
from xsp.text import counted
from xsp.trace import SCHEMA_URL

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_CHUNK = 2_048


def hand_over(pictures: Sequence[Picture], exporter: Any) -> Delivery:
    """Give all spans to a `SpanExporter`, 2,048 at a time, and count those it accepts.

    Where the exporter refuses a chunk, its spans are counted and the next chunk is tried.
    The exporter is not shut down: it is the user's.

    Args:
        pictures: The picture of the trace itself first.
        exporter: Anything with the method `export` of OpenTelemetry's `SpanExporter`.

    Raises:
        ExportError: The exporter refused spans, or raised an exception, which is chained
            and after which no more spans are given; the error's `delivery` has the counts.
    """
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

    name, trace_id = type(exporter).__name__, pictures[0].trace_id.hex()
    done = Delivery(sum(p.height for p in pictures), 0, 0, name, trace_id)
    remedy = "The trace is whole. Correct the exporter and export again."
    for spans in chain.from_iterable(map(_chunks, pictures)):
        try:
            result = _exported(exporter, spans)
        except Exception as error:
            raise failure(
                done,
                f"{name} raised {type(error).__name__}: {error}; it had accepted "
                f"{done.accepted:,} of {counted(done.sent, 'span')}.",
                remedy,
            ) from error
        if result is SpanExportResult.SUCCESS:
            done = replace(done, accepted=done.accepted + len(spans))
        else:
            done = replace(done, rejected=done.rejected + len(spans))
    if done.rejected:
        took = f"{name} took {done.accepted:,} of {counted(done.sent, 'span')}"
        raise failure(done, f"{took} and refused the others.", remedy)
    return done


def _exported(exporter: Any, spans: list[ReadableSpan]) -> Any:
    """Return the exporter's result; its own network calls are not traced meanwhile."""
    from opentelemetry.context import (  # noqa: PLC0415
        _SUPPRESS_INSTRUMENTATION_KEY,
        attach,
        detach,
        set_value,
    )

    token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        return exporter.export(spans)
    finally:
        detach(token)


def _chunks(picture: Picture) -> Iterator[list[ReadableSpan]]:
    """Yield the spans of a picture as the SDK's, 2,048 at a time."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import (  # noqa: PLC0415
        Link,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        TraceState,
    )

    flags, state = TraceFlags(TraceFlags.SAMPLED), TraceState.from_header([picture.trace_state])

    def context(trace_id: bytes, span_id: int, *, remote: bool = False) -> SpanContext:
        own = state if trace_id == picture.trace_id else None
        return SpanContext(int.from_bytes(trace_id, "big"), span_id, remote, flags, own)

    def span(row: Row, *, remote: bool) -> ReadableSpan:
        parent, held = row.parent_span_id, row.attributes
        return ReadableSpan(
            name=row.name,
            context=context(picture.trace_id, row.span_id),
            parent=context(picture.trace_id, parent, remote=remote) if parent else None,
            resource=resources[row.service],
            attributes={k: tuple(v) if isinstance(v, list) else v for k, v in held.items()},
            events=[Event(name, {"message": text}, at) for at, name, text in row.events],
            links=[
                Link(context(trace_id, other), {"xsp.relation": relation})
                for trace_id, other, relation in row.links
            ],
            kind=SpanKind.INTERNAL,
            status=Status() if row.error is None else Status(StatusCode.ERROR, row.error),
            start_time=row.start_unix_ns,
            end_time=row.end_unix_ns,
            instrumentation_scope=scope,
        )

    resources = [Resource(dict(service.attributes)) for service in picture.services]
    scope = InstrumentationScope("xsp", __version__, SCHEMA_URL)
    remote = True  # the parent of the first span, the root, is the caller's if it has one
    for part in picture.slices(_CHUNK):
        spans = []
        for row in part.rows():
            spans.append(span(row, remote=remote))
            remote = False
        yield spans
