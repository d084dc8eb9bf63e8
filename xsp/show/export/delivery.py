"""Sends encoded spans to an OTLP endpoint over HTTP, and counts the spans that it accepts.

`requests` speaks HTTP, with proxies, certificates and repetitions. The rules for destinations and
variables are those of https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

import gzip
import os
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from xsp import __version__
from xsp.delivery import Delivery
from xsp.errors import ExportError
from xsp.machine import is_loopback
from xsp.show.export.otlp import Chunk
from xsp.text import counted, printable, shorten

if TYPE_CHECKING:
    import requests

SCHEMES = ("http", "https", "otlp+http", "otlp+https")
FORMS = "http://host:4318, https://host:4318"
_TRACES_PATH = "/v1/traces"
_VARIABLE = "OTEL_EXPORTER_OTLP_"
_TIMEOUT_MS = 10_000
_DAY_MS = 24 * 3600 * 1000
# Shorter values of headers occur in any text by chance.
_SHORTEST_SECRET = 4
_LONGEST_WORDS = 300
_MOST_REASONS = 3

# Requests that the OTLP specification lets a client repeat, with pauses of 0, 0.4 and 0.8 s.
_REPEATED = (429, 502, 503, 504)
_REPETITIONS = 3
_BACKOFF_S = 0.2
_LONGEST_WAIT_S = 10.0
# A request refused for its content or its size; the next one may be taken.
_REFUSED = (400, 413, 422)

_SERVICE = "check host, port (by default 4318) and path (/v1/traces)"
_NOBODY = (
    "start a server (`xsp jaeger` starts one here), or check scheme, host and port (by default "
    "4318; 4317 speaks gRPC); if the server is slow, raise OTEL_EXPORTER_OTLP_TIMEOUT "
    "(milliseconds)"
)
_CERTIFICATE = "name the certificate of its issuer in OTEL_EXPORTER_OTLP_CERTIFICATE"
_CREDENTIALS = (
    "give credentials, or other credentials, in OTEL_EXPORTER_OTLP_HEADERS "
    "(authorization=Bearer%20TOKEN)"
)
_LOG = "see the server's log"
_REMEDIES = {
    **dict.fromkeys(_REPEATED, "send the spans later"),
    **dict.fromkeys((401, 403), _CREDENTIALS),
    **dict.fromkeys((301, 302, 303, 307, 308, 404, 405, 410, 415, 421, 426), _SERVICE),
    407: "give the proxy's credentials in HTTP_PROXY or HTTPS_PROXY "
    "(http://user:password@host:port)",
    413: "raise the server's limit for a request to 1 MiB",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that takes spans. Neither `str` nor `repr` shows credentials.

    Attributes:
        url: Scheme, host, port and path of the request.
        query: The query of the request, without question mark.
        auth: User and password, from before the host; None without them.
        headers: Sent with every request.
        timeout_s: Seconds that connecting, and then waiting for an answer, may take.
        compressed: Whether requests are compressed by gzip.
        verify: File with the certificates of trusted issuers; True for the usual ones.
        client: Files with the certificate and the key of this side; None without them.
    """

    url: str
    query: str = field(default="", repr=False)
    auth: tuple[bytes, bytes] | None = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = _TIMEOUT_MS / 1000
    compressed: bool = False
    verify: str | bool = True
    client: tuple[str, str] | None = None

    def __str__(self) -> str:
        return self.url

    def censored(self, text: str) -> str:
        """Return a server's text with stars for credentials that the server repeats."""
        # Of `Bearer TOKEN`, the token alone is a secret as well.
        values = [*self.headers.values(), *(value for _, value in parse_qsl(self.query))]
        tokens = [value.rpartition(" ")[2] for value in values]
        passwords = [part.decode() for part in self.auth or ()]
        for secret in sorted({self.query, *values, *tokens, *passwords}, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def endpoint(destination: str | None = None) -> Endpoint:
    """Return the endpoint of a destination, or the endpoint that the variables name.

    Args:
        destination: `http://host:4318[/path]` or `https://…`, also with `otlp+` before it; a
            user and password before the host become basic authorization. Without a path the
            path is `/v1/traces`. None: the endpoint of `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
            `OTEL_EXPORTER_OTLP_ENDPOINT`, else localhost:4318. Headers, certificates, timeout
            and compression come from the variables in either case.

    Raises:
        ValueError: There is no such destination, or a variable makes no sense.

    >>> endpoint("http://jaeger:4318").url
    'http://jaeger:4318/v1/traces'
    """
    from opentelemetry.util.re import parse_env_headers  # noqa: PLC0415

    parsed = _configured() if destination is None else _explicit(destination)
    compression, name = _variable("COMPRESSION")
    if compression not in ("", "none", "gzip"):
        raise ValueError(f"{name}={compression!r}: there are gzip and none")
    timeout, name = _variable("TIMEOUT")
    if timeout and not (timeout.isdecimal() and 0 < int(timeout[:12]) <= _DAY_MS):
        raise ValueError(f"{name}={timeout!r}: it is a number of milliseconds, 10000 by default")
    verify, client, key = (
        _variable(name)[0] for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    )
    if bool(client) != bool(key):
        raise ValueError(
            "a client's certificate and its key belong together: set both "
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY"
        )
    for file in filter(None, (verify, client, key)):
        if parsed.url.startswith("https:") and not os.path.isfile(file):
            raise ValueError(
                f"There is no certificate file {file!r}. Correct {_VARIABLE}CERTIFICATE."
            )
    return replace(
        parsed,
        headers=parse_env_headers(_variable("HEADERS")[0], liberal=True),
        timeout_s=int(timeout or _TIMEOUT_MS) / 1000,
        compressed=compression == "gzip",
        verify=verify or True,
        client=(client, key) if client else None,
    )


def _explicit(destination: str) -> Endpoint:
    shown = without_credentials(destination)
    scheme, separator, rest = destination.partition("://")
    scheme = scheme.lower()
    if separator and scheme in ("otlp", "otlps"):
        raise ValueError(
            f"{shown!r} asks for OTLP over gRPC, which xsp does not speak: send over HTTP, "
            f"http{scheme[4:]}://host:4318, or give trace.export an OTLPSpanExporter of "
            "opentelemetry-exporter-otlp-proto-grpc"
        )
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"{shown!r} is no destination for spans; there are {FORMS}")
    parsed = _parsed(f"{scheme.removeprefix('otlp+')}://{rest}", shown)
    parts = urlsplit(parsed.url)
    address = parts.netloc
    if parts.port is None and scheme.startswith("otlp+"):
        address += ":4318"  # that of the form before `http://` was one
    return replace(
        parsed, url=f"{parts.scheme}://{address}{parts.path.rstrip('/') or _TRACES_PATH}"
    )


def _configured() -> Endpoint:
    protocol, name = _variable("PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        raise ValueError(
            f"{name}={protocol!r}: xsp speaks http/protobuf, which servers take at port 4318; name "
            "such an endpoint, xsp export FILE --to http://host:4318, or give trace.export an "
            "OTLPSpanExporter of opentelemetry-exporter-otlp-proto-grpc"
        )
    address, name = _variable("ENDPOINT")
    if not address:
        return Endpoint("http://localhost:4318" + _TRACES_PATH)
    shown = f"{name}={without_credentials(address)}"
    if not address.lower().startswith(("http://", "https://")):
        raise ValueError(f"{shown!r} is no endpoint: give http://host:port or https://host:port")
    parsed = _parsed(address, shown)
    if "TRACES" in name:
        return parsed
    return replace(parsed, url=parsed.url.rstrip("/") + _TRACES_PATH)


def _variable(name: str) -> tuple[str, str]:
    """Return the value of a setting, empty if it is not set, and the variable's full name.

    Variables for traces win over variables for all signals.
    """
    for variable in (f"{_VARIABLE}TRACES_{name}", _VARIABLE + name):
        value = os.environ.get(variable, "").strip()
        if value:
            return value, variable
    return "", _VARIABLE + name


def _parsed(url: str, shown: str) -> Endpoint:
    """Return the endpoint of a URL, once `requests` has found that host and port make sense."""
    import requests  # noqa: PLC0415

    try:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path}"
        requests.Request("POST", place).prepare()
        # An @ in the path, or a fragment, is the rest of a password with a slash or a hash in it.
        sound = parts.hostname and parts.port != 0 and not re.search(r"[\s\x00-\x1f#]", url)
        sound = sound and "@" not in parts.path and (parts.path + parts.query).isascii()
    except ValueError:  # its words are not shown: they may hold a password
        sound = False
    if not sound:
        raise ValueError(
            f"{shown!r}: the host or the port makes no sense, or a character in it has to be "
            f"percent-encoded; destinations are {FORMS}"
        )
    auth = None
    if parts.username is not None:
        auth = (unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return Endpoint(place, parts.query, auth)


def without_credentials(url: str) -> str:
    """Return a URL, even a malformed one, without user, password and query.

    >>> without_credentials("http://user:secret@host:4318/?key=secret")
    'http://host:4318/'
    """
    scheme, separator, rest = url.rpartition("://")
    if not re.fullmatch(r"[A-Za-z0-9+.-]*", scheme):
        return "…"
    place = re.split(r"[?#]", rest)[0]
    if "@" in rest[len(place) :]:
        return f"{scheme}{separator}…"  # the @ may end a password or be part of the query
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


class _Answer(NamedTuple):
    """A server's answer to one request.

    Attributes:
        accepted: Whether the server took the request, perhaps but for some spans.
        message: What happened, as the end of a sentence about the server; empty if all is well.
        remedy: What the user can do.
        rejected: How many spans of an accepted request were rejected.
        last: Whether the server will take no other request either.
    """

    accepted: bool
    message: str = ""
    remedy: str = ""
    rejected: int = 0
    last: bool = False


def deliver(chunks: Iterable[Chunk], to: Endpoint, *, trace_id: str, total: int) -> Delivery:
    """Send chunks to an endpoint, one after the other, and count their spans.

    Once an answer says that the endpoint takes no request, no more chunks are made.

    Args:
        chunks: The requests.
        to: Receives the requests.
        trace_id: In hexadecimal.
        total: Number of spans in all chunks.
    """
    accepted = rejected = 0
    reasons: dict[str, str] = {}
    with _session(to) as session:
        for chunk in chunks:
            answer = _answer_to(chunk.body, session, to)
            refused = min(answer.rejected, chunk.spans) if answer.accepted else chunk.spans
            accepted += chunk.spans - refused
            rejected += 0 if answer.last else refused
            if answer.message and len(reasons) < _MOST_REASONS:
                reasons.setdefault(answer.message, answer.remedy)
            if answer.last:
                break
    done = Delivery(total, accepted, rejected, str(to), trace_id)
    if accepted == total:
        message = "; it ".join([f"{to} accepted {counted(total, 'span')}", *reasons])
        return replace(done, message=message)
    remedies = dict.fromkeys(filter(None, reasons.values()))
    message = (
        f"{total - accepted:,} of {counted(total, 'span')} not accepted ({accepted:,} accepted, "
        f"{rejected:,} rejected, {done.undelivered:,} not delivered): {to} "
        f"{'; '.join(reasons)}." + (f" Remedy: {'; '.join(remedies)}." if remedies else "")
    )
    return replace(done, message=message)


def failure(result: Delivery, message: str, remedy: str) -> ExportError:
    """Return the error for an export with these counts, in two sentences."""
    message = f"{message} {remedy}"
    return ExportError(message, replace(result, message=message))


def _session(to: Endpoint) -> requests.Session:
    import requests  # noqa: PLC0415
    from requests.adapters import HTTPAdapter  # noqa: PLC0415
    from urllib3.util import Retry  # noqa: PLC0415

    class Patience(Retry):
        """Repeats requests, but does not wait for hours because a server asks for it."""

        def get_retry_after(self, response: Any) -> float | None:
            wait_s = super().get_retry_after(response)
            return None if wait_s is None else min(wait_s, _LONGEST_WAIT_S)

    patience = Patience(
        _REPETITIONS,
        connect=0,  # where nobody listens, the user wants to know at once
        read=1,  # a connection that was cut while nothing was sent
        status_forcelist=_REPEATED,
        allowed_methods=None,
        backoff_factor=_BACKOFF_S,
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=patience))
    # A proxy of the environment does not lead back to this machine.
    session.trust_env = not is_loopback(urlsplit(to.url).hostname or "")
    # Without any, requests would take a password from ~/.netrc in place of the user's header.
    session.auth = to.auth or (lambda request: request)
    session.headers["user-agent"] = f"xsp-OTLP-exporter-Python/{__version__}"
    session.headers.update({**to.headers, "content-type": "application/x-protobuf"})
    if to.compressed:
        session.headers["content-encoding"] = "gzip"
    return session


def _answer_to(body: bytes, session: requests.Session, to: Endpoint) -> _Answer:
    """Return the server's last answer to a request; silence is an answer as well."""
    from google.protobuf import json_format  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    if to.compressed:
        body = gzip.compress(body, 5, mtime=0)
    url = f"{to.url}?{to.query}" if to.query else to.url
    try:
        response = session.post(
            url,
            data=body,
            timeout=to.timeout_s,
            verify=to.verify,
            cert=to.client,
            allow_redirects=False,  # a POST would become a GET
        )
    except (OSError, HTTPError, UnicodeError) as error:  # all errors of requests are OSErrors
        return _silence(error, to)
    if not 200 <= response.status_code < 300:
        return _refusal(response, to)
    try:
        return _acceptance(response, to)
    except (DecodeError, json_format.Error, UnicodeError):
        return _Answer(False, "gave an answer that is not OTLP", _SERVICE, last=True)


def _silence(error: BaseException, to: Endpoint) -> _Answer:
    """Return the answer that stands for an error of the connection."""
    while inner := [one for one in (*error.args, error.__cause__) if isinstance(one, Exception)]:
        error = inner[0]  # the system's error, or that of TLS, is the innermost
    if isinstance(error, ssl.SSLCertVerificationError):
        words = f"shows a certificate that is not trusted: {error.verify_message}"
        return _Answer(False, words, _CERTIFICATE, last=True)
    words = _words(f"{type(error).__name__}: {error}", to)
    return _Answer(False, f"does not answer{words}", _NOBODY, last=True)


def _acceptance(response: requests.Response, to: Endpoint) -> _Answer:
    """Return the answer in a success; a web page is no answer of an OTLP server.

    Raises:
        DecodeError: The body is no ExportTraceServiceResponse.
        json_format.Error: The body in JSON is none.
        UnicodeError: The body in JSON is no text.
    """
    from google.protobuf import json_format  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceResponse,
    )

    kind, read = _kind(response), ExportTraceServiceResponse()
    if response.content and kind == "application/json":  # some servers answer so in any case
        json_format.Parse(response.content, read, ignore_unknown_fields=True)
    elif response.content and kind not in ("application/x-protobuf", ""):
        kind = shorten(printable(kind), _LONGEST_WORDS)
        return _Answer(False, f"answered with {kind}, which is not OTLP", _SERVICE, last=True)
    else:
        read.ParseFromString(response.content)
    rejected = max(0, read.partial_success.rejected_spans)
    words = _words(read.partial_success.error_message, to)
    if rejected:
        why = words or " and does not say why"
        return _Answer(True, f"rejected some spans of a request{why}", _LOG, rejected)
    return _Answer(True, f"warns{words}" if words else "")


def _refusal(response: requests.Response, to: Endpoint) -> _Answer:
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTracePartialSuccess,
    )

    status, text = response.status_code, ""
    if _kind(response) == "application/x-protobuf":
        try:
            # A google.rpc.Status: its message is field 2, as the message of a partial success is.
            text = ExportTracePartialSuccess.FromString(response.content).error_message
        except DecodeError:
            text = ""
    elif b"<" not in response.content[:200]:  # a page for browsers says nothing
        text = response.content.decode(errors="replace")
    message = f"answered HTTP {status} {response.reason or ''}".rstrip() + _words(text, to)
    if response.is_redirect:
        message += f", and redirects to {without_credentials(response.headers['location'])}"
    remedy = _REMEDIES.get(status, _LOG)
    return _Answer(False, printable(message), remedy, last=status not in _REFUSED)


def _kind(response: requests.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _words(text: str, to: Endpoint) -> str:
    """Return words of others in brackets, as one short printable line; empty without words."""
    line = " ".join(to.censored(text).split())
    return f" ({shorten(printable(line), _LONGEST_WORDS)})" if line else ""
