"""A pause for xsp in; how much longer it holds the program up than is noted of it, out.

The clock is read when xsp has been entered, and before xsp is left: at both times by code that lies
in no cache, after hundreds of microseconds of a program's own; and then the program's code has to
be fetched again. The machine says what that costs: work of many kinds, as a program does, is done
with pauses of the dispatcher's and without in turns, and what is not noted of the difference is
shared out among the pauses. Each stretch with pauses is compared with those before and after it,
so that slow changes of the machine's speed cancel out, and a sudden one spoils one comparison; the
more of these there are, the more stretches are compared.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp import tracer
from xsp.clock import Clock
from xsp.composition import Journal
from xsp.evaluation import ladder
from xsp.program.dispatcher import Dispatcher
from xsp.provider import ModelCall
from xsp.session import Session, Settings, schedule

_ROUNDS, _MOST_ROUNDS = 12, 60  # with pauses and without, in turns; twelve take 0.25 s
_IN_A_ROW, _SETTLING = 40, 9  # of each, and how many of these do not count
_TRIALS, _MOST_NS = 8, 1_000_000  # before every twelve, and how long most work may take
_USUAL = 25  # percentile by which they are compared: the slower ones met more than a pause
_APART_NS = 4_000  # for each pause: how wide the 95 % interval may be
_PAUSES = 2  # of each piece of work that is an evaluation: before and after

_DATA = {"a": list(range(20)), "b": {"c": "text é" * 5, "d": [1.5, None, True] * 5}}
_TEXT = "the cat sat on a mat and saw the dog run far away " * 4
_WORDS = re.compile(r"(\w+)\s+(\w+)")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_UNKNOWN = (
    "the machine was busy, or other threads of this process kept Python's lock, while it was "
    "measured what waiting for xsp costs the program beside the time that is noted, so that is not "
    "taken off: evaluations of a millisecond and less may come out some per cent too slow; measure "
    "on a quieter machine, and let such threads end before the trace is made"
)

_known: dict[type[Clock], float] = {}


def note_pause_overhead(journal: Journal, session: Session) -> None:
    """Note in the journal of a program what each of its pauses costs besides, if that matters."""
    if not journal.quick:
        return
    found = pause_overhead_ns(session.clock)
    if found is None:
        session.problem("pause-overhead", _UNKNOWN)
    else:
        journal.pause_overhead_ns = found


def pause_overhead_ns(clock: Clock) -> float | None:
    """Return how long a pause holds a program up besides what is noted of it, in ns.

    Measured once in a process, in 0.25 s, or 1.2 s on an unsteady machine. None where other threads
    or programs disturb.

    Args:
        clock: The clock by which pauses are noted.
    """
    kind = type(clock)
    if kind not in _known:
        with tracer.apart():
            found = measured(clock)
        if found is None:
            return None
        _known[kind] = found
    return _known[kind]


def measured(clock: Clock) -> float | None:
    """Return how long a pause lasts besides what is noted, in ns; None where others disturbed that.

    Args:
        clock: The clock by which pauses are noted.
    """
    work = _work()
    differences = np.empty(0)
    while len(differences) < _MOST_ROUNDS:
        if _disturbed(_times(work, clock.now, _TRIALS)):
            break
        more = _differences(clock, work)
        if more is None:
            break
        differences = np.append(differences, more)
        if (found := _median(differences)) is not None:
            return max(found, 0.0) / _PAUSES
    return None


def _differences(clock: Clock, work: Callable[[], object]) -> Floats | None:
    """Return how much longer work takes in stretches with pauses, these left out, in ns.

    None where others disturb the work, as they may from the trials on.
    """
    session, now = Session((), clock, kinds=frozenset()), clock.now
    settings = Settings(runs=2 * _ROUNDS * _IN_A_ROW, warmup=0)
    dispatcher = Dispatcher(ladder(())[:1], settings, session, schedule())
    paused: list[Ints] = []
    alone = [_times(work, now)[_SETTLING:]]
    while len(paused) < _ROUNDS and not _disturbed(alone[-1]):
        paused.append(_times(lambda: _evaluate(dispatcher, work, now), now)[_SETTLING:])
        alone.append(_times(work, now)[_SETTLING:])
    dispatcher.finish()
    if _disturbed(alone[-1]):
        return None
    noted = [(each.begin_ns, each.end_ns) for each in dispatcher.journal.pauses]
    pauses = np.array(noted, dtype=np.int64).reshape(-1, 2)  # a clock that stands still has none
    pauses = pauses[np.argsort(pauses[:, 0])]
    with_them = np.array([_usual(times - _noted(pauses, times)) for times in paused])
    without = np.array([_usual(times) for times in alone])
    found: Floats = with_them - (without[:-1] + without[1:]) / 2
    return found


def _median(differences: Floats) -> float | None:
    """Return the median; None where its 95 % interval, from rank to rank, is too wide.

    >>> _median(np.array([0.0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 90_000, 90_000]))
    7.0
    """
    ordered, middle = np.sort(differences), len(differences) / 2
    reach = math.sqrt(len(differences))
    low, high = ordered[math.floor(middle - reach)], ordered[math.ceil(middle + reach) - 1]
    return None if high - low > _PAUSES * _APART_NS else float(np.median(ordered))


def _disturbed(times: Ints) -> bool:
    """Return whether others keep the work from going on, given the end of each piece."""
    return bool(np.median(np.diff(times)) > _MOST_NS)


def _usual(times: Ints) -> float:
    """Return how long a piece of work takes that meets nothing else, given the end of each."""
    return float(np.percentile(np.diff(times), _USUAL))


def _times(work: Callable[[], object], now: Callable[[], int], often: int = _IN_A_ROW) -> Ints:
    """Do work some times, and return when each of them ended, in ns, `[often]`."""
    times = []
    for _ in range(often):
        work()
        times.append(now())
    return np.array(times, dtype=np.int64)


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
