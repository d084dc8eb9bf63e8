"""Deliveries to a server of the tests' own: what the tests of sending have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from xsp.export.otlp import Chunk, Delivery, Endpoint, deliver, endpoint

SCHEMES = {
    ("grpc", False): "otlp",
    ("grpc", True): "otlps",
    ("http", False): "otlp+http",
    ("http", True): "otlp+https",
}
TRACE_ID = bytes(range(16))
ALL = "OTEL_EXPORTER_OTLP_"
TIMEOUT_S = 0.6
both = pytest.mark.parametrize("protocol", ["grpc", "http"])


def isolate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let nothing of the surroundings in, and the spool be in a folder."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XSP_SPOOL_DIR", str(folder / "spool"))
    monkeypatch.setenv(ALL + "TIMEOUT", str(round(TIMEOUT_S * 1000)))


def to_server(
    protocol: str, port: int, *, secure: bool = False, host: str = "127.0.0.1"
) -> Endpoint:
    """Return the endpoint of a server on this machine."""
    return endpoint(f"{SCHEMES[protocol, secure]}://{host}:{port}")


def tried(chunks: Iterable[Chunk], to: Endpoint, total: int | None = None) -> Delivery:
    """Deliver chunks; a lazy iterator of them needs the total."""
    chunks = list(chunks) if total is None else chunks
    spans = sum(chunk.spans for chunk in chunks) if total is None else total
    result = deliver(lambda most_bytes: chunks, to, trace_id=TRACE_ID.hex(), total=spans)
    assert result.sent == result.accepted + result.rejected + result.undelivered
    assert to.url in result.message
    return result


def delivered(chunks: Iterable[Chunk], to: Endpoint, total: int | None = None) -> Delivery:
    """Deliver, and check what holds for every success."""
    result = tried(chunks, to, total)
    assert result.accepted == result.sent, result.message
    return result


def failing(chunks: Iterable[Chunk], to: Endpoint, total: int | None = None) -> Delivery:
    """Deliver, and check what holds for every failure."""
    result = tried(chunks, to, total)
    assert result.accepted < result.sent
    assert "Remedy: " in result.message
    return result
