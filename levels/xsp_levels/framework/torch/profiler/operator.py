"""Records operators by PyTorch's CPU profiler, and makes a row of kind op of each."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from xsp.clock import Clock, SystemClock
from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.memory import (
    Allocations,
    memory_columns,
    no_allocations,
    sorted_allocations,
)
from xsp_levels.framework.torch.profiler.event import (
    Bools,
    PlainEvents,
    find_anchors,
    is_anchor,
    make_anchors,
    plain_events,
)
from xsp_levels.framework.torch.profiler.flop import UNKNOWN
from xsp_levels.framework.torch.profiler.kineto import KinetoRecording, deprived
from xsp_levels.framework.torch.profiler.operand import operand_columns
from xsp_levels.native import thread
from xsp_levels.native.alignment import (
    Alignment,
    AnchorReading,
    Integers,
    align,
)

_OPERATORS = frozenset({"cpu_op", "user_annotation"})
_MEMORY = "[memory]"
_BACKWARD = "backward"
_FUSED = re.compile(r"(?:graph_\d+_)?cpp_fused_(?P<operators>\w+)_\d+")
# What libraries do on threads of their own, such as gloo:all_reduce.
_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):([a-z_]+)")
ENGINE = "autograd::engine::"  # names of the engine's spans, in which all backward operators run

_RIVAL = (
    "operators were recorded only until torch.profiler was started: there can be only one "
    "profiler in a process; end it before xsp measures"
)
_LOST = "the profiler's operators cannot be placed in time: it recorded none of xsp's anchors"
_DEPRIVED = (
    "from now on torch.profiler sees no kernels in this process: before PyTorch 2.15 it keeps what "
    "xsp's kernel level needs, once it has run; measure in a process of its own with xsp profile, "
    "or update PyTorch"
)
_FORKED = "operators were not recorded: the process was forked while they were"
_ELSEWHERE = (
    "operators were not recorded: recording ended on another thread than it began on, and with "
    "memory, or in an old PyTorch, it belongs to one thread; measure on one thread"
)
_ONE_THREAD_DETAIL = (
    "shapes and memory were recorded on one Python thread only: PyTorch watches memory nowhere else"
)
_ONE_THREAD = (
    "operators on other Python threads were not recorded: this PyTorch profiles one thread only; "
    "a newer one profiles all"
)


@dataclass(frozen=True, slots=True)
class OperatorRecords:
    """The profiler's events, uninterpreted.

    Attributes:
        handle: Kineto's results as columns; None if nothing was recorded.
        readings: The measurement's clock around the anchors among the events.
        detail: Whether shapes and memory were recorded.
        warnings: Sentences about what could not be recorded, and why.
        notes: Sentences about how it was recorded.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        fused: Operators that torch.compile made one kernel of, by the kernel's name.
    """

    handle: PlainEvents | None
    readings: tuple[AnchorReading, ...] = ()
    detail: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    threads: Mapping[int, int] = field(default_factory=dict)
    fused: Mapping[str, str] = field(default_factory=dict)


class OperatorRecorder:
    """Records every operator of the process between `start` and `stop`.

    With detail, shapes and memory are recorded as well, but only on the thread that calls
    `start` and in the backward passes of that thread; the same thread must call `stop`.
    If the user starts a profiler in the meantime, the recording ends.
    """

    def __init__(self) -> None:
        self._recording: KinetoRecording | None = None
        self._now: Callable[[], int] = SystemClock.now
        self._readings: list[AnchorReading] = []
        self._warnings: dict[str, None] = {}  # an ordered set
        self._detail = False
        self._results: Any = None  # Kineto's, between `disarm` and `stop`
        self._threads: Mapping[int, int] = {}

    def start(self, clock: Clock, detail: bool, *, kernels: bool = False) -> None:
        """Begin to record; if that is impossible, the records of `stop` say why.

        Args:
            clock: The measurement's clock.
            detail: Whether shapes and memory are recorded.
            kernels: Whether the kernel level needs CUPTI in this process.
        """
        self._readings, self._warnings, self._results = [], {}, None
        self._threads = {}
        self._now, self._detail = clock.now, detail
        try:
            self._recording = KinetoRecording(
                self._give_way, self._give_up, detail=detail, kernels=kernels
            )
        except RuntimeError as error:
            self._warnings[f"operators were not recorded: {error}"] = None
            return
        self._readings += make_anchors(self._now)

    def anchor_thread(self) -> None:
        """Make an anchor on the calling thread, which tells the profiler's number of the thread."""
        recording = self._recording
        if recording is None or threading.get_ident() == recording.thread:
            return
        thread.meet()
        if recording.one_thread:
            self._warnings[_ONE_THREAD_DETAIL if self._detail else _ONE_THREAD] = None
            return
        self._readings += make_anchors(self._now, repeats=1)

    def disarm(self) -> None:
        """End the recording now; `stop` returns the records later."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self._threads = thread.names()
        if recording.may_end_here():
            try:
                self._readings += make_anchors(self._now)
            finally:
                self._results = recording.end()
        else:
            recording.strand()
            self._warnings[_ELSEWHERE] = None

    def stop(self, addresses: Collection[int] = ()) -> OperatorRecords:
        """End the recording, unless `disarm` has, and return the records.

        Args:
            addresses: Addresses of storages of parameters that operators may have been given.
        """
        self.disarm()
        results, self._results = self._results, None
        events = None
        if results is not None:
            try:
                events = plain_events(results, detail=self._detail, addresses=addresses)
            except Exception as error:  # noqa: BLE001  other recorders have records, too
                self._warnings[f"operators were not recorded: {error}"] = None
        if events is not None:
            self._warnings |= dict.fromkeys(events.broken)
        names = events.names if events is not None else ()
        fused = {name: found for name in names if (found := source_operators(name)) is not None}
        return OperatorRecords(
            handle=events,
            readings=tuple(self._readings),
            detail=self._detail,
            warnings=tuple(self._warnings),
            notes=(_DEPRIVED,) if deprived() else (),
            threads=self._threads,
            fused=fused,
        )

    def _give_way(self) -> None:
        self._warnings[_RIVAL] = None
        self.disarm()

    def _give_up(self) -> None:
        self._recording = None
        self._warnings[_FORKED] = None


def source_operators(kernel: str) -> str | None:
    """Return the operators that Inductor fused into a C++ kernel, which the kernel's name lists.

    Inductor joins the names of operators, sorted, with underscores, which the names themselves
    contain. None where a name can be read in several ways, or in none.

    >>> source_operators("graph_0_cpp_fused_add_native_layer_norm_2")
    'aten.add, aten.native_layer_norm'
    """
    fused = _FUSED.fullmatch(kernel)
    ways = _splits(fused["operators"], "") if fused else ()
    return ", ".join(f"aten.{name}" for name in ways[0]) if len(ways) == 1 else None


@lru_cache(maxsize=1 << 14)
def _splits(names: str, before: str) -> tuple[tuple[str, ...], ...]:
    """Return up to two ways to read joined names, sorted and each once, that follow `before`."""
    if not names:
        return ((),)
    ends = [i for i, letter in enumerate(names) if letter == "_"] + [len(names)]
    ways = [
        (name, *more)
        for end in ends
        if (name := names[:end]) > before and name in _operators()
        for more in (_splits(names[end + 1 :], name) if end < len(names) else ((),))
    ]
    return tuple(ways[:2])


@lru_cache(maxsize=1)
def _operators() -> frozenset[str]:
    import torch  # noqa: PLC0415

    names = (name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def operator_rows(
    records: OperatorRecords, modules: Mapping[int, tuple[str, ...]] | None = None
) -> SpanRows:
    """Return a row per operator and per annotation of the user's.

    A thread that made no anchor gets the number that the rows of other levels bear. Operators
    that had not ended when the recording ended get the end of the recording.

    Args:
        records: What was recorded.
        modules: Paths of the modules that a storage of parameters belongs to, by its address.

    Raises:
        ProviderError: The profiler recorded operators but no anchors, so no time is known.
    """
    events = records.handle
    if not events:
        return no_rows()
    alignment, threads = _aligned(records, events)
    operators = events.only(events.is_of(_OPERATORS) & ~is_anchor(events))
    if not operators:
        return no_rows()
    columns = _columns(operators, alignment=alignment, threads=threads)
    columns |= _collectives(operators, columns["thread"])
    if records.fused:
        columns["attr.source_ops"] = operators.by_name(records.fused.get, pl.String)
    if records.detail:
        columns |= operand_columns(operators.given(), modules or {})
        flops = pl.Series(operators.flops())
        if (flops != UNKNOWN).any():
            columns["attr.flops"] = flops.set(flops == UNKNOWN, None)
        memory = _allocations(events, alignment=alignment, threads=threads)
        columns |= memory_columns(memory, columns["start_ns"], columns["end_ns"], columns["thread"])
    return span_rows(columns)


def allocations(records: OperatorRecords) -> Allocations:
    """Return the recorded allocations and releases of memory."""
    events = records.handle
    if not events or not records.detail:
        return no_allocations()
    alignment, threads = _aligned(records, events)
    return _allocations(events, alignment=alignment, threads=threads)


def _aligned(records: OperatorRecords, events: PlainEvents) -> tuple[Alignment, dict[int, int]]:
    """Return how times are converted, and rows' numbers of threads by the profiler's numbers."""
    seen = find_anchors(events)
    alignment = align(records.readings, seen)
    if alignment is None:
        raise ProviderError(_LOST)
    numbers, first = np.unique(events.of("start_thread_id"), return_index=True)
    system_threads = events.of("device_resource_id")[first].tolist()
    threads = {
        number: records.threads.get(system_thread, -system_thread)
        for number, system_thread in zip(numbers.tolist(), system_threads, strict=True)
    }
    return alignment, threads | seen.threads()


def _columns(
    operators: PlainEvents, *, alignment: Alignment, threads: dict[int, int]
) -> dict[str, Any]:
    start, duration = operators.of("start_ns"), operators.of("duration_ns")
    thread = _python_threads(operators.of("start_thread_id"), threads)
    sequence, forward = operators.of("sequence_nr"), operators.of("fwd_thread_id")
    engine = operators.by_name(lambda name: name.startswith(ENGINE), pl.Boolean).to_numpy()
    # Whether each interval is an outer one or lies in one on its thread.
    end = start + duration
    outer = engine | (forward > 0)
    backward = outer.copy()
    for each in np.unique(thread[backward]):
        rows, outers = np.flatnonzero(thread == each), np.flatnonzero(outer & (thread == each))
        outers = outers[np.argsort(start[outers], kind="stable")]
        reach = np.maximum.accumulate(end[outers])
        latest = np.searchsorted(start[outers], start[rows], "right") - 1
        backward[rows] |= (latest >= 0) & (end[rows] <= reach[latest])

    def present(values: Integers, known: Bools) -> pl.Series:
        return pl.Series(values).set(pl.Series(~known), None)

    return {
        "kind": Kind.OP.value,
        "name": operators.by_name(str, pl.String),
        "start_ns": alignment.convert(start),
        "end_ns": alignment.convert(start + duration),
        "thread": thread,
        "sequence": present(sequence, sequence >= 0),
        "forward_thread": present(_python_threads(forward, threads), forward > 0),
        "attr.phase": pl.Series([None, _BACKWARD], dtype=pl.String)[backward.astype(int)],
    }


def _collectives(operators: PlainEvents, thread: Integers) -> dict[str, pl.Series]:
    """Return which operators are collectives; the root holds those on a library's threads."""

    def collective(name: str) -> str | None:
        found = _COLLECTIVE.fullmatch(name)
        return found and found[1].replace("_", "")

    operations = operators.by_name(collective, pl.String)
    if operations.null_count() == len(operations):
        return {}
    of_library = operations.is_not_null() & pl.Series(thread < 0)
    parents = pl.Series([None, 0], dtype=pl.Int64).gather(of_library.cast(pl.Int64))
    return {"parent_id": parents, "attr.collective": operations}


def _python_threads(numbers: Integers, threads: dict[int, int]) -> Integers:
    distinct, at = np.unique(numbers, return_inverse=True)
    known = [threads.get(number, -number) for number in distinct.tolist()]
    return np.array(known, np.int64)[at]


def _allocations(
    events: PlainEvents, *, alignment: Alignment, threads: dict[int, int]
) -> Allocations:
    changes = events.only(events.by_name(_MEMORY.__eq__, pl.Boolean).to_numpy())
    return sorted_allocations(
        alignment.convert(changes.of("start_ns")),
        changes.of("nbytes"),
        thread=_python_threads(changes.of("start_thread_id"), threads),
        threads=frozenset(threads[each] for each in np.unique(events.of("start_thread_id"))),
    )
