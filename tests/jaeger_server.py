"""A real Jaeger for tests: started on free loopback ports with the shipped configuration."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xsp.show.cli import jaeger

MISSING = "needs a Jaeger: `scripts/build-jaeger` makes one where Go is installed"

_START_S = 60.0
_STOP_S = 30.0
_ANSWER_S = 240.0  # 100,000 spans as JSON take their time


class JaegerServer:
    """One Jaeger, its traces in a folder; started again it has the same ports and traces.

    Args:
        folder: For the traces and what it prints.
        clock_skew: By how much Jaeger may move spans, as Go writes durations.
    """

    def __init__(self, folder: Path, clock_skew: str = "0s") -> None:
        self.folder = folder
        self.clock_skew = clock_skew
        self.process: subprocess.Popen[bytes] | None = None
        self.ports = dict(zip(jaeger.PORTS, _free_ports(len(jaeger.PORTS)), strict=True))

    def __enter__(self) -> JaegerServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def http(self) -> str:
        """URL for spans over HTTP, for `trace.export`."""
        return f"http://127.0.0.1:{self.ports[jaeger.OTLP_HTTP]}"

    @property
    def printed(self) -> str:
        """Output of the server so far."""
        return (self.folder / "jaeger.log").read_text(errors="replace")

    def environment(self) -> dict[str, str]:
        """Return the variables that it is started with."""
        given = {port.variable: str(number) for port, number in self.ports.items()}
        return jaeger.environment(self.folder / "data", {**_plain_environment(), **given})

    def start(self) -> None:
        """Start it and wait until it says that it is well."""
        program = jaeger.find()
        assert program is not None, MISSING
        configuration = self.folder / "jaeger.yaml"
        ours = jaeger.CONFIGURATION.read_text()
        configuration.write_text(
            ours.replace("max_clock_skew_adjust: 0s", f"max_clock_skew_adjust: {self.clock_skew}")
        )
        with (self.folder / "jaeger.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(program), "--config", str(configuration)],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not self.healthy():
            assert self.process.poll() is None, f"Jaeger ended:\n{self.printed}"
            assert time.monotonic() < deadline, f"Jaeger does not come up:\n{self.printed}"
            time.sleep(0.05)

    def stop(self) -> int:
        """Stop it as Ctrl-C does, and return its exit code."""
        return self._end(signal.SIGINT)

    def kill(self) -> int:
        """End it on the spot."""
        return self._end(signal.SIGKILL)

    def restart(self, clock_skew: str) -> None:
        """Stop it and start it with another clock-skew setting."""
        self.stop()
        self.clock_skew = clock_skew
        self.start()

    def healthy(self) -> bool:
        """Return whether all of its parts say that they are well."""
        try:
            return str(self._get(jaeger.HEALTH, "/status")["status"]) == "StatusOK"
        except OSError:
            return False

    def trace(self, trace_id: str) -> dict[str, Any]:
        """Return a trace in Jaeger's own JSON, as its pages get it."""
        (found,) = self._get(jaeger.UI, f"/api/traces/{trace_id}")["data"]
        return dict(found)

    def otlp(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans of a trace in OTLP JSON, each with its `resource`."""
        answer = self._get(jaeger.UI, f"/api/v3/traces/{trace_id}")["result"]
        return [
            {**span, "resource": resource["resource"]}
            for resource in answer["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def services(self) -> list[str]:
        """Return the names of the services that it knows."""
        return list(self._get(jaeger.UI, "/api/services")["data"] or ())

    def search(self, service: str, **tags: str) -> set[str]:
        """Return the ids of the traces in which spans of a service have these tags."""
        query = {"service": service, "tags": json.dumps(tags), "start": "0", "limit": "1000"}
        found = self._get(jaeger.UI, f"/api/traces?{urllib.parse.urlencode(query)}")["data"]
        return {trace["traceID"] for trace in found}

    def post(self, spans: Mapping[str, Any]) -> dict[str, Any]:
        """Send an OTLP request as JSON, without any of xsp."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[jaeger.OTLP_HTTP]}/v1/traces",
            data=json.dumps(spans).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return dict(json.load(answer))

    def _get(self, port: jaeger.Port, path: str) -> Any:
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
            return json.load(answer)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None, "it was never started"
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def tags(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags of a span in Jaeger's own JSON."""
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span in OTLP JSON; integers there are text, as OTLP has it."""
    found = {}
    for attribute in span.get("attributes", ()):
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found


def warnings(trace: Mapping[str, Any]) -> list[str]:
    """List Jaeger's warnings in all spans of a trace."""
    return [warning for span in trace["spans"] for warning in span["warnings"] or ()]


def _plain_environment() -> dict[str, str]:
    """Return the environment without what could turn Jaeger elsewhere."""
    ours = ("XSP_JAEGER_", "JAEGER_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _free_ports(number: int) -> list[int]:
    """Return ports that are free now: all are held at once, so that no two are the same."""
    held: list[socket.socket] = []
    try:
        for _ in range(number):
            probe = socket.socket()
            held.append(probe)
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in held]
    finally:
        for probe in held:
            probe.close()
