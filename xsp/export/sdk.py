"""The OpenTelemetry SDK: pictures in, spans in a `SpanExporter` that the user brings out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from xsp import __version__
from xsp.export.otlp import Delivery, failure
from xsp.export.picture import Picture, Slice
from xsp.text import counted
from xsp.trace import SCHEMA_URL

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import Link, SpanContext, TraceState

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
    remedy = "The trace is whole: mend the exporter and hand it over again."
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
    from opentelemetry.trace import TraceState  # noqa: PLC0415

    resources = [Resource(dict(service.attributes)) for service in picture.services]
    trace_id = int.from_bytes(picture.trace_id, "big")
    context = partial(_context, trace_id, state=TraceState.from_header([picture.trace_state]))
    remote = True  # the parent of the first span, the root, if the root has a parent
    for part in picture.slices(_CHUNK):
        yield list(_spans(part, resources, context, remote=remote))
        remote = False


def _spans(
    part: Slice,
    resources: Sequence[Resource],
    context: Callable[..., SpanContext],
    *,
    remote: bool,
) -> Iterator[ReadableSpan]:
    """Yield the spans of a slice; `remote` is whether the first one's parent is the caller's."""
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415

    scope = InstrumentationScope("xsp", __version__, SCHEMA_URL)
    events, links = _events(part), _links(part)
    for row, (fields, attributes) in enumerate(part.rows()):
        span_id, parent, service, name, start, end, error = fields
        yield ReadableSpan(
            name=name,
            context=context(span_id),
            parent=context(parent, remote=remote and row == 0) if parent else None,
            resource=resources[service],
            attributes={k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()},
            events=events.get(row, ()),
            links=links.get(row, ()),
            kind=SpanKind.INTERNAL,
            status=Status() if error is None else Status(StatusCode.ERROR, error),
            start_time=start,
            end_time=end,
            instrumentation_scope=scope,
        )


def _context(
    trace_id: int, span_id: int, *, remote: bool = False, state: TraceState | None = None
) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED), state)


def _events(part: Slice) -> Mapping[int, list[Event]]:
    """Return the events of each span, by row."""
    from opentelemetry.sdk.trace import Event  # noqa: PLC0415

    events = defaultdict(list)
    for row, at, name, message in part.events.iter_rows():
        events[row].append(Event(name, {"message": message}, at))
    return events


def _links(part: Slice) -> Mapping[int, list[Link]]:
    """Return the links of each span, by row."""
    from opentelemetry.trace import Link  # noqa: PLC0415

    links = defaultdict(list)
    for row, trace_id, span_id, relation in part.links.iter_rows():
        context = _context(int.from_bytes(trace_id, "big"), span_id)
        links[row].append(Link(context, {"xsp.relation": relation}))
    return links
