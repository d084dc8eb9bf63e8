"""OTLP over HTTP, by urllib3: an encoded request in, the server's answer out."""

from __future__ import annotations

import contextlib
import gzip
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import unquote

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from xsp import __version__
from xsp.export.otlp import answer
from xsp.export.otlp.answer import Answer, Verdict
from xsp.export.otlp.endpoint import Endpoint, proxy, without_credentials

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_MOST_RESPONSE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_COMPRESSION_LEVEL = 5
_SHORTEST_S = 0.001
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


class HttpClient:
    """Speaks OTLP/HTTP with one endpoint, through the proxy that the environment names.

    Redirections are not followed: a POST would become a GET. A request's deadline holds for
    connecting, sending and reading the body; the system's name resolver and a server that
    never ends its headers can outlast the deadline.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pool = _pool(endpoint)
        query = f"?{endpoint.query}" if endpoint.query else ""
        scheme = "https" if endpoint.secure else "http"
        self._url = f"{scheme}://{endpoint.address}{endpoint.path}{query}"
        self._headers = {
            "user-agent": f"xsp-OTLP-exporter-Python/{__version__}",
            **dict(endpoint.headers),
            "content-type": _PROTOBUF,
        }
        if endpoint.compression == "gzip":
            self._headers["content-encoding"] = "gzip"

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send a request, once; see `xsp.export.otlp.delivery.Client`."""
        if self._endpoint.compression == "gzip":
            body = gzip.compress(body, _COMPRESSION_LEVEL, mtime=0)
        try:
            reply = self._post(body, time.monotonic() + timeout_s)
        except (HTTPError, OSError) as error:
            return _silence(error, self._endpoint)
        return _judged(reply, self._endpoint)

    def close(self) -> None:
        """End the connection, if there is one."""
        # `clear` alone leaves the socket to the garbage collector, which a traceback delays.
        with contextlib.suppress(HTTPError):  # the host is none that urllib3 would connect to
            self._pool.connection_from_url(self._url).close()
        self._pool.clear()

    def _post(self, body: bytes, deadline: float) -> _Reply:
        response = self._pool.request(
            "POST",
            self._url,
            body=body,
            headers=self._headers,
            timeout=urllib3.Timeout(total=_left(deadline)),
            retries=False,  # xsp repeats requests itself, by OTLP's rules
            redirect=False,
            preload_content=False,
        )
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return _Reply(response.status, headers, _content(response, deadline))
        finally:
            # A connection with an unread rest of a body cannot be used again.
            if response.closed:
                response.release_conn()
            else:
                response.close()


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def kind(self) -> str:
        """Content type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: int | None = None
    error_message: str | None = None


class _Success(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


def _pool(endpoint: Endpoint) -> urllib3.PoolManager:
    context = endpoint.certificates.context() if endpoint.secure else None
    between = proxy(endpoint)
    if between is None:
        return urllib3.PoolManager(1, ssl_context=context)
    pair = urllib3.util.parse_url(between).auth
    headers = urllib3.make_headers(proxy_basic_auth=unquote(pair)) if pair else None
    return urllib3.ProxyManager(
        between,
        1,
        proxy_headers=headers,
        proxy_ssl_context=ssl.create_default_context() if between.startswith("https:") else None,
        ssl_context=context,
    )


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), _SHORTEST_S)


def _content(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """Return a body, of which at most 1 MiB is read.

    A socket's timeout begins anew with each piece, so the deadline is checked between pieces.

    Raises:
        TimeoutError: The body is not complete at the deadline.
    """
    content = b""
    while piece := response.read1(min(_PIECE_BYTES, _MOST_RESPONSE_BYTES - len(content))):
        content += piece
        if len(content) >= _MOST_RESPONSE_BYTES:
            break
        if time.monotonic() > deadline:
            raise TimeoutError("timed out in the middle of its answer")
    return content


def _silence(error: Exception, endpoint: Endpoint) -> Answer:
    """Return the answer that stands for an error of the connection."""
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        words = f"shows a certificate that is not trusted: {answer.plain(cause.verify_message)}"
        return Answer(Verdict.CLOSED, words, answer.UNTRUSTED)
    return answer.unanswered(endpoint.censored(f"{type(cause).__name__}: {cause}"))


def _cause(error: BaseException) -> BaseException:
    """Return the innermost error that urllib3's error wraps: the system's, or that of TLS."""
    inner = (*error.args, error.__cause__)
    below = next((one for one in inner if isinstance(one, BaseException)), None)
    return error if below is None else _cause(below)


def _judged(reply: _Reply, endpoint: Endpoint) -> Answer:
    status = reply.status
    if 200 <= status < 300:
        return _accepted(reply, endpoint)
    message = f"answered {_name(status)}{answer.quoted(endpoint.censored(_words(reply)))}"
    if 300 <= status < 400:
        place = without_credentials(reply.headers.get("location", ""))
        return answer.not_otlp(f"{message}, and redirects to {answer.plain(place)}")
    verdict, remedy = _MEANINGS.get(status, _meaning(status))
    wait_s = _wait_s(reply.headers.get("retry-after"))
    return Answer(verdict, message, remedy, wait_s=wait_s)


def _meaning(status: int) -> tuple[Verdict, str]:
    """Return verdict and remedy for a status that OTLP does not name."""
    return (Verdict.REFUSED if status < 500 else Verdict.FAILED), answer.SEE_SERVER


def _accepted(reply: _Reply, endpoint: Endpoint) -> Answer:
    """Return the answer in a success; a web page is no answer of an OTLP server."""
    if reply.content and reply.kind == _JSON:
        return _accepted_in_json(reply.content, endpoint)
    if reply.content and reply.kind not in (_PROTOBUF, ""):
        return answer.not_otlp(f"answered with {answer.plain(reply.kind)}, which is not OTLP")
    return answer.acceptance(reply.content, endpoint.censored)


def _accepted_in_json(content: bytes, endpoint: Endpoint) -> Answer:
    """Return the answer in a success as JSON, which some servers send whatever the request is."""
    try:
        # Not strict: in protobuf's JSON 64-bit numbers are strings.
        found = msgspec.json.decode(content, type=_Success, strict=False)
    except (msgspec.MsgspecError, RecursionError):
        return answer.not_otlp("its answer is not OTLP")
    partial = found.partial_success or _PartialSuccess()
    words = endpoint.censored(partial.error_message or "")
    return answer.accepted(max(0, partial.rejected_spans or 0), words)


def _words(reply: _Reply) -> str:
    """Return the words in the body of an error; none of a page for browsers."""
    if reply.kind == _PROTOBUF:
        return answer.status(reply.content).message
    text = reply.content.decode(errors="replace")
    return "" if "<" in text[:200] else text


def _name(status: int) -> str:
    with suppress(ValueError):
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    return f"HTTP {status}"


def _wait_s(text: str | None) -> float | None:
    """Return the seconds to wait that Retry-After, in seconds or a date, asks for."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
