from __future__ import annotations

import time

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from hypothesis import example, given
from hypothesis import strategies as st
from otlp_server import Reply

from xsp.export.status import Status, parse


@pytest.mark.parametrize("retry_s", [None, 0, 1.5, 3600])
@pytest.mark.parametrize("message", ["", "too busy", "zu beschäftigt"])
def test_message_and_delay_are_read(message: str, retry_s: float | None) -> None:
    assert parse(Reply(message=message, retry_s=retry_s).status()) == Status(message, retry_s)


def test_other_details_and_fields_are_passed_over() -> None:
    other = AnyMessage(type_url="type.googleapis.com/google.rpc.Help", value=b"\x0a\x01a")
    encoded = other.SerializeToString()
    more = b"\x08\x0e" + b"\x1a" + bytes((len(encoded),)) + encoded + b"\x29" + bytes(8)
    assert parse(more + Reply(message="no", retry_s=2).status()) == Status("no", 2)


def test_a_delay_below_zero_is_none() -> None:
    seconds = b"\xff" * 9 + b"\x01"  # -1
    info = b"\x0a\x0b\x08" + seconds
    detail = AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info)
    encoded = detail.SerializeToString()
    assert parse(b"\x1a" + bytes((len(encoded),)) + encoded) == Status("", None)


def test_a_number_without_an_end_is_given_up_at_once() -> None:
    endless = b"\xff" * 2**20
    started = time.perf_counter()
    assert parse(endless) == parse(b"\x08" + endless) == Status()
    assert time.perf_counter() - started < 0.5


@given(st.binary())
@example(Reply(message="no", retry_s=2).status()[:-1])
@example(b"\x0a\x80")
def test_whatever_a_server_sends_is_no_exception(data: bytes) -> None:
    assert isinstance(parse(data), Status)
