from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from opentelemetry import context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from sketch import (
    Told,
    comparable,
    picture,
    pictures,
    some,
    spans_of,
    told,
    told_attributes,
)

from xsp import ExportError
from xsp.export import Delivery
from xsp.show.export.picture import Picture
from xsp.show.export.sdk import hand_over


class Moody:
    """Answers as told, and remembers how many spans it was given each time."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.given: list[int] = []
        self.shut_down = False
        self.suppressed: list[object] = []

    def export(self, spans: Sequence[ReadableSpan]) -> Any:
        self.given.append(len(spans))
        self.suppressed.append(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY))
        answer = self.answers.pop(0) if self.answers else SpanExportResult.SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        self.shut_down = True


def many(number: int) -> Picture:
    return picture(*(told(span_id) for span_id in range(1, number + 1)))


def counts(done: object) -> tuple[int, int]:
    """Return accepted and rejected spans."""
    assert isinstance(done, Delivery)
    return done.accepted, done.rejected


def read(span: ReadableSpan) -> Told:
    known = span.get_span_context()
    assert known is not None
    failed = span.status.status_code is StatusCode.ERROR
    attributes = {
        key: comparable(list(value) if isinstance(value, tuple) else value)
        for key, value in (span.attributes or {}).items()
    }
    return Told(
        known.span_id,
        span.parent.span_id if span.parent else 0,
        str(span.resource.attributes["service.name"]),
        span.name,
        span.start_time or 0,
        span.end_time or 0,
        span.status.description or "" if failed else None,
        attributes,
        tuple((e.timestamp, e.name, str((e.attributes or {})["message"])) for e in span.events),
        tuple(
            (
                link.context.trace_id.to_bytes(16, "big"),
                link.context.span_id,
                str((link.attributes or {})["xsp.relation"]),
            )
            for link in span.links
        ),
    )


@some
@given(pictures())
def test_an_exporter_gets_every_span_as_it_was(drawn: Picture) -> None:
    exporter = InMemorySpanExporter()
    assert counts(hand_over([drawn], exporter)) == (drawn.height, 0)
    expected = [
        Told(**{**vars(span), "attributes": told_attributes(span)}) for span in spans_of(drawn)
    ]
    assert [read(span) for span in exporter.get_finished_spans()] == expected


def test_a_refused_chunk_is_counted_and_the_next_one_tried() -> None:
    exporter = Moody(SpanExportResult.SUCCESS, SpanExportResult.FAILURE)
    with pytest.raises(ExportError, match="took 2,952 of 5,000 spans and refused") as told_it:
        hand_over([many(5_000)], exporter)
    assert counts(told_it.value.delivery) == (2_952, 2_048)


def test_an_exporter_that_raises_is_told_with_what_it_had_accepted() -> None:
    cause = RuntimeError("no such host")
    exporter = Moody(SpanExportResult.SUCCESS, cause)
    with pytest.raises(
        ExportError, match=r"Moody raised RuntimeError: no such.*2,048 of"
    ) as told_it:
        hand_over([many(5_000)], exporter)
    assert told_it.value.__cause__ is cause
    done = cast(Delivery, told_it.value.delivery)
    assert (done.sent, done.accepted, done.rejected) == (5_000, 2_048, 0)
    assert len(exporter.given) == 2


def test_what_the_exporter_sends_is_not_traced_itself() -> None:
    before = context.get_current()
    exporter = Moody(RuntimeError())
    with pytest.raises(ExportError):
        hand_over([many(1)], exporter)
    assert exporter.suppressed == [True]
    assert context.get_current() == before
