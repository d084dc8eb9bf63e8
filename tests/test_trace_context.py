from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import xsp
from xsp.testing import FakeClock, FakeProvider, only_providers
from xsp.trace_context import Origin, _inherited, origin

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"
HEX = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACEPARENT", "TRACESTATE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tracer() -> Iterator[Any]:
    """A tracer of the real SDK, which exports nothing."""
    sdk = pytest.importorskip(
        "opentelemetry.sdk.trace", reason="needs the SDK: pip install opentelemetry-sdk"
    )
    resources = pytest.importorskip(
        "opentelemetry.sdk.resources", reason="needs the SDK: pip install opentelemetry-sdk"
    )
    provider = sdk.TracerProvider(resource=resources.Resource.get_empty(), shutdown_on_exit=False)
    yield provider.get_tracer("test")
    provider.shutdown()


def here() -> str | None:
    return origin(FakeClock()).traceparent


def named(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


# The environment


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (CALLER, CALLER),
        (f" {CALLER}\t", CALLER),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),  # flags that nobody knows are 0
        (f"cc-{TRACE}-{SPAN}-01", CALLER),  # a later version, understood as far as it goes
        (f"cc-{TRACE}-{SPAN}-01-more", CALLER),
        (f"cc-{TRACE}-{SPAN}-01more", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN.upper()}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE[1:]}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}0-01", None),
        (f"0-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00_{TRACE}_{SPAN}_01", None),
        (f"{CALLER}\nx", None),
        ("", None),
        ("\u0660\u0660-" + CALLER[3:], None),  # digits, but not ASCII ones
    ],
)
def test_traceparent_is_kept_where_it_is_valid(
    monkeypatch: pytest.MonkeyPatch, text: str, kept: str | None
) -> None:
    monkeypatch.setenv("TRACEPARENT", text)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    found = origin(FakeClock())
    assert (found.traceparent, found.tracestate) == (kept, "vendor=1" if kept else "")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("vendor=1", "vendor=1"),
        ("a=1 , b=2", "a=1,b=2"),
        (",a=1,,", "a=1"),
        ("tenant@system=x y!", "tenant@system=x y!"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a=", ""),
        ("a", ""),
        ("a=b=c", ""),
        ("a=é", ""),
        (f"{'k' * 257}=1", ""),
        (f"a={'v' * 257}", ""),
        (",".join(f"k{i}=1" for i in range(32)), ",".join(f"k{i}=1" for i in range(32))),
        (",".join(f"k{i}=1" for i in range(33)), ""),
    ],
)
def test_tracestate_is_kept_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, text: str, kept: str
) -> None:
    monkeypatch.setenv("TRACEPARENT", CALLER)
    monkeypatch.setenv("TRACESTATE", text)
    assert origin(FakeClock()) == Origin(0, CALLER, kept)


@given(
    trace_id=st.integers(1, 2**128 - 1), span_id=st.integers(1, 2**64 - 1), flags=st.integers(0, 3)
)
def test_every_valid_caller_is_found(trace_id: int, span_id: int, flags: int) -> None:
    text = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    assert _inherited({"TRACEPARENT": text}) == (text, "")


@given(
    st.text() | st.text(HEX + "-", min_size=50, max_size=60),
    st.text() | st.from_regex(r"([a-z@]{0,3}=?[ -~]{0,3},){0,4}"),
)
def test_whatever_the_variables_hold_what_is_kept_is_valid(parent: str, state: str) -> None:
    found = _inherited({"TRACEPARENT": parent, "TRACESTATE": state})
    if found is not None:
        assert _inherited(dict(zip(("TRACEPARENT", "TRACESTATE"), found, strict=True))) == found


# The active span


def test_the_active_span_is_the_caller_and_comes_before_the_variables(
    tracer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", CALLER)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    with tracer.start_as_current_span("request") as span:
        assert origin(FakeClock()) == Origin(0, named(span), "")
    assert origin(FakeClock()) == Origin(0, CALLER, "vendor=1")


def test_a_span_that_is_none_leaves_the_variables(
    tracer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace  # noqa: PLC0415

    monkeypatch.setenv("TRACEPARENT", CALLER)
    with trace.use_span(trace.INVALID_SPAN):
        assert here() == CALLER


def test_each_task_has_its_own_caller(tracer: Any) -> None:
    async def request(name: str) -> tuple[str, str | None]:
        with tracer.start_as_current_span(name) as span:
            await asyncio.sleep(0)  # the other one is active now, but not here
            return named(span), here()

    async def both() -> list[tuple[str, str | None]]:
        return list(await asyncio.gather(request("one"), request("other")))

    found = asyncio.run(both())
    assert len(set(found)) == 2
    assert all(span == seen for span, seen in found)


def test_a_thread_has_a_caller_only_if_it_was_given_one(tracer: Any) -> None:
    found: list[str | None] = []

    def work() -> None:
        found.append(here())

    with tracer.start_as_current_span("request") as span:
        given = contextvars.copy_context()
        for target in (work, lambda: given.run(work)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert found == [None, named(span)]


def test_opentelemetry_is_not_loaded_for_it() -> None:
    code = (
        "import sys; from xsp.clock import SystemClock; from xsp.trace_context import origin\n"
        "origin(SystemClock())\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The front door


@pytest.fixture
def fake() -> Iterator[None]:
    with only_providers(FakeProvider(FakeClock())):
        yield


@pytest.mark.usefixtures("fake")
def test_a_measurement_hangs_in_the_span_it_was_asked_for_in(tracer: Any) -> None:
    before = time.time_ns()
    with tracer.start_as_current_span("request") as span:
        trace = xsp.measure(lambda: None, levels=1, runs=2)
    assert trace.metadata["traceparent"] == named(span)
    assert trace.metadata["tracestate"] == ""
    assert before - 50_000_000 < trace.metadata["began_unix_ns"] < time.time_ns()


@pytest.mark.usefixtures("fake")
def test_a_block_hangs_in_the_span_it_was_entered_in(tracer: Any) -> None:
    with tracer.start_as_current_span("request") as span, xsp.profile(levels=1, runs=1) as prof:
        for _ in range(4):
            with tracer.start_as_current_span("inner"), prof.step():
                pass
    assert prof.trace.metadata["traceparent"] == named(span)
