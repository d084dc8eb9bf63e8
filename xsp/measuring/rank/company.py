"""Hands the measurement of one rank to rank 0, which joins the traces of all ranks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from xsp.measuring.rank.exchange import collect, hand_over
from xsp.reading.rank import Account, joined
from xsp.record.rank import Identity, StoreChannel, in_process_group
from xsp.trace import Trace

_PATIENCE_S = 600.0  # that rank 0 waits for others, whose scripts may take longer
# The same where ranks communicate, for one may wait in a collective until rank 0's process ends.
_TOGETHER_S = 60.0
_BRIEF_S = 10.0  # the same once something has failed; launchers kill after 30 s
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Company:
    """One rank of a distributed program, from its beginning to its end.

    Args:
        identity: Which rank this is.

    Attributes:
        identity: Which rank this is.
        terminated: Whether the launcher told this process to end, as another rank had failed.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._channel = StoreChannel(identity)
        self.terminated = False
        self._told = False  # to end, by a signal
        self._running = True
        self._process = os.getpid()
        self._before: dict[int, Any] = {}  # handlers of signals

    @property
    def apart(self) -> str:
        """Reason why this rank cannot be joined to the others; empty where it can."""
        return "" if self._channel.open(importing=True) else self._channel.broken

    @contextmanager
    def watching_signals(self) -> Iterator[None]:
        """Let a signal end the script, but not what comes after."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        # What is ignored, as a shell lets its background jobs ignore Ctrl-C, stays so.
        left = (None, signal.SIG_IGN)
        self._before = {number: each for number, each in before.items() if each not in left}
        self._listen()
        try:
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def script_ended(self) -> None:
        """Note that the script has ended: from now on signals only make xsp hurry."""
        self._running = False
        self._listen()

    def hand_over(self, account: Account) -> None:
        """Leave what this rank measured for rank 0."""
        hand_over(self._channel, account, hurries=lambda: bool(account.failed) or self._told)

    def join(self, account: Account, say: Callable[[str], None]) -> Trace | None:
        """Return the trace of all ranks, of which this is rank 0; None if none has a trace.

        Args:
            account: What this rank measured.
            say: Tells a person which ranks are waited for.
        """
        together = account.collectives.height > 0 or in_process_group()
        if account.failed:
            _release()

        def patience_s() -> float:
            if account.failed or self._told:
                return _BRIEF_S
            return _TOGETHER_S if together else _PATIENCE_S

        size = self.identity.size
        return joined(collect(self._channel, account, size, patience_s=patience_s, say=say), size)

    def _listen(self) -> None:
        for number in self._before:
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork of the program ends as it would without xsp
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
            return
        self._told = True
        if number == signal.SIGTERM:
            self.terminated = True
            if self._running:
                sys.exit(128 + number)
        elif self._running:
            raise KeyboardInterrupt


def _release() -> None:
    """Leave the program's group of processes, so that others do not wait for this one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() == "gloo":
        with suppress(RuntimeError, ValueError):
            distributed.destroy_process_group()
