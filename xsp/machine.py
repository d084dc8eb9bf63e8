"""This machine: the user's folders for xsp's files, and whether a host's name is this machine's."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from platformdirs import PlatformDirs

_FOLDERS = PlatformDirs("xsp", appauthor=False)


def state_folder() -> Path:
    """Return the folder of files that outlast the program and are no work of the user's."""
    return _FOLDERS.user_state_path


def data_folder() -> Path:
    """Return the folder of files that the user will look at again."""
    return _FOLDERS.user_data_path


def cache_folder() -> Path:
    """Return the folder of files that xsp can make anew."""
    return _FOLDERS.user_cache_path


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
