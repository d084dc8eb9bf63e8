"""A pause for xsp in; how much longer it holds the program up than is noted of it, out.

The clock is read when xsp has been entered, and before xsp is left: at both times by code that lies
in no cache, after hundreds of microseconds of a program's own; and then the program's code has to
be fetched again. The machine says what that costs: work of many kinds, as a program does, is done
with pauses of the dispatcher's and without in turns, and what is not noted of the difference is
shared out among the pauses.
"""

from __future__ import annotations

import json
import pickle
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp.clock import Clock
from xsp.evaluation import ladder
from xsp.program.dispatcher import Dispatcher
from xsp.provider import ModelCall
from xsp.session import Session, Settings, schedule

_ROUNDS = 12  # with pauses and without, in turns; all of them take 0.25 s
_IN_A_ROW, _SETTLING = 40, 10  # of each, and how many of these do not count
_USUAL = 25  # percentile by which they are compared: the slower ones met more than a pause
_PAUSES = 2  # of each piece of work that is an evaluation: before and after

_DATA = {"a": list(range(20)), "b": {"c": "text é" * 5, "d": [1.5, None, True] * 5}}
_TEXT = "the cat sat on a mat and saw the dog run far away " * 4
_WORDS = re.compile(r"(\w+)\s+(\w+)")

Ints = NDArray[np.int64]

_known: dict[type[Clock], float] = {}


def pause_overhead_ns(clock: Clock) -> float:
    """Return how long a pause holds a program up besides what is noted of it, in ns.

    Measured once in a process.

    Args:
        clock: The clock by which pauses are noted.
    """
    kind = type(clock)
    if kind not in _known:
        _known[kind] = measured(clock)
    return _known[kind]


def measured(clock: Clock) -> float:
    """Measure what `pause_overhead_ns` returns."""
    session = Session((), clock, kinds=frozenset())
    settings = Settings(runs=2 * _ROUNDS * _IN_A_ROW, warmup=0)
    dispatcher = Dispatcher(ladder(())[:1], settings, session, schedule())
    work, now = _work(), clock.now
    alone, paused = [], []
    for _ in range(_ROUNDS):
        alone.append(_times(work, now))
        paused.append(_times(lambda: _evaluate(dispatcher, work, now), now))
    dispatcher.finish()
    pauses = np.array([each[1:3] for each in dispatcher.journal.pauses], dtype=np.int64)
    pauses = pauses.reshape(-1, 2)  # a clock that stands still notes none
    pauses = pauses[np.argsort(pauses[:, 0])]
    without = np.concatenate([np.diff(times) for times in alone])
    with_them = np.concatenate([np.diff(times - _noted(pauses, times)) for times in paused])
    slow, quick = (float(np.percentile(lasts, _USUAL)) for lasts in (with_them, without))
    return max(slow - quick, 0.0) / _PAUSES


def _times(work: Callable[[], object], now: Callable[[], int]) -> Ints:
    """Do work some times, and return when the last of them ended, and one before these."""
    times = []
    for _ in range(_IN_A_ROW):
        work()
        times.append(now())
    return np.array(times[_SETTLING - 1 :], dtype=np.int64)


def _evaluate(dispatcher: Dispatcher, work: Callable[[], object], now: Callable[[], int]) -> None:
    """Do work as an evaluation, as a watcher has it done."""
    found_ns, like = now(), ("work", "", ())
    made = dispatcher.again(like, (work, (), {}), found_ns)
    if made is None:
        dispatcher.run(ModelCall(work, name="work", subject="work", found_ns=found_ns))
    else:
        made[1].until_ns = now()


def _noted(pauses: Ints, times: Ints) -> Ints:
    """Return how long the pauses before each time lasted together."""
    lasted = np.append(0, np.cumsum(pauses[:, 1] - pauses[:, 0]))
    noted: Ints = lasted[np.searchsorted(pauses[:, 0], times)]
    return noted


def _work() -> Callable[[], Any]:
    """Return work that takes some 200 µs and lies in many places, as that of programs does."""
    matrix = np.arange(576, dtype=np.float64).reshape(24, 24) % 7 + np.eye(24)
    values = np.linspace(0.0, 1.0, 512)

    def work() -> None:
        np.linalg.svd(matrix)
        np.linalg.solve(matrix + 9 * np.eye(24), values[:24])
        np.fft.rfft(values)
        np.sort(values[::-1])
        np.histogram(np.exp(np.cumsum(values) / 512), 8)
        json.loads(json.dumps(_DATA))
        pickle.loads(pickle.dumps(_DATA))  # what was just made
        _WORDS.sub(r"\2 \1", _TEXT)
        zlib.compress(_TEXT.encode())

    return work
