"""Endpoints: a destination and the standard variables in; where and how spans are sent out.

The rules are those of https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from xsp.export.otlp import variable
from xsp.export.otlp.variable import Certificates
from xsp.machine import is_loopback

Protocol = Literal["grpc", "http/protobuf"]
GRPC: Protocol = "grpc"
HTTP: Protocol = "http/protobuf"

_TRACES_PATH = "/v1/traces"
_DEFAULT_PORTS = {GRPC: 4317, HTTP: 4318}
SCHEMES: dict[str, tuple[Protocol, bool]] = {
    "otlp": (GRPC, False),
    "otlps": (GRPC, True),
    "otlp+http": (HTTP, False),
    "otlp+https": (HTTP, True),
}
FORMS = (
    "otlp://host:4317 (gRPC), otlps://host:4317 (gRPC with TLS), "
    "otlp+http://host:4318 or otlp+https://host:4318"
)
_URL_PORTS = {"http": 80, "https": 443}
_SHORTEST_SECRET = 4
# Names of headers whose values are credentials.
_CREDENTIAL = re.compile("auth|cookie|key|secret|token")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that takes spans. Neither `str` nor `repr` shows credentials.

    Attributes:
        protocol: OTLP over gRPC or over HTTP.
        host: Name or address, IPv6 without brackets.
        port: TCP port.
        secure: Whether connections use TLS.
        path: For HTTP, the path of the request; empty for gRPC.
        query: For HTTP, the query of the request, without question mark.
        headers: Names in lower case, and values, sent with every request.
        timeout_s: Seconds that a request may take, all attempts together.
        compression: How requests are compressed.
        certificates: Files for TLS.
    """

    protocol: Protocol
    host: str
    port: int
    secure: bool = False
    path: str = ""
    query: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = 10.0
    compression: variable.Compression = "none"
    certificates: Certificates = field(default=Certificates())

    def __str__(self) -> str:
        return self.url

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The endpoint as a destination of `endpoint`, without credentials."""
        return f"{self.scheme(self.protocol, secure=self.secure)}://{self.address}{self.path}"

    @property
    def exposed(self) -> tuple[str, ...]:
        """Names of headers whose credentials would be sent over a network without TLS."""
        if self.secure or is_loopback(self.host):
            return ()
        return tuple(name for name, _ in self.headers if _CREDENTIAL.search(name))

    @staticmethod
    def scheme(protocol: Protocol, *, secure: bool) -> str:
        """Return the scheme of destinations for a protocol, with TLS or without."""
        return next(name for name, kind in SCHEMES.items() if kind == (protocol, secure))

    def censored(self, text: str) -> str:
        """Return a server's text with stars for credentials that the server repeats."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        secrets = {self.query, *(value for _, value in parse_qsl(self.query))}
        for _, value in self.headers:
            # Of `Bearer TOKEN`, the token alone is a secret as well.
            kind, _, token = value.rpartition(" ")
            secrets |= {value, token}
            if kind == "Basic":
                with suppress(ValueError):
                    pair = b64decode(token, validate=True).decode()
                    secrets |= {pair, pair.partition(":")[2]}
        # Shorter values occur in any text by chance.
        return {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}


def endpoint(destination: str | None = None) -> Endpoint:
    """Return the endpoint of a destination, or the endpoint that the variables name.

    Args:
        destination: `otlp://host:4317` (gRPC), `otlps://` (gRPC with TLS),
            `otlp+http://host:4318[/path]` or `otlp+https://`; a user and password before
            the host become basic authorisation. Without a port: 4317 and 4318. None:
            the endpoint of `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
            `OTEL_EXPORTER_OTLP_ENDPOINT`, and of `…_PROTOCOL`; without them HTTP to
            localhost:4318. Headers, certificates,
            timeout and compression come from the variables in either case.

    Raises:
        ValueError: There is no such destination, a variable makes no sense, or gRPC is
            asked for and not installed.

    >>> endpoint("otlp+http://jaeger").url
    'otlp+http://jaeger:4318/v1/traces'
    """
    found = _configured() if destination is None else _explicit(destination)
    if found.protocol == GRPC:
        _check_grpc(found)
    own = dict(found.headers)  # from the URL: nearer than the variables
    certificates = variable.certificates() if found.secure else Certificates()
    if found.secure:
        certificates.check()
    return replace(
        found,
        headers=tuple((variable.headers() | own).items()),
        timeout_s=variable.timeout_s(),
        compression=variable.compression(),
        certificates=certificates,
    )


def _check_grpc(found: Endpoint) -> None:
    if find_spec("grpc") is None:
        other = Endpoint.scheme(HTTP, secure=found.secure)
        raise ValueError(
            f"{found} is OTLP over gRPC, which needs grpcio, and that is not installed: "
            "pip install 'xsp[grpc]', or use OTLP over HTTP "
            f"({other}://host:4318, or OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf)"
        )


def proxy(endpoint: Endpoint) -> str | None:
    """Return the URL of the proxy for an endpoint, credentials included; None for no proxy.

    Proxies are named by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in capitals or
    not. Endpoints on this machine have no proxy.

    Raises:
        ValueError: The variable holds no address, or names a proxy that cannot be used.
    """
    named = getproxies()
    # gRPC has a variable of its own.
    names = (
        *("grpc",) * (endpoint.protocol == GRPC),
        "https" if endpoint.secure else "http",
        "all",
    )
    address = next((named[name] for name in names if named.get(name)), None)
    if address is None or is_loopback(endpoint.host) or proxy_bypass(endpoint.address):
        return None
    address = address if "://" in address else f"http://{address}"
    _check_proxy(address, endpoint)
    return address


def _check_proxy(address: str, endpoint: Endpoint) -> None:
    # Neither the address nor Python's error is shown: both may hold a password.
    instead = (
        f"HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or NO_PROXY={endpoint.host} for the direct way"
    )
    try:
        parts = urlsplit(address)
        sensible = parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")  # as making a connection does it
        pair = urllib3.util.parse_url(address).auth  # as the client does
        unquote(pair or "").encode("latin-1")
    except (ValueError, urllib3.exceptions.HTTPError):
        sensible = False
    if not sensible:
        raise ValueError(f"the proxy's address makes no sense: set http://host:port in {instead}")
    possible = ("http",) if endpoint.protocol == GRPC else ("http", "https")
    if parts.scheme.lower() not in possible:
        raise ValueError(
            f"a proxy of the kind {parts.scheme}:// cannot be used"
            f"{' for gRPC' if endpoint.protocol == GRPC else ''}: "
            f"set one that speaks {' or '.join(f'{one}://' for one in possible)} in {instead}"
        )


def _explicit(destination: str) -> Endpoint:
    shown = without_credentials(destination)
    scheme, separator, rest = destination.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        raise ValueError(f"{shown!r} is no destination for spans; there are {FORMS}")
    protocol, secure = SCHEMES[scheme.lower()]
    parts = _split(f"//{rest}", shown)
    path = parts.path.rstrip("/")
    if protocol == GRPC and (path or parts.query):
        other = Endpoint.scheme(HTTP, secure=secure)
        raise ValueError(f"{shown!r}: gRPC takes no path; over HTTP it is {other}://host:4318/path")
    port = _DEFAULT_PORTS[protocol] if parts.port is None else parts.port
    if protocol == HTTP:
        path = path or _TRACES_PATH
    return _built(parts, protocol, port=port, secure=secure, path=path)


def _configured() -> Endpoint:
    protocol = variable.protocol()
    address, name = variable.find("ENDPOINT")
    if not address:
        path = _TRACES_PATH if protocol == HTTP else ""
        return Endpoint(protocol, "localhost", _DEFAULT_PORTS[protocol], path=path)
    shown = f"{name}={without_credentials(address)}"
    scheme, separator, _ = address.partition("://")
    if separator and scheme.lower() in _URL_PORTS:
        parts, secure = _split(address, shown), scheme.lower() == "https"
        port = _URL_PORTS[scheme.lower()] if parts.port is None else parts.port
    elif not separator and protocol == GRPC:
        parts, secure = _split(f"//{address}", shown), not variable.insecure()
        port = _DEFAULT_PORTS[protocol] if parts.port is None else parts.port
    else:
        raise ValueError(f"{shown!r} is no endpoint: give http://host:port or https://host:port")
    path = _configured_path(parts, name) if protocol == HTTP else ""
    return _built(parts, protocol, port=port, secure=secure, path=path)


def _configured_path(parts: SplitResult, name: str) -> str:
    """Return the path for traces; the variable for all signals lacks its end, `/v1/traces`."""
    if variable.is_for_traces(name):
        return parts.path or "/"
    return parts.path.rstrip("/") + _TRACES_PATH


def _built(
    parts: SplitResult, protocol: Protocol, *, port: int, secure: bool, path: str
) -> Endpoint:
    query = parts.query if protocol == HTTP else ""
    headers = _authorisation(parts)
    return Endpoint(protocol, parts.hostname or "", port, secure, path, query, headers)


def _split(url: str, shown: str) -> SplitResult:
    """Return the parts of a URL, once its host and port are known to make sense."""
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as when connecting
        urllib3.util.parse_url(f"http://{parts.netloc.rpartition('@')[2]}")  # as the client does
    except (ValueError, urllib3.exceptions.HTTPError):
        # Python's error is not shown: it may hold a password.
        raise ValueError(f"{shown!r}: the host or the port makes no sense; {FORMS}") from None
    # An @ in the path, or a fragment, is the rest of a password with a slash or a hash in it.
    strange = "@" in parts.path or not (parts.path + parts.query).isascii()
    if not parts.hostname or port == 0 or strange or re.search(r"[\s\x00-\x1f#]", url):
        raise ValueError(
            f"{shown!r}: the host or the port makes no sense, or a character in it has to be "
            f"percent-encoded; {FORMS}"
        )
    return parts


def _authorisation(parts: SplitResult) -> tuple[tuple[str, str], ...]:
    if parts.username is None and parts.password is None:
        return ()
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return (("authorization", f"Basic {b64encode(pair.encode()).decode()}"),)


def without_credentials(url: str) -> str:
    """Return a URL, even a malformed one, without user, password and query.

    >>> without_credentials("otlp://user:secret@host:4317/?key=secret")
    'otlp://host:4317/'
    """
    scheme, separator, rest = url.rpartition("://")
    if not re.fullmatch(r"[A-Za-z0-9+.-]*", scheme):
        return "…"
    place = re.split(r"[?#]", rest)[0]
    if "@" in rest[len(place) :]:
        return f"{scheme}{separator}…"  # the @ may end a password or be part of the query
    return f"{scheme}{separator}{place.rpartition('@')[2]}"
