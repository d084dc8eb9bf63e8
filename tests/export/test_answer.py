from __future__ import annotations

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from xsp.export.answer import Answer, Verdict, acceptance


def as_it_is(text: str) -> str:
    return text


@given(st.integers(-(2**63), 2**63 - 1), st.text("ab é", max_size=20).map(str.strip))
@example(-1, "")
def test_rejected_spans_and_words_are_read(rejected: int, words: str) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=words)
    encoded = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    found = acceptance(encoded, as_it_is)
    assert (found.verdict, found.rejected) == (Verdict.ACCEPTED, max(0, rejected))
    assert found.message == " ".join(words.split())


def test_no_classes_of_protobuf_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1", None)
    assert acceptance(b"", as_it_is) == Answer(Verdict.ACCEPTED)


@given(st.binary())
@example(b"\x08\x01")
@example(b"\x0a\x02\x0d\x01")
def test_whatever_a_server_answers_is_no_exception(response: bytes) -> None:
    assert acceptance(response, as_it_is).verdict in (Verdict.ACCEPTED, Verdict.CLOSED)
