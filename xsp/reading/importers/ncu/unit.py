"""Finds the factor and the unit of xsp for a unit that Nsight Compute writes."""

from __future__ import annotations

import re
from functools import cache

NANOSECONDS = ("ns", "nsec", "nsecond")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1e9),
    **dict.fromkeys(("ms", "msec", "msecond"), 1e6),
    **dict.fromkeys(("us", "usec", "usecond", "\u00b5s", "\u03bcs"), 1e3),
    **dict.fromkeys(NANOSECONDS, 1.0),
}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_COUNTED = re.compile(
    r"([kmgtp]?)(byte|bit|hz|cycle|inst|thread|warp|block|sector|request|sample|op)s?"
)
_WORDS = {"byte": "bytes", "hz": "hz", "%": "pct"}


@cache
def unit(text: str) -> tuple[float, str]:
    """Return the factor by which a number is multiplied, and the name of the unit it then has.

    The name ends names of attributes: `ns`, `bytes`, `hz`, `pct`, what is measured per second
    with `per_s`; it is empty for counts. What is measured per block, cycle and the like has the
    unit of what is measured.

    >>> [unit(text) for text in ("Kbyte", "usecond", "%", "register/thread", "")]
    [(1000.0, 'bytes'), (1000.0, 'ns'), (1.0, 'pct'), (1.0, ''), (1.0, '')]
    >>> [unit(text) for text in ("Gbyte/second", "cycle/nsecond", "Kbyte/block")]
    [(1000000000.0, 'bytes_per_s'), (1000000000.0, 'per_s'), (1000.0, 'bytes')]
    """
    above, _, below = text.strip().lower().partition("/")
    factor, name = _part(above)
    if below in _SECONDS:
        return factor * (1e9 / _SECONDS[below]), f"{name}_per_s".lstrip("_")
    return factor / _part(below)[0], name


def _part(word: str) -> tuple[float, str]:
    if word in _SECONDS:
        return _SECONDS[word], "ns"
    counted = _COUNTED.fullmatch(word)
    if counted is None:
        return 1.0, _WORDS.get(word, "")
    return _PREFIXES[counted[1]], _WORDS.get(counted[2], "")
