"""OTLP over gRPC: an encoded request in, the server's answer out.

grpcio's generic call sends and returns bytes as they are.
"""

from __future__ import annotations

from typing import Any

from xsp import __version__
from xsp.export.otlp import answer
from xsp.export.otlp.answer import Answer, Verdict
from xsp.export.otlp.endpoint import Endpoint, proxy

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
# The OTLP specification's table; RESOURCE_EXHAUSTED may be repeated only if it names a delay.
_RETRYABLE = (
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNAVAILABLE",
    "DATA_LOSS",
)
# Codes that grpcio also gives where the server sent nothing.
_SILENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
_OTHERS = {
    "INVALID_ARGUMENT": (Verdict.REFUSED, answer.SEE_SERVER),
    "UNAUTHENTICATED": (Verdict.CLOSED, answer.CREDENTIALS),
    "PERMISSION_DENIED": (Verdict.CLOSED, answer.CREDENTIALS),
    "UNIMPLEMENTED": (Verdict.CLOSED, answer.NO_SERVICE),
    "NOT_FOUND": (Verdict.CLOSED, answer.NO_SERVICE),
    "RESOURCE_EXHAUSTED": (Verdict.CLOSED, answer.LATER),
}
_OPTIONS = (
    # Otherwise channels share connections, and the time to wait before connecting again.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # xsp repeats requests itself, by OTLP's rules.
    ("grpc.enable_retries", 0),
    ("grpc.primary_user_agent", f"xsp-OTLP-exporter-Python/{__version__}"),
)


class GrpcClient:
    """Speaks OTLP/gRPC with one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        import grpc  # noqa: PLC0415

        self._grpc = grpc
        self._endpoint = endpoint
        self._compression = {"gzip": grpc.Compression.Gzip, "none": grpc.Compression.NoCompression}[
            endpoint.compression
        ]
        self._metadata = tuple(
            (name, value.encode() if name.endswith("-bin") else value)
            for name, value in endpoint.headers
        )
        self._channel = self._connect()
        # Without serialisers, which would make messages of the bytes.
        self._call = self._channel.unary_unary(_METHOD)

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send a request, once; see `xsp.export.otlp.delivery.Client`."""
        try:
            response = self._call(
                body, timeout=timeout_s, metadata=self._metadata, compression=self._compression
            )
        except self._grpc.RpcError as error:
            return self._judged(error)
        return answer.acceptance(response, self._endpoint.censored)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _connect(self) -> Any:
        target = self._endpoint.address
        # Despite its name, this option limits how long making a connection may take.
        limit = ("grpc.min_reconnect_backoff_ms", int(self._endpoint.timeout_s * 1000))
        # Left to itself, gRPC uses HTTPS_PROXY without TLS, and for this machine, too.
        between = proxy(self._endpoint)
        through = ("grpc.enable_http_proxy", 0) if between is None else ("grpc.http_proxy", between)
        options = (*_OPTIONS, limit, through)
        if not self._endpoint.secure:
            return self._grpc.insecure_channel(target, options=options)
        credentials = self._grpc.ssl_channel_credentials(*self._endpoint.certificates.contents())
        return self._grpc.secure_channel(target, credentials, options=options)

    def _judged(self, error: Any) -> Answer:
        code = error.code().name
        said = error.details() or ""
        message = f"answered {code}{answer.quoted(self._endpoint.censored(said))}"
        if "larger than max" in said:
            return Answer(Verdict.TOO_LARGE, message, "raise the server's limit for a message")
        wait_s = _wait_s(error)
        if code in _RETRYABLE or (code == "RESOURCE_EXHAUSTED" and wait_s is not None):
            if code in _SILENT and wait_s is None:
                return answer.unanswered(self._endpoint.censored(said))
            return Answer(Verdict.RETRY, message, answer.LATER, wait_s=wait_s)
        verdict, remedy = _OTHERS.get(code, (Verdict.FAILED, answer.SEE_SERVER))
        return Answer(verdict, message, remedy)


def _wait_s(error: Any) -> float | None:
    """Return the delay that the server asks for, in seconds; None where it asks for none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return answer.status(value).retry_s
    return None
