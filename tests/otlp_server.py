"""An OTLP server on loopback that fails as it is told: what a real one will not do on demand."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from xsp.show.export.otlp import Chunk


@dataclass(frozen=True)
class Reply:
    """Reply of the server to a request; by default it accepts."""

    rejected: int = 0
    message: str = ""
    http_status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hang: bool = False
    cut: bool = False

    @property
    def accepts(self) -> bool:
        """Whether the spans count as received."""
        failed = self.hang or self.cut or self.body is not None
        return not failed and self.http_status == 200

    def response(self) -> bytes:
        """The encoded response to an accepted request."""
        response = ExportTraceServiceResponse()
        if self.rejected or self.message:
            response.partial_success.rejected_spans = self.rejected
            response.partial_success.error_message = self.message
        return bytes(response.SerializeToString())

    def status(self) -> bytes:
        """The encoded google.rpc.Status of a refused one."""
        message = self.message.encode()
        return b"\x12" + bytes((len(message),)) + message


Script = Callable[[int, bytes], Reply]


def refusing(http_status: int, message: str = "no", **more: Any) -> Script:
    """Refuse every request in the same way."""
    reply = Reply(message=message, http_status=http_status, **more)
    return lambda number, body: reply


def first(replies: int, script: Script) -> Script:
    """Do so with the first requests only and accept those after them."""
    return lambda number, body: script(number, body) if number < replies else Reply()


@dataclass(frozen=True)
class Request:
    """A request that the server received."""

    path: str
    headers: dict[str, str]
    body: bytes


class Server:
    """OTLP over HTTP."""

    def __init__(
        self, script: Script | None, port: int, *, tls: Tls | None, most_bytes: int
    ) -> None:
        self.script: Script = script or (lambda number, body: Reply())
        self.most_bytes = most_bytes
        self.requests: list[Request] = []
        self.accepted: Counter[int] = Counter()
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._http = _Listener(("127.0.0.1", port), _Handler)
        self._http.otlp = self
        self.port = self._http.server_address[1]
        if tls is not None:
            self._http.socket = tls.server_context().wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """URL for spans, for `trace.export`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Number of connections made."""
        return self._http.connections

    def reply(self, request: Request) -> Reply:
        """Note a request and return what is done to it."""
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            reply = self.script(number, request.body)
            if reply.accepts:
                self.accepted.update(span_ids(request.body))
        if reply.hang:
            self.stopping.wait(20)
        return reply

    def stop(self) -> None:
        """Stop at once, as if killed; no thread and no connection stays behind."""
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.hang_up()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    otlp: Server

    def __init__(self, *args: Any) -> None:
        self._connections: set[socket.socket] = set()
        self.connections = 0
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        self._connections.add(request)
        super().process_request(request, client_address)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let it be: a client that hangs up or speaks something else is part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_POST(self) -> None:
        otlp = self.server.otlp
        length = int(self.headers["content-length"])
        if length > otlp.most_bytes:
            self.close_connection = True  # without reading it, as real ones do
            self._answer(413, b"too large", "text/plain")
            return
        body = self.rfile.read(length)
        headers = {key.lower(): value for key, value in self.headers.items()}
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self._react(otlp.reply(Request(self.path, headers, body)))

    def _react(self, reply: Reply) -> None:
        if reply.cut or (reply.hang and self.server.otlp.stopping.is_set()):
            self.close_connection = True
        else:
            kind = "application/x-protobuf"
            content = reply.response() if reply.http_status == 200 else reply.status()
            content = content if reply.body is None else reply.body
            self._answer(reply.http_status, content, reply.headers.get("content-type", kind), reply)

    def _answer(self, status: int, content: bytes, kind: str, reply: Reply | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        for name, value in (reply.headers if reply else {}).items():
            if name != "content-type":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(
    script: Script | None = None,
    *,
    port: int = 0,
    tls: Tls | None = None,
    most_bytes: int = 1 << 24,
) -> Iterator[Server]:
    """Run a server for a block, on a free port unless one is given."""
    server = Server(script, port, tls=tls, most_bytes=most_bytes)
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Tls:
    """Certificates of an authority of our own, for localhost and a client."""

    authority: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path
    asks_client: bool = False

    def server_context(self) -> ssl.SSLContext:
        """TLS context of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        context.set_alpn_protocols(["http/1.1"])
        if self.asks_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context


def make_tls(folder: Path) -> Tls:
    """Make certificates; skip the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: apt-get install openssl")
    tls = Tls(
        folder / "authority.pem",
        folder / "server.pem",
        folder / "server.key",
        folder / "client.pem",
        folder / "client.key",
    )
    _openssl(
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=xsp-test-authority "
        f"-keyout {folder}/authority.key -out {tls.authority}"
    )
    for kind, name in (("server", "localhost"), ("client", "xsp")):
        extension = folder / f"{kind}.ext"
        extension.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\n")
        _openssl(
            f"req -newkey rsa:2048 -nodes -subj /CN={name} "
            f"-keyout {folder}/{kind}.key -out {folder}/{kind}.csr"
        )
        _openssl(
            f"x509 -req -days 2 -in {folder}/{kind}.csr -CA {tls.authority} "
            f"-CAkey {folder}/authority.key -CAcreateserial -extfile {extension} "
            f"-out {folder}/{kind}.pem"
        )
    return tls


def _openssl(arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True, timeout=60)


def make_chunk(first_id: int, spans: int, padding: int = 0) -> Chunk:
    """Return a request of spans with consecutive ids."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = "xsp"
    for number in range(first_id, first_id + spans):
        scope.spans.add(
            trace_id=bytes(15) + b"\x01",
            span_id=number.to_bytes(8, "big"),
            name=f"span {number}" + "x" * padding,
        )
    return Chunk(request.SerializeToString(), spans)


def make_chunks(count: int, spans: int = 10, padding: int = 0) -> list[Chunk]:
    """Return requests whose spans have ids from 1 on."""
    return [make_chunk(1 + number * spans, spans, padding) for number in range(count)]


def span_ids(body: bytes) -> list[int]:
    """Return the ids of all spans of a request."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        int.from_bytes(span.span_id, "big")
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
