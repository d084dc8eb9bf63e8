"""Says why a server does not answer: not there, or there and speaking something else.

What protocol libraries say then differs by version and helps nobody. So the port is
asked itself: for a connection, in HTTP/2, in HTTP/1, with and without TLS.
"""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from xsp.export import answer
from xsp.export.answer import Answer, Verdict
from xsp.export.endpoint import GRPC, HTTP, Endpoint
from xsp.export.proxy import proxy
from xsp.export.tls import trusting_context

if TYPE_CHECKING:
    import ssl

# RFC 9113, section 3.4: the preface, and an empty SETTINGS frame (type 4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HEAD = b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SETTINGS = 4
_LONGEST_S = 0.5
_STEPS = 10


def diagnosed(unanswered: Answer, endpoint: Endpoint, left_s: float) -> Answer:
    """Return an answer that says more of why there was none.

    Args:
        unanswered: What a client returned for a server that said nothing it understood.
        endpoint: Who was asked.
        left_s: Seconds this may take.

    Returns:
        A closed door where another protocol is spoken; else `unanswered`, where
        possible in better words.
    """
    limit_s = min(_LONGEST_S, left_s / _STEPS)
    if limit_s <= 0 or proxy(endpoint) is not None:
        return unanswered
    try:
        if endpoint.secure:
            return _secure(unanswered, endpoint, limit_s)
        return _insecure(unanswered, endpoint, limit_s)
    except ConnectionRefusedError:
        message, remedy = "does not answer: nothing listens on that port", answer.NOT_THERE
    except socket.gaierror as error:
        message = f"cannot be found: {error.strerror} for {endpoint.host}"
        remedy = "check the name of the host"
    except OSError:
        return unanswered
    return replace(unanswered, message=message, remedy=remedy)


def _insecure(unanswered: Answer, endpoint: Endpoint, limit_s: float) -> Answer:
    spoken = _spoken(endpoint, limit_s, None)
    if spoken == GRPC == endpoint.protocol:
        return unanswered
    # A TLS port may answer in plain HTTP that it wants TLS: so that comes first.
    with suppress(OSError):
        _spoken(endpoint, limit_s, trusting_context())
        return _mismatch(endpoint, "speaks TLS, which was not asked", secure=True)
    return _compared(unanswered, endpoint, spoken)


def _secure(unanswered: Answer, endpoint: Endpoint, limit_s: float) -> Answer:
    import ssl  # noqa: PLC0415

    try:
        spoken = _spoken(endpoint, limit_s, endpoint.certificates.context())
    except ssl.SSLCertVerificationError as error:
        return Answer(
            Verdict.CLOSED,
            f"shows a certificate that is not trusted: {error.verify_message}",
            "name the certificate of its issuer in OTEL_EXPORTER_OTLP_CERTIFICATE",
        )
    except ssl.SSLError:
        if _spoken(endpoint, limit_s, None) is None:
            return unanswered
        return _mismatch(endpoint, "does not speak TLS", secure=False)
    return _compared(unanswered, endpoint, spoken)


def _compared(unanswered: Answer, endpoint: Endpoint, spoken: str | None) -> Answer:
    if spoken is None or spoken == endpoint.protocol:
        return unanswered
    names = {GRPC: "gRPC", HTTP: "HTTP"}
    what = (
        f"speaks {names[HTTP] if spoken == HTTP else names[GRPC]}, not {names[endpoint.protocol]}"
    )
    other = Endpoint.scheme(HTTP if spoken == HTTP else GRPC, secure=endpoint.secure)
    variable = f"OTEL_EXPORTER_OTLP_PROTOCOL={spoken}"
    return Answer(
        Verdict.CLOSED, what, f"use {other}://{endpoint.address}, {variable}, or the other port"
    )


def _mismatch(endpoint: Endpoint, what: str, *, secure: bool) -> Answer:
    scheme = Endpoint.scheme(endpoint.protocol, secure=secure)
    url = "https://" if secure else "http://"
    remedy = f"use {scheme}://{endpoint.address}, or {url} in OTEL_EXPORTER_OTLP_ENDPOINT"
    return Answer(Verdict.CLOSED, what, remedy)


def _spoken(endpoint: Endpoint, limit_s: float, tls: ssl.SSLContext | None) -> str | None:
    """Return the protocol that is spoken at the endpoint, None where that cannot be said.

    Args:
        endpoint: Who is asked.
        limit_s: Seconds for each step.
        tls: Context to speak TLS in; None: without.

    Raises:
        OSError: There is no connection, or no TLS.
    """
    said = _said(_PREFACE, endpoint, limit_s, tls)
    if len(said) > 3 and said[3] == _SETTINGS:
        return GRPC
    said = _said(_HEAD, endpoint, limit_s, tls)
    return HTTP if said.startswith(b"HTTP/") else None


def _said(greeting: bytes, endpoint: Endpoint, limit_s: float, tls: ssl.SSLContext | None) -> bytes:
    """Return the first bytes with which a greeting is answered; none if it is not."""
    address = endpoint.host, endpoint.port
    with closing(socket.create_connection(address, limit_s)) as sock:
        if tls is not None:
            tls.set_alpn_protocols(["h2", "http/1.1"])
            sock = tls.wrap_socket(sock, server_hostname=endpoint.host)  # noqa: PLW2901
        with closing(sock), suppress(OSError):
            sock.sendall(greeting)
            return sock.recv(16)
    return b""
