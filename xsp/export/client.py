"""The client: sends one request at a time to an endpoint, in the protocol it speaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from xsp.export.answer import Answer
from xsp.export.endpoint import GRPC, Endpoint
from xsp.export.grpc_client import GrpcClient
from xsp.export.http_client import HttpClient
from xsp.export.proxy import proxy


class Client(Protocol):
    """What sends requests. It connects when it has to, and again after it was cut off."""

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send an encoded ExportTraceServiceRequest, once.

        Whatever happens on the way is an answer, not an exception.

        Args:
            body: The request.
            timeout_s: Seconds within which this returns, above 0.
        """
        ...

    def close(self) -> None:
        """End the connection, if there is one."""
        ...


@contextmanager
def connect(endpoint: Endpoint) -> Iterator[Client]:
    """Return a client for the endpoint, closed at the end of the block.

    Raises:
        ValueError: The variable of a proxy makes no sense.
    """
    proxy(endpoint)  # said now, for later there are answers only
    client: Client = GrpcClient(endpoint) if endpoint.protocol == GRPC else HttpClient(endpoint)
    try:
        yield client
    finally:
        client.close()
