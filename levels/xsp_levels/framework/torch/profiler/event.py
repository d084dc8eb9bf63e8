"""Events of PyTorch's profiler as columns of numbers and texts, and the anchors among them.

An anchor is an empty annotation that the profiler records, with readings of xsp's clock around it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.errors import ProviderError
from xsp.garbage import uncollected
from xsp_levels.framework.torch.profiler.flop import UNKNOWN, Formulas
from xsp_levels.framework.torch.profiler.operand import NO_OPERANDS, Operands, operands
from xsp_levels.native.alignment import PREFIX, REPEATS, AnchorEvents, AnchorReading

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
H = TypeVar("H", bound=Hashable)

MOST_EVENTS = 2_000_000  # of a recording: each takes up to 2 kB until it is a row

_NUMBERS = (
    *("start_ns", "duration_ns", "start_thread_id", "sequence_nr", "fwd_thread_id", "nbytes"),
    "device_resource_id",
)
_NO_OPERATOR = re.compile(r"\[memory\]$|cu(da)?[A-Z]\w+$")


@dataclass(frozen=True, slots=True)
class PlainEvents:
    """Kineto's results as columns: n events.

    Attributes:
        names: Every name, once.
        activities: Every type of activity, once.
        operands: What was given to an event's operator, once for all events that were given
            the like.
        indices: `[n, 3]`: name, activity and operands of each event.
        numbers: `[n, 8]`: start and duration in ns, thread, sequence number, forward
            thread, bytes, the kernel's number of the thread, and the operations of each event.
        broken: Sentences about formulas of the user's that failed.
    """

    names: tuple[str, ...]
    activities: tuple[str, ...]
    operands: tuple[Operands, ...]
    indices: Integers
    numbers: Integers
    broken: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return how many events there are."""
        return len(self.indices)

    def of(self, number: str) -> Integers:
        """Return a number of each event, as Kineto's events name it: `start_ns` and so on."""
        column: Integers = self.numbers[:, _NUMBERS.index(number)]
        return column

    def flops(self) -> Integers:
        """Return the operations by formulas of the user's, none of events of an earlier xsp."""
        known: Integers = self.numbers[:, len(_NUMBERS) :]
        return known[:, 0] if known.size else np.full(len(self), UNKNOWN)

    def by_name(self, say: Callable[[str], H], dtype: Any) -> pl.Series:
        """Return a column of `say(name)` for each event; it is called once for each name."""
        return _gathered([say(name) for name in self.names], self.indices[:, 0], dtype)

    def is_of(self, activities: Collection[str]) -> Bools:
        """Return which events are of some types: `cpu_op`, `user_annotation` and so on."""
        known = [each in activities for each in self.activities]
        return _gathered(known, self.indices[:, 1], pl.Boolean).to_numpy()

    def given(self) -> list[Operands]:
        """Return the tensors given to the operator of each event; none if they were not noted."""
        return [self.operands[at] for at in self.indices[:, 2].tolist()]

    def only(self, chosen: Bools) -> PlainEvents:
        """Return the chosen ones of the events."""
        return replace(self, indices=self.indices[chosen], numbers=self.numbers[chosen])


def _gathered(values: Sequence[Any], at: Integers, dtype: Any) -> pl.Series:
    return pl.Series(values, dtype=dtype)[at]  # `gather` is a query


@uncollected()
def plain_events(results: Any, *, detail: bool, addresses: Collection[int] = ()) -> PlainEvents:
    """Return Kineto's results as columns.

    Kineto keeps half a kilobyte for each event, in between the tensors of the model, which would
    then lie elsewhere in every step, and out of the caches: results ought to be let go of.

    Args:
        results: Kineto's results.
        detail: Whether shapes were recorded.
        addresses: Addresses of storages that operators may have been given.

    Raises:
        ProviderError: There are more events than memory is sure to hold.
    """
    events = results.events()
    if len(events) > MOST_EVENTS:
        raise ProviderError(
            f"there were {len(events):,} in a row, and {MOST_EVENTS:,} are all that memory is sure "
            "to hold; profile fewer levels, or mark smaller parts of the program as steps"
        )
    names, name = _distinct(_asked(events, "name"))
    activities, activity = _distinct(_types(events))
    indices = np.zeros((len(events), 3), np.int64)
    indices[:, 0], indices[:, 1] = name, activity
    given: tuple[Operands, ...] = (NO_OPERANDS,)
    if detail:  # most of the events are records of memory
        at = [at for at, nbytes in enumerate(_asked(events, "nbytes")) if not nbytes]
        kinds, index = _distinct(operands(results, [events[i] for i in at], addresses))
        given, indices[at, 2] = (NO_OPERANDS, *kinds), np.array(index) + 1
    numbers = np.full((len(events), len(_NUMBERS) + 1), UNKNOWN, np.int64)
    for column, which in enumerate(_NUMBERS):
        numbers[:, column] = np.fromiter(_asked(events, which), np.int64, len(events))
    formulas = Formulas(names if detail else ())
    if formulas.names:
        for row, number in enumerate(name):
            if names[number] in formulas.names:
                numbers[row, -1] = formulas.flops(events[row])
    return PlainEvents(names, activities, given, indices, numbers, tuple(formulas.broken))


def _asked(events: Sequence[Any], which: str) -> Iterator[Any]:
    # No method is bound, to be fast.
    return map(getattr(type(events[0]), which), events) if events else iter(())


def _types(events: Sequence[Any]) -> Iterable[str]:
    """Return the type of each event, which older releases of PyTorch (2.11) do not tell.

    There a record of memory and a call of CUDA are known by their names, the rest are operators.
    """
    if not events or hasattr(events[0], "activity_type"):
        return _asked(events, "activity_type")
    names = _asked(events, "name")
    return ("other" if _NO_OPERATOR.match(name) else "cpu_op" for name in names)


def _distinct(values: Iterable[H]) -> tuple[tuple[H, ...], list[int]]:
    index: dict[H, int] = {}
    found = [index.setdefault(value, len(index)) for value in values]
    return tuple(index), found


def make_anchors(now: Callable[[], int], *, repeats: int = REPEATS) -> list[AnchorReading]:
    """Make anchors on the calling thread while a profiler records."""
    from torch._C._profiler import _RecordFunctionFast  # noqa: PLC0415

    thread = threading.get_ident()
    anchor = _RecordFunctionFast(PREFIX + str(thread))
    readings = []
    for _ in range(repeats):
        before = now()
        with anchor:
            inside = now()
        readings.append(AnchorReading(thread, before, inside, now()))
    return readings


def is_anchor(events: PlainEvents) -> Bools:
    """Return which of the profiler's events are anchors."""
    return events.by_name(lambda name: name.startswith(PREFIX), pl.Boolean).to_numpy()


def find_anchors(events: PlainEvents) -> AnchorEvents:
    """Return the anchors among the profiler's events."""
    found = events.only(is_anchor(events))
    threads = found.by_name(_thread, pl.Int64).to_numpy()
    start, duration, number = map(found.of, ("start_ns", "duration_ns", "start_thread_id"))
    order = np.lexsort((threads, number, duration, start))
    start, duration = start[order], duration[order]
    return AnchorEvents(
        thread=threads[order], number=number[order], start=start, end=start + duration
    )


def _thread(name: str) -> int:
    return int(name[len(PREFIX) :]) if name.startswith(PREFIX) else 0
