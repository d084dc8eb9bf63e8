"""Translates the kernel's numbers of threads to the numbers that rows of all levels bear.

Vendors know threads by the kernel's number (`gettid`), Python by `threading.get_ident()`.
A row bears Python's number if it is known, else the kernel's number, negated: PyTorch's
backward pass for a GPU, for example, runs on a thread that Python does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_met: dict[int, int] = {}  # Python's number by the kernel's, kept after a thread ends


def meet() -> None:
    """Remember both numbers of the calling thread, which Python's list may lack later."""
    _met[threading.get_native_id()] = threading.get_ident()


def names() -> dict[int, int]:
    """Return the identifiers (`threading.get_ident()`) of Python's threads, by the kernel's."""
    alive = {t.native_id: t.ident for t in threading.enumerate() if t.native_id and t.ident}
    # In a forked child, Python 3.11 still has the parent's number for this thread.
    return _met | alive | {threading.get_native_id(): threading.get_ident()}


def named(numbers: Integers, known: Mapping[int, int]) -> Integers:
    """Return the numbers that rows bear for threads.

    Args:
        numbers: The kernel's numbers of threads.
        known: Result of `names` from a time at which the threads were running.

    >>> named(np.array([7, 8, 7]), {7: 140_000})
    array([140000,     -8, 140000])
    """
    values, places = np.unique(numbers, return_inverse=True)
    found = np.array([known.get(value, -value) for value in values.tolist()], np.int64)
    return found[places]
