from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
from typing import Any

import psutil
import pytest
from jaeger_server import JaegerServer, attributes, tags, warnings

pytestmark = pytest.mark.slow

TRACE_ID = "0123456789abcdef0123456789abcdef"
START_NS = time.time_ns() // 1000 * 1000 + 789


def request(*spans: dict[str, Any], host: str = "one", trace_id: str = TRACE_ID) -> dict[str, Any]:
    resource = {
        "service.name": "by-hand",
        "host.id": host,
        "host.name": host,
        "ip": host,
    }
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_text(*item) for item in resource.items()]},
                "scopeSpans": [{"spans": [{"traceId": trace_id, **span} for span in spans]}],
            }
        ]
    }


def span(number: int, start_ns: int, duration_ns: int, **more: Any) -> dict[str, Any]:
    return {
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "kind": 1,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + duration_ns),
        **more,
    }


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def test_a_span_comes_back_with_its_nanoseconds_and_with_jaegers_microseconds(
    jaeger: JaegerServer,
) -> None:
    sent = span(1, START_NS, 2_999, attributes=[_text("color", "green")])
    assert jaeger.post(request(sent)) == {"partialSuccess": {}}
    (found,) = jaeger.otlp(TRACE_ID)
    assert found["startTimeUnixNano"] == sent["startTimeUnixNano"]
    assert found["endTimeUnixNano"] == sent["endTimeUnixNano"]
    assert attributes(found)["color"] == "green"
    (shown,) = jaeger.trace(TRACE_ID)["spans"]
    assert shown["startTime"] == START_NS // 1000
    assert shown["duration"] == 2
    assert tags(shown)["color"] == "green"
    assert TRACE_ID in jaeger.search("by-hand", color="green")
    assert TRACE_ID not in jaeger.search("by-hand", color="red")


def test_it_listens_on_loopback_alone_and_on_one_port_that_has_no_name(
    jaeger: JaegerServer,
) -> None:
    assert jaeger.process is not None
    open_ = psutil.Process(jaeger.process.pid).net_connections("tcp")
    heard = {one.laddr for one in open_ if one.status == psutil.CONN_LISTEN}
    assert {address.ip for address in heard} == {"127.0.0.1"}
    (queries,) = {address.port for address in heard} - set(jaeger.ports.values())
    assert queries > 1024  # any that was free
    assert len(heard) == len(jaeger.ports) + 1


def test_spans_survive_a_restart_and_a_kill(own_jaeger: JaegerServer) -> None:
    own_jaeger.post(request(span(1, START_NS, 5_000)))
    assert own_jaeger.stop() == 0
    own_jaeger.start()
    own_jaeger.post(request(span(2, START_NS, 5_000)))
    own_jaeger.kill()
    own_jaeger.start()
    assert {found["name"] for found in own_jaeger.otlp(TRACE_ID)} == {"span 1", "span 2"}
    assert own_jaeger.services() == ["by-hand"]


def test_what_cannot_be_stored_is_refused_instead_of_lost(jaeger: JaegerServer) -> None:
    # Badger makes a key of every attribute, and takes 65,000 bytes for one.
    sent = span(1, START_NS, 5_000, attributes=[_text("poem", "x" * 100_000)])
    with pytest.raises(urllib.error.HTTPError) as refusal:
        jaeger.post(request(sent, trace_id="f" * 32))
    refusal.value.close()
    assert refusal.value.code == 503


@pytest.mark.parametrize(
    ("clock_skew", "hosts", "said"),
    [
        ("0s", ("one", "one"), ""),
        ("1s", ("one", "one"), ""),
        ("0s", ("one", "other"), "clock skew adjustment disabled"),
        ("1s", ("one", "other"), "timestamps were adjusted"),
    ],
)
def test_clock_skew_is_seen_between_hosts_alone(
    own_jaeger: JaegerServer, clock_skew: str, hosts: tuple[str, str], said: str
) -> None:
    own_jaeger.restart(clock_skew)
    # A kernel that begins once the operator which launched it has ended.
    kernel = span(2, START_NS + 10_000, 1_000, parentSpanId=f"{1:016x}")
    for sent, host in zip((span(1, START_NS, 5_000), kernel), hosts, strict=True):
        own_jaeger.post(request(sent, host=host))
    assert said in " ".join(warnings(own_jaeger.trace(TRACE_ID)))
    assert bool(warnings(own_jaeger.trace(TRACE_ID))) == bool(said)


def test_it_runs_in_the_foreground_until_it_is_interrupted(own_jaeger: JaegerServer) -> None:
    own_jaeger.stop()
    code = "from xsp.show.cli import jaeger; jaeger.run(print)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=own_jaeger.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not own_jaeger.healthy() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    # Jaeger says that it is healthy a moment before it catches signals: then the signal ends it.
    assert process.returncode in (0, -signal.SIGINT), said
    assert own_jaeger.http in said
    assert str(own_jaeger.folder) in said
