"""This machine: the folders in which xsp keeps files of the user's, and the hosts that are it."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from platformdirs import PlatformDirs

_FOLDERS = PlatformDirs("xsp", appauthor=False)


def state_folder() -> Path:
    """Return where xsp keeps what has to outlast the program, but is no work of the user's."""
    return _FOLDERS.user_state_path


def data_folder() -> Path:
    """Return where xsp keeps what the user will look at again."""
    return _FOLDERS.user_data_path


def cache_folder() -> Path:
    """Return where xsp keeps what can be made anew."""
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
    # ::ffff:127.0.0.1 is 127.0.0.1, which not every Python knows.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
