"""The network: connections of Python code in, all but those to this machine refused.

Weights are random, and nothing is downloaded: what a zoo measures must not depend on what another
machine answers, or how fast.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from typing import Any

from xsp.machine import is_loopback

# With these variables Hugging Face's libraries look into their cache alone.
OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_OFFLINE_ERRORS = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
_HUB = "huggingface.co"
_RULE = "xsp measures models with random weights and downloads none"


class Refusals:
    """The connections that were refused in this process.

    Attributes:
        hosts: The hosts that were asked for, each once, in their order.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, None] = {}

    def begin(self) -> None:
        """Refuse connections from now on, for as long as the process lives."""
        for name in ("connect", "connect_ex"):
            self._guard_socket(name)
        self._guard_lookup()

    def explain(self, reason: str, traceback: str = "") -> str:
        """Return a reason with the hosts that the model tried to reach before it failed.

        Args:
            reason: Why it failed.
            traceback: The traceback, which tells of libraries that did not even try.
        """
        hosts = list(self.hosts)
        if not hosts and any(name in traceback for name in _OFFLINE_ERRORS):
            hosts = [_HUB]
        if hosts:
            return f"it tried to reach {', '.join(hosts)}, and {_RULE}: {reason}"
        return reason

    def _guard_socket(self, name: str) -> None:
        original = getattr(socket.socket, name)

        def guarded(this: socket.socket, address: Any) -> Any:
            if this.family in (socket.AF_INET, socket.AF_INET6):
                self._check(str(address[0]))
            return original(this, address)

        setattr(socket.socket, name, guarded)

    def _guard_lookup(self) -> None:
        original = socket.getaddrinfo

        # Where no name server answers, looking a name up alone takes long.
        def guarded(host: Any, *rest: Any, **named: Any) -> Any:
            self._check(host.decode() if isinstance(host, bytes) else str(host or "localhost"))
            return original(host, *rest, **named)

        setattr(socket, "getaddrinfo", guarded)  # noqa: B010  # mypy takes no assignment

    def _check(self, host: str) -> None:
        if is_loopback(host) or host in ("", "0.0.0.0", "::", socket.gethostname()):
            return
        self.hosts[host] = None
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}, to {host}: {_RULE}"
        )
