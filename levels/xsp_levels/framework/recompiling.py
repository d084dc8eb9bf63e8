"""Says what a compiler was told anew: the reason why it compiled a function again."""

from __future__ import annotations

from collections.abc import Sequence

REASON = "recompile_reason"


def changed(before: Sequence[str], now: Sequence[str]) -> str:
    """Word the first difference between the arguments of two compilations.

    >>> changed(["float32 4x8", "2"], ["float32 6x8", "2"])
    'float32 4x8 became float32 6x8'
    >>> changed(["4x8"], ["4x8"])
    'other types, settings or Python values'
    """
    if len(before) != len(now):
        return f"{len(before)} arguments became {len(now)}"
    for old, new in zip(before, now, strict=True):
        if old != new:
            return f"{old} became {new}"
    return "other types, settings or Python values"
