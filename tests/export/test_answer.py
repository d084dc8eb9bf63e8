from __future__ import annotations

import sys
import time

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from otlp_server import Reply

from xsp.export.otlp.answer import Answer, Status, Verdict, acceptance, status


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


# Errors


@pytest.mark.parametrize("retry_s", [None, 0, 1.5, 3600])
@pytest.mark.parametrize("message", ["", "too busy", "zu beschäftigt"])
def test_message_and_delay_are_read(message: str, retry_s: float | None) -> None:
    assert status(Reply(message=message, retry_s=retry_s).status()) == Status(message, retry_s)


def test_other_details_and_fields_are_passed_over() -> None:
    other = AnyMessage(type_url="type.googleapis.com/google.rpc.Help", value=b"\x0a\x01a")
    encoded = other.SerializeToString()
    more = b"\x08\x0e" + b"\x1a" + bytes((len(encoded),)) + encoded + b"\x29" + bytes(8)
    assert status(more + Reply(message="no", retry_s=2).status()) == Status("no", 2)


def test_a_delay_below_zero_is_none() -> None:
    seconds = b"\xff" * 9 + b"\x01"  # -1
    info = b"\x0a\x0b\x08" + seconds
    detail = AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info)
    encoded = detail.SerializeToString()
    assert status(b"\x1a" + bytes((len(encoded),)) + encoded) == Status("", None)


def test_a_number_without_an_end_is_given_up_at_once() -> None:
    endless = b"\xff" * 2**20
    started = time.perf_counter()
    assert status(endless) == status(b"\x08" + endless) == Status()
    assert time.perf_counter() - started < 0.5


@given(st.binary())
@example(Reply(message="no", retry_s=2).status()[:-1])
@example(b"\x0a\x80")
def test_whatever_a_server_says_of_an_error_is_no_exception(data: bytes) -> None:
    assert isinstance(status(data), Status)
