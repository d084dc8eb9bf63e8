"""Checks whether a host, given by name or address, is this machine."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine.

    Args:
        host: Name or address, IPv6 without brackets.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "0:0:0:0:0:0:0:1", "jaeger")]
    [True, True, True, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Not every version of Python knows that ::ffff:127.0.0.1 is 127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
