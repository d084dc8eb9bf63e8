"""Lets one measurement at a time run in a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from xsp.errors import MeasurementError


class _Claim:
    """The lock that a measurement holds, and what is being measured, in words for a message."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.what = ""


_claim = _Claim()
if hasattr(os, "register_at_fork"):  # the child of a fork measures nothing
    os.register_at_fork(after_in_child=_claim.__init__)  # type: ignore[misc]


@contextmanager
def exclusively(what: str) -> Iterator[None]:
    """Let nothing else be measured in this process during a `with` block.

    Args:
        what: Name of the measurement, for the message that another one gets.

    Raises:
        MeasurementError: Something is being measured already.
    """
    with if_alone(what) as alone:
        if not alone:
            raise MeasurementError(
                f"Another measurement runs in this process ({_claim.what}). End it first, or mark "
                "parts of it with xsp.span."
            )
        yield


@contextmanager
def if_alone(what: str) -> Iterator[bool]:
    """Yield whether nothing else is being measured; if so, keep others out during the block."""
    claim = _claim
    alone = claim.lock.acquire(blocking=False)
    if alone:
        claim.what = what
    try:
        yield alone
    finally:
        if alone and claim.lock.locked():  # not in the child of a fork
            claim.lock.release()
