"""Python's garbage collector, kept from looking where it would find next to nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1  # objects after which Python looks for garbage

_unsaid = {gc.get_threshold()}  # thresholds that are Python's or this module's, and nobody else's


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no thread of the process collect garbage meanwhile.

    For work that keeps all that it makes: looking through the objects of a program with
    `transformers` takes 0.4 s.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Let Python collect no garbage while it imports; what was made is then as old as otherwise.

    Libraries leave hardly any garbage, and looking for it takes a sixth of the time of an import.
    What the imported code itself says of the collector stays as it says.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEVER)  # neither gc.disable nor 0, which may be a target's own choice
    try:
        yield
    finally:
        made = _as_old()
        if gc.get_threshold()[0] == _NEVER:
            # Thresholds with which a full collection waits for a quarter more objects than made.
            # So it does when Python knows how many there are, which only a full collection tells.
            # Python 3.14, which has none but those that are asked for, does not look at the last
            # threshold.
            young, older, oldest = before
            if before not in _unsaid or not young * older:
                waiting = before
            else:
                later = young, older, max(oldest, made // 4 // (young * older))
                _unsaid.add(later)
                waiting = later
            gc.set_threshold(*waiting)


def _as_old() -> int:
    """Take all objects for old, so that only a full collection looks at them; return how many."""
    if gc.get_freeze_count():
        return 0  # a target's own choice
    gc.freeze()
    made = gc.get_freeze_count()
    gc.unfreeze()
    return made
