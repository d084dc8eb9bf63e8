"""Looks, in the child of a fork, at the samples that it hands over to its parent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

PATIENCE_S = 120


def file_of_samples() -> int | None:
    """Return the descriptor of the file by which a child hands over its samples."""
    for number in os.listdir("/proc/self/fd"):
        try:
            if "xsp workers" in os.readlink(f"/proc/self/fd/{number}"):
                return int(number)
        except OSError:
            continue
    return None


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.002)


def is_sampled(function: str, often: int = 1) -> bool:
    """Return whether this child has handed over samples, and a function among them."""
    file = file_of_samples()
    if file is None:
        return False
    pieces = os.pread(file, 1 << 24, 0).split(b"\n")
    mine = [json.loads(piece) for piece in pieces if piece.startswith(b"[%d," % os.getpid())]
    named = any(place[0].endswith(function) for piece in mine for place in piece[2])
    return named and sum(len(piece[5]) for piece in mine) >= often
