"""The OpenTelemetry SDK: spans for an exporter that the user brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from xsp import __version__
from xsp.export.label import PREFIX
from xsp.export.otlp import Delivery, failure
from xsp.export.picture import SPAN_SCHEMA, Picture, Slice
from xsp.quantity import counted
from xsp.trace import SCHEMA_URL

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, TraceState

_CHUNK = 2_048


def hand_over(pictures: Sequence[Picture], exporter: Any) -> tuple[int, int]:
    """Give all spans to a `SpanExporter`, 2,048 at a time, and count what it takes.

    A chunk that it refuses is counted and the next one tried. The exporter is not
    shut down: it is the user's.

    Args:
        pictures: What to hand over, the trace itself first.
        exporter: Anything with the method `export` of OpenTelemetry's `SpanExporter`.

    Returns:
        Numbers of spans accepted and not accepted; together all.

    Raises:
        ExportError: The exporter raised an exception, which is chained; the error's
            `delivery` counts what it had accepted. Nothing is handed over after that.
    """
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

    accepted = rejected = 0
    for spans in chain.from_iterable(map(chunks, pictures)):
        try:
            result = _exported(exporter, spans)
        except Exception as error:
            name, trace_id = type(exporter).__name__, pictures[0].trace_id.hex()
            total = sum(picture.height for picture in pictures)
            raise failure(
                Delivery(total, accepted, rejected, name, trace_id),
                f"{name} raised {type(error).__name__}: {error}; it had accepted {accepted:,} of "
                f"{counted(total, 'span')}. The trace is whole: mend the exporter and "
                "hand it over again.",
            ) from error
        if result is SpanExportResult.SUCCESS:
            accepted += len(spans)
        else:
            rejected += len(spans)
    return accepted, rejected


def chunks(picture: Picture) -> Iterator[list[ReadableSpan]]:
    """Yield the spans of a picture as the SDK's, 2,048 at a time."""
    builder = _Builder.of(picture)
    remote_parent = True
    for part in picture.slices(_CHUNK):
        yield list(builder.spans(part, remote_parent=remote_parent))
        remote_parent = False


def _exported(exporter: Any, spans: list[ReadableSpan]) -> Any:
    """Return what the exporter says, its own network calls not being traced meanwhile."""
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


@dataclass(frozen=True, slots=True)
class _Builder:
    """What all spans of a picture share."""

    trace_id: int
    state: TraceState
    resources: tuple[Resource, ...]
    scope: InstrumentationScope

    @classmethod
    def of(cls, picture: Picture) -> _Builder:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        from opentelemetry.trace import TraceState  # noqa: PLC0415

        resources = tuple(Resource(dict(service.attributes)) for service in picture.services)
        state = TraceState.from_header([picture.trace_state])
        scope = InstrumentationScope("xsp", __version__, SCHEMA_URL)
        return cls(int.from_bytes(picture.trace_id, "big"), state, resources, scope)

    def spans(self, part: Slice, *, remote_parent: bool) -> Iterator[ReadableSpan]:
        """Yield the spans of a slice; `remote_parent` is whether its first one is the root."""
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415

        events, links = _events(part), self._links(part)
        names = [name for name in part.spans.columns if name.startswith(PREFIX)]
        keys = [name.removeprefix(PREFIX) for name in names]
        values = part.spans.select(names).iter_rows() if names else iter([()] * part.spans.height)
        for row, fields in enumerate(part.spans.select(*SPAN_SCHEMA).iter_rows()):
            span_id, parent, service, name, start, end, error = fields
            remote = remote_parent and row == 0
            yield ReadableSpan(
                name=name,
                context=self._context(span_id),
                parent=self._context(parent, remote=remote) if parent else None,
                resource=self.resources[service],
                attributes=_known(keys, next(values)),
                events=events.get(row, ()),
                links=links.get(row, ()),
                kind=SpanKind.INTERNAL,
                status=Status() if error is None else Status(StatusCode.ERROR, error),
                start_time=start,
                end_time=end,
                instrumentation_scope=self.scope,
            )

    def _context(self, span_id: int, *, remote: bool = False) -> SpanContext:
        return _context(self.trace_id, span_id, remote=remote, state=self.state)

    def _links(self, part: Slice) -> dict[int, list[Link]]:
        from opentelemetry.trace import Link  # noqa: PLC0415

        links: dict[int, list[Link]] = {}
        for row, trace_id, span_id, relation in part.links.iter_rows():
            context = _context(int.from_bytes(trace_id, "big"), span_id)
            links.setdefault(row, []).append(Link(context, {"xsp.relation": relation}))
        return links


def _context(
    trace_id: int, span_id: int, *, remote: bool = False, state: TraceState | None = None
) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED), state)


def _events(part: Slice) -> dict[int, list[Event]]:
    from opentelemetry.sdk.trace import Event  # noqa: PLC0415

    events: dict[int, list[Event]] = {}
    for row, at, name, message in part.events.iter_rows():
        events.setdefault(row, []).append(Event(name, {"message": message}, at))
    return events


def _known(keys: list[str], values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the attributes that a span has; lists as the tuples that the SDK keeps."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in zip(keys, values, strict=True)
        if value is not None
    }
