"""OTLP over gRPC: bytes as they are, through grpcio's generic call."""

from __future__ import annotations

from typing import Any

from xsp import __version__
from xsp.export.otlp import answer
from xsp.export.otlp.answer import Answer, Verdict
from xsp.export.otlp.endpoint import Endpoint, proxy

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
# As the specification's table has it; RESOURCE_EXHAUSTED only with a delay.
_RETRYABLE = (
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNAVAILABLE",
    "DATA_LOSS",
)
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
    # Channels would share connections, and the time they wait before connecting again.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Repeating is ours, by OTLP's rules.
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
        # Neither serialiser: bytes go out and come in as they are.
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
        # By this gRPC means how long making a connection may take, whatever the name says.
        limit = ("grpc.min_reconnect_backoff_ms", int(self._endpoint.timeout_s * 1000))
        # By itself gRPC would go through HTTPS_PROXY without TLS, and to this machine, too.
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
            # gRPC gives these codes as well where it has heard nothing from the server.
            if code in _SILENT and wait_s is None:
                return answer.unanswered(self._endpoint.censored(said))
            return Answer(Verdict.RETRY, message, answer.LATER, wait_s=wait_s)
        verdict, remedy = _OTHERS.get(code, (Verdict.FAILED, answer.SEE_SERVER))
        return Answer(verdict, message, remedy)


def _wait_s(error: Any) -> float | None:
    """Return the delay in seconds that the server asks for, if it does."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return answer.status(value).retry_s
    return None
