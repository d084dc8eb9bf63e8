"""Passes bytes under a key from one rank to every other rank.

The channel is a store of PyTorch's (`torch.distributed.TCPStore`): the one that torchrun serves,
which outlives every rank, or else one that rank 0 serves at the next port.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from xsp.record.rank.environment import Identity, boot

MACHINE = "machine"  # key of what tells rank 0's machine from others, since it was started
_CONNECT_S = 10.0  # PyTorch tries twice as long
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05
_PIECE = 4 << 20  # bytes; the store takes values of up to 8 MiB


class Channel(Protocol):
    """Channel through which ranks exchange bytes. No method raises."""

    @property
    def gone(self) -> bool:
        """Whether nothing that others leave arrives, so that waiting for it is in vain."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Leave a value for the other ranks."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return a value that a rank has left; None if there is none yet."""
        ...


class StoreChannel:
    """A channel by PyTorch's store.

    The store is opened when it is first used with PyTorch imported: xsp imports no framework that
    the program may not use, or may want to configure first.

    Args:
        identity: Which rank this is.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._prefix = f"xsp/{identity.run}/"
        self._store: Any = None
        self._process = os.getpid()
        self.broken = ""

    @property
    def gone(self) -> bool:
        """Whether the store is not open: it has ended, or the program has no PyTorch yet."""
        return not self.open()

    def put(self, key: str, value: bytes) -> None:
        """Leave a value for the other ranks."""
        self._tried(lambda store: store.set(self._prefix + key, value))

    def get(self, key: str) -> bytes | None:
        """Return a value that a rank has left; None if there is none yet."""
        name = self._prefix + key
        found = self._tried(lambda store: store.get(name) if store.check([name]) else None)
        return None if found is None else bytes(found)

    def open(self, *, importing: bool = False) -> bool:
        """Open the store, and return whether it is open.

        Args:
            importing: Whether to import PyTorch if the program has not.
        """
        if os.getpid() != self._process:  # a fork of the program, which has its parent's connection
            return False
        if self._store is None and not self.broken and (importing or "torch" in sys.modules):
            try:
                self._store = self._opened()
                if self._identity.leads:
                    self.put(MACHINE, boot().encode())
            except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
                self.broken = f"{type(error).__name__}: {error}".splitlines()[0]
        return self._store is not None

    def _opened(self) -> Any:
        from torch.distributed import TCPStore  # noqa: PLC0415

        mine = self._identity
        if not mine.is_told_where:
            raise ValueError("MASTER_ADDR and MASTER_PORT are not set")
        if mine.served:  # since before this process began, or no more: PyTorch would wait for it
            socket.create_connection((mine.address, mine.port), timeout=_CONNECT_S).close()
        return TCPStore(
            mine.address,
            mine.port if mine.served else mine.port + 1,
            is_master=mine.leads and not mine.served,
            timeout=timedelta(seconds=_CONNECT_S),
            wait_for_workers=False,
        )

    def _tried(self, work: Callable[[Any], Any]) -> Any:
        """Call a function with the store; None if the store is gone."""
        if not self.open():
            return None
        try:
            return work(self._store)
        except RuntimeError as error:  # of the network: what serves the store has ended
            self.broken, self._store = f"the store is gone: {error}".splitlines()[0], None
            return None


def awaited(
    channel: Channel,
    key: str,
    seconds: float,
    *,
    given_up: Callable[[], bool] = lambda: False,
) -> bytes | None:
    """Return a value as soon as a rank has left it; None after some seconds.

    Args:
        channel: Where it is left.
        key: Its key.
        seconds: How long to wait.
        given_up: Tells that waiting is in vain.
    """
    until, pause_s = time.monotonic() + seconds, _FIRST_PAUSE_S
    while (value := channel.get(key)) is None:
        if channel.gone or given_up() or time.monotonic() > until:
            return channel.get(key)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return value


def put_large(channel: Channel, key: str, value: bytes) -> None:
    """Leave a value of any size."""
    pieces = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)]
    for number, piece in enumerate(pieces):
        channel.put(f"{key}/{number}", piece)
    channel.put(key, str(len(pieces)).encode())


def get_large(channel: Channel, key: str) -> bytes | None:
    """Return a value of any size; None if it is not there, or not whole."""
    count = channel.get(key)
    if count is None:
        return None
    pieces = [channel.get(f"{key}/{number}") for number in range(int(count))]
    with suppress(TypeError):  # a piece is missing
        return b"".join(pieces)  # type: ignore[arg-type]
    return None
