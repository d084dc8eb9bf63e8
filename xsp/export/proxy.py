"""The proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), if it is for us."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from xsp.export.endpoint import GRPC, Endpoint, is_loopback


@dataclass(frozen=True, slots=True)
class Proxy:
    """What stands between us and an endpoint.

    Attributes:
        host: Its name or address.
        port: Its port.
        headers: What it wants to be told.
    """

    host: str
    port: int
    headers: dict[str, str] = field(repr=False)


def proxy(endpoint: Endpoint) -> Proxy | None:
    """Return the proxy to reach an endpoint through, None for the direct way.

    There is none on the way to this machine itself.

    Raises:
        ValueError: The variable holds no address.
    """
    named = getproxies()
    # gRPC looks for a variable of its own first.
    address = named.get("grpc") if endpoint.protocol == GRPC else None
    address = address or named.get("https" if endpoint.secure else "http")
    if not address or is_loopback(endpoint.host) or proxy_bypass(endpoint.address):
        return None
    parts, port = _split(address)
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    return Proxy(parts.hostname or "", port, headers)


def _split(address: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port or 80
        (parts.hostname or "").encode("idna")  # as making a connection does it
    except ValueError:
        # What Python says of it may hold a password.
        raise ValueError("HTTP_PROXY or HTTPS_PROXY makes no sense: http://host:port") from None
    return parts, port
