"""OTLP over HTTP: protobuf bodies, one connection, and a deadline that holds for every byte."""

from __future__ import annotations

import gzip
import io
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast

from xsp.export import answer
from xsp.export.answer import Answer, Verdict
from xsp.export.endpoint import Endpoint, without_credentials
from xsp.export.proxy import proxy
from xsp.export.status import parse

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_MOST_RESPONSE_BYTES = 1 << 20
# What one TLS record holds: a slice goes out in one piece or not at all.
_SLICE_BYTES = 16 * 1024
_COMPRESSION_LEVEL = 5
_MEANINGS: dict[int, tuple[Verdict, str]] = {
    **dict.fromkeys((429, 502, 503, 504), (Verdict.RETRY, answer.LATER)),
    **dict.fromkeys((401, 403), (Verdict.CLOSED, answer.CREDENTIALS)),
    **dict.fromkeys((404, 405, 410, 415, 421, 426), (Verdict.CLOSED, answer.NO_SERVICE)),
    407: (
        Verdict.CLOSED,
        "give the proxy's credentials in HTTP_PROXY or HTTPS_PROXY (http://user:password@host:port)",
    ),
    408: (Verdict.FAILED, answer.SEE_SERVER),
    413: (Verdict.TOO_LARGE, "raise the server's limit for a request"),
}
# What Go and nginx say in plain HTTP where TLS is spoken.
_TLS_WANTED = (
    b"Client sent an HTTP request to an HTTPS server",
    b"The plain HTTP request was sent to HTTPS port",
)


class HttpClient:
    """Speaks OTLP/HTTP with one endpoint, through the proxy that the environment names.

    It does not follow redirections, which would turn the request into another. The one
    thing that can outlast a timeout is the system's resolver of names.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection: HTTPConnection | None = None

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send a request, once; see `Client`."""
        try:
            reply = self._post(body, time.monotonic() + timeout_s)
        except (OSError, HTTPException) as error:
            self.close()
            words = self._endpoint.censored(f"{type(error).__name__}: {error}")
            message = f"does not answer{answer.quoted(words)}"
            return Answer(Verdict.RETRY, message, answer.LATER, answered=False)
        return _judged(reply, self._endpoint)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes, deadline: float) -> _Reply:
        target, headers = self._request()
        if self._endpoint.compression == "gzip":
            body = gzip.compress(body, _COMPRESSION_LEVEL, mtime=0)
            headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(body))
        connection = self._connected(deadline)
        connection.response_class = _responses(deadline)
        try:
            slices = _slices(body, connection, deadline)
            connection.request("POST", target, body=slices, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have said why before it hung up
        return self._read(connection.getresponse())

    def _read(self, response: HTTPResponse) -> _Reply:
        content = response.read(_MOST_RESPONSE_BYTES)
        if not response.isclosed():
            self.close()  # it says more than anyone reads
        headers = {name.lower(): value for name, value in response.getheaders()}
        return _Reply(response.status, headers, content)

    def _connected(self, deadline: float) -> HTTPConnection:
        if self._connection is None or self._connection.sock is None:
            self._connection = _connection(self._endpoint, deadline)
            self._connection.connect()
        return self._connection

    def _request(self) -> tuple[str, dict[str, str]]:
        """Return target and headers of the request."""
        endpoint = self._endpoint
        query = f"?{endpoint.query}" if endpoint.query else ""
        target, headers = f"{endpoint.path}{query}", dict(endpoint.headers)
        between = None if endpoint.secure else proxy(endpoint)
        if between is not None:
            target, headers = f"http://{endpoint.address}{target}", headers | between.headers
        return target, headers | {"content-type": _PROTOBUF}


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def kind(self) -> str:
        """Content type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def _judged(reply: _Reply, endpoint: Endpoint) -> Answer:
    status = reply.status
    if 200 <= status < 300:
        return _accepted(reply, endpoint)
    message = f"answered {_name(status)}{answer.quoted(endpoint.censored(_words(reply)))}"
    if 300 <= status < 400:
        place = without_credentials(reply.headers.get("location", ""))
        return answer.not_otlp(f"{message}, and redirects to {place}")
    if not endpoint.secure and any(said in reply.content for said in _TLS_WANTED):
        secure = Endpoint.scheme(endpoint.protocol, secure=True)
        return Answer(Verdict.CLOSED, "speaks TLS, which was not asked", f"use {secure}://")
    verdict, remedy = _MEANINGS.get(status, _meaning(status))
    wait_s = _wait_s(reply.headers.get("retry-after"))
    return Answer(verdict, message, remedy, wait_s=wait_s)


def _meaning(status: int) -> tuple[Verdict, str]:
    """Return what an error means that the protocol does not name."""
    return (Verdict.REFUSED if status < 500 else Verdict.FAILED), answer.SEE_SERVER


def _accepted(reply: _Reply, endpoint: Endpoint) -> Answer:
    """Return what a success says; a web page says nothing about spans."""
    if reply.content and reply.kind == _JSON:
        return _accepted_in_json(reply.content, endpoint)
    if reply.content and reply.kind not in (_PROTOBUF, ""):
        return answer.not_otlp(f"answered with {reply.kind}, which is not OTLP")
    return answer.acceptance(reply.content, endpoint.censored)


def _accepted_in_json(content: bytes, endpoint: Endpoint) -> Answer:
    try:
        partial = json.loads(content).get("partialSuccess") or {}
        # 64-bit numbers are text in protobuf's JSON.
        rejected = max(0, int(partial.get("rejectedSpans") or 0))
        message = str(partial.get("errorMessage") or "")
    except (ValueError, TypeError, AttributeError):
        return answer.not_otlp("its answer is not OTLP")
    return Answer(Verdict.ACCEPTED, answer.plain(endpoint.censored(message)), rejected=rejected)


def _words(reply: _Reply) -> str:
    """Return what the body of an error says in words; a page for browsers says nothing."""
    if reply.kind == _PROTOBUF:
        return parse(reply.content).message
    text = reply.content.decode(errors="replace")
    return "" if "<" in text[:200] else text


def _name(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def _wait_s(text: str | None) -> float | None:
    """Return the seconds that a Retry-After asks to wait: it has seconds or a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _connection(endpoint: Endpoint, deadline: float) -> HTTPConnection:
    """Return a connection that is still to be made, through a proxy if there is one."""
    between = proxy(endpoint)
    host, port = (between or endpoint).host, (between or endpoint).port
    timeout_s = _each(host, port, deadline)
    if not endpoint.secure:
        return HTTPConnection(host, port, timeout=timeout_s)
    context = endpoint.certificates.context()
    connection = HTTPSConnection(host, port, timeout=timeout_s, context=context)
    if between is not None:
        connection.set_tunnel(endpoint.host, endpoint.port, headers=between.headers)
    return connection


def _each(host: str, port: int, deadline: float) -> float:
    """Return the seconds to try each address of a host for, so that all are tried in time."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return max(deadline - time.monotonic(), 0.001) / max(1, len(addresses))


def _slices(body: bytes, connection: HTTPConnection, deadline: float) -> Iterator[bytes]:
    """Yield a body in pieces, each of which has the time that is left."""
    for start in range(0, len(body), _SLICE_BYTES):
        _limit(connection.sock, deadline)
        yield body[start : start + _SLICE_BYTES]


def _limit(sock: Any, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left)


def _responses(deadline: float) -> Any:
    """Return what makes responses of sockets that are read until a deadline.

    A socket's own timeout begins anew with every byte, however slowly they come.
    """

    def response(sock: socket.socket, *args: Any, **kwargs: Any) -> HTTPResponse:
        return HTTPResponse(cast("socket.socket", _Source(sock, deadline)), *args, **kwargs)

    return response


class _Source(io.RawIOBase):
    """The bytes of a socket until a deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._bytes = sock.makefile("rb", buffering=0)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a reader, as a socket does."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return that this can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what is there, or wait for it until the deadline."""
        _limit(self._sock, self._deadline)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        """Let go of the socket."""
        self._bytes.close()
        super().close()
