"""Deliveries to a server of the tests' own: what the tests of sending have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from otlp_server import span_ids

from xsp.errors import ExportError
from xsp.export import spool_file
from xsp.export.delivery import Delivery, deliver
from xsp.export.endpoint import Endpoint, endpoint
from xsp.export.protobuf import Chunk
from xsp.export.spool import spool_files

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


def delivered(chunks: Iterable[Chunk], to: Endpoint, total: int | None = None) -> Delivery:
    """Deliver chunks; a lazy iterator of them needs the total."""
    chunks = list(chunks) if total is None else chunks
    spans = sum(chunk.spans for chunk in chunks) if total is None else total
    return deliver(chunks, to, name="resnet50", trace_id=TRACE_ID, total=spans)


def failing(chunks: Iterable[Chunk], to: Endpoint, total: int | None = None) -> Delivery:
    """Deliver, and check what holds for every failure."""
    with pytest.raises(ExportError) as caught:
        delivered(chunks, to, total)
    result = caught.value.delivery
    assert isinstance(result, Delivery)
    assert result.sent == result.accepted + result.rejected + result.undelivered
    assert result.accepted < result.sent
    assert result.message == str(caught.value)
    assert to.url in result.message
    assert "Remedy: " in result.message
    if result.spool is not None:
        assert str(result.spool) in result.message
    return result


def spooled(result: Delivery) -> list[int]:
    """Return the ids of all spans in the file of a delivery."""
    assert result.spool is not None
    assert (result.spool,) == spool_files()
    with spool_file.opened(result.spool) as stored:
        return [number for frame in stored.frames() for number in span_ids(frame.chunk.body)]
