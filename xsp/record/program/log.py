"""Keeps the log of a program: a flat list of events for each thread, and the meaning of numbers.

Watchers and the user's regions append to it while the program runs (`xsp.provider.watching` lists
the codes). A hook appends a code and a time and returns; nothing is interpreted.
`xsp.reading.program` makes a tree of it afterwards.

    ENTER 10, CALL 12, LAYER 13, END 15, END 16      a call from 12 to 16 that holds a layer
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic_ns
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp import tracer
from xsp.level import Kind
from xsp.provider import (
    AT,
    CALL,
    END,
    ENTER,
    KIND_BITS,
    LEAVE,
    PART,
    RAISED,
    REGION,
    WORKED,
    CallFacts,
    ModelCall,
    NamedLayer,
)

Ints = NDArray[np.int64]

PACKED_FROM = 20_000  # entries of a list, above which they are packed into 8 bytes each
MOST_KEYS = 10_000  # of calls; further ones share the number of their model's first key
MOST_KEPT = 3  # calls of a block, up to which one may be repeated afterwards
SKIPPED = "what a block that is not profiled does"  # a part that is in nobody's trace
_NO_ATTRIBUTES: Mapping[str, Any] = {}


class ThreadState(threading.local):
    """See `xsp.provider.ThreadState`; dies with its log, however long the threads live."""

    inside: Any = None
    log: Any = None
    in_turn = False  # whether an event loop's callback runs whose begin and end are logged
    begun_in = False  # whether the callback that runs began before its hook was in place


class ThreadLog:
    """The events of one thread."""

    __slots__ = (
        "append", "checked", "depth", "events", "packed", "region", "skips", "stale", "thread",
    )  # fmt: skip

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.events: list[int] = []
        self.append = self.events.append
        self.packed: list[Ints] = []
        self.depth = 0  # parts, passes and steps open
        self.region: Any = None  # the region that the last AT told of
        self.stale: FrameType | None = None
        self.checked = 0  # how often hooks had been put in place when its frames were looked at
        self.skips = False  # whether what happens is no part of the program

    def pack(self) -> None:
        """Move the events into an array; only the log's own thread may call this."""
        events = self.events
        self.packed.append(np.array(events, dtype=np.int64))
        del events[:]

    def arrays(self) -> Ints:
        """Return all entries so far."""
        rest = np.array(self.events[:], dtype=np.int64)
        return np.concatenate([*self.packed, rest])


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """A region of the user's (`xsp.span`), or a step that the user marked.

    Attributes:
        name: Its name.
        kind: Kind of span.
        parent: Number of the region around it when it was opened; 0: none.
        attributes: What the user said of it.
        stated: Whether its place in the tree is that of its context, and not of its time: it was
            opened in a task of an event loop, or in a generator.
        marked: Whether it is a step that the user marked.
        error: Class of the exception that left it; empty if none did.
        turns: Whether the log tells when its thread worked for it, and when it only waited.
    """

    name: str
    kind: Kind
    parent: int
    attributes: Mapping[str, Any]
    stated: bool
    marked: bool
    error: str = ""
    turns: bool = False


@dataclass(frozen=True, slots=True)
class LogData:
    """Contents of a log, as plain data.

    Attributes:
        threads: For each log of a thread its identifier and all entries: code, time, code, …
        calls: The facts of calls, by their number.
        names: Names with attributes, by their number less 1.
        regions: The regions, by their number less 1.
        layers: What ids of layers mean, by the number of the model that holds them.
        deaths: Ids of modules that died, with the times.
    """

    threads: tuple[tuple[int, Ints], ...]
    calls: tuple[CallFacts, ...]
    names: tuple[tuple[str, Mapping[str, Any]], ...]
    regions: tuple[RegionFacts, ...]
    layers: Mapping[int, Mapping[int, tuple[NamedLayer, ...]]]
    deaths: tuple[tuple[int, int], ...] = ()


class Log:
    """Events of a program (`xsp.provider.ProgramLog`), and the sink of the user's regions.

    Args:
        switch: Called where an outermost call begins after the present window's end.
        warn: Called with a sentence for the reader of the trace.
    """

    def __init__(self, switch: Callable[[int], None], warn: Callable[[str], None]) -> None:
        self.now = monotonic_ns
        self.local = ThreadState()
        self.until, self.layers, self.deep = 0, True, False
        self.one_thread, self.keeping = True, True
        self.region = tracer.REGION
        self.placed = 1  # how often hooks have been put in place
        self.home: int = 0  # id of the frame that the block is in
        self.boundary, self.warning = switch, warn
        self.block = object()  # tells regions of this block from others'
        self.skipping: Callable[[int], bool] = lambda thread: False
        self.keeps_all = False
        self.made = 0  # calls that were offered to be kept
        self.kept: dict[int, ModelCall] = {}
        self.backwards = 0  # backward passes so far, by which ranks agree on windows
        self._calls: dict[Hashable, int] = {}
        self.facts: list[CallFacts] = []
        self._names: dict[Hashable, int] = {}
        self._named: list[tuple[str, Mapping[str, Any]]] = []
        self._regions: list[Any] = []  # RegionFacts, once closed: with its error
        self._threads: list[ThreadLog] = []
        self._layers: dict[int, dict[int, list[NamedLayer]]] = {}
        self._deaths: list[tuple[int, int]] = []
        self.generators: dict[int, Any] = {}  # regions by the frame that opened them

    def begin_thread(self) -> ThreadLog:
        """Begin the log of the calling thread, and return it."""
        log = ThreadLog()
        self._threads.append(log)
        self.local.log = log
        if self.skipping(log.thread):
            self.skip(begins=True)
        self.one_thread = self.one_thread and len({each.thread for each in self._threads}) == 1
        return log

    def call_number(self, key: Hashable, facts: Callable[[], CallFacts]) -> int:
        """Return the number of the facts of a call; `facts` is called where the key is new."""
        number = self._calls.get(key)
        if number is None:
            made = facts()
            if len(self.facts) >= MOST_KEYS:
                alike = (made.model, made.owner, made.phase, made.gradients, "further shapes")
                if alike in self._calls:
                    return self._calls[alike]
                key = alike
            number = len(self.facts)
            self.facts.append(made)
            self._calls[key] = number
        return number

    def past_part(self, number: int, start_ns: int, end_ns: int) -> None:
        """Log a part that has ended, and in which nothing else was logged."""
        log: ThreadLog = self.local.log or self.begin_thread()
        log.append(number << KIND_BITS | PART)
        log.append(start_ns)
        log.append(END)
        log.append(end_ns)

    def amend(self, number: int, facts: CallFacts) -> None:
        """Replace the facts of a call by those that are known after it was made."""
        self.facts[number] = facts

    def died(self, ident: int) -> None:
        """Note that a module has died, whose id may be another's from now on."""
        self._deaths.append((ident, monotonic_ns()))

    def name(self, name: str, attributes: Mapping[str, Any] | None = None) -> int:
        """Return the number of a name with what is known besides, from 1."""
        key: Hashable = name if not attributes else (name, *attributes.items())
        number = self._names.get(key)
        if number is None:
            self._named.append((name, attributes or _NO_ATTRIBUTES))
            number = self._names[key] = len(self._named)
        return number

    def make(
        self,
        number: int,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Make an outermost call, and log it: for frameworks whose calls are not hot."""
        entered = self.now()
        local = self.local
        log = local.log or self.begin_thread()
        if entered >= self.until:
            self.boundary(entered)
        if self.region.get() is not log.region or self.generators:
            self.at(log, entered)
        append, now = log.append, self.now
        local.inside = append if self.layers else False
        append(log.depth << KIND_BITS | ENTER)
        append(entered)
        if len(log.events) > PACKED_FROM:
            log.pack()
        append(number << KIND_BITS | CALL)
        append(now())
        code = END
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            end = now()
            append(self.name(type(error).__name__) << KIND_BITS | RAISED)
            append(end)
            code = 0
            raise
        finally:
            if code:
                end = now()
                append(END)
                append(end)
            local.inside = None

    @contextmanager
    def part(self, number: int, code: int = PART) -> Iterator[None]:
        """Log a part of the program: what runs in the `with` block."""
        log = self.begin_part(number, code)
        try:
            yield
        except BaseException as error:
            self.end_part(log, error)
            raise
        self.end_part(log, None)

    def begin_part(self, number: int, code: int = PART, entered_ns: int = 0) -> ThreadLog:
        """Note that a part of the program begins, and return the thread's log for `end_part`.

        Args:
            number: Number of its name.
            code: What it is.
            entered_ns: When the hook was entered, which worked until now; 0: that is not noted.
        """
        log: ThreadLog = self.local.log or self.begin_thread()
        if self.region.get() is not log.region or self.generators:
            self.at(log, entered_ns)
        log.depth += 1
        if entered_ns:
            log.append(WORKED)
            log.append(entered_ns)
        log.append(number << KIND_BITS | code)
        log.append(self.now())
        return log

    def end_part(self, log: ThreadLog, error: BaseException | None, name: int = 0) -> None:
        """Note that a part ends; a name: that it turned out to be another part."""
        end = self.now()
        if error is not None and not name:
            log.append(self.name(type(error).__name__) << KIND_BITS | RAISED)
        else:
            log.append(name << KIND_BITS | END)
        log.append(end)
        log.depth -= 1

    def name_layers(self, owner: int, layers: Mapping[int, NamedLayer]) -> None:
        """Name layers by their ids in calls of one model."""
        known = self._layers.setdefault(owner, {})
        for ident, layer in layers.items():
            known.setdefault(ident, []).append(layer)

    def keep(self, number: int, call: ModelCall) -> None:
        """Keep a call, to be repeated after the block if the block makes no more than a few."""
        self.made += 1
        if self.made <= MOST_KEPT or self.keeps_all:
            self.kept[number] = call
        else:
            self.kept.clear()
            self.keeping = False

    def skip(self, *, begins: bool) -> None:
        """Leave the calling thread's work out of the program from now on, or count it again."""
        log: ThreadLog = self.local.log or self.begin_thread()
        if begins and not log.skips:
            log.skips = True
            self.begin_part(self.name(SKIPPED))
        elif not begins and log.skips:
            log.skips = False
            self.end_part(log, None)

    def open(self, span: tracer.OpenRegion) -> None:
        """Note that a region begins, on the calling thread; the tracer calls this."""
        log = self.local.log or self.begin_thread()
        frame = span.generator
        if frame is not None:
            self.generators[id(frame)] = span
        around = self._open_of(span.parent)
        facts = RegionFacts(
            span.name, span.kind, around.number if around is not None else 0,
            span.attributes, span.stated, span.marked, turns=self.local.in_turn and frame is None,
        )  # fmt: skip
        self._regions.append(facts)
        span.number = len(self._regions)
        log.append(span.number << KIND_BITS | REGION)
        log.append(self.now())
        log.region = span

    def close(self, span: tracer.OpenRegion, error: str | None) -> None:
        """Note that a region ends, on whatever thread."""
        end = self.now()
        log = self.local.log or self.begin_thread()
        log.append(span.number << KIND_BITS | LEAVE)
        log.append(end)
        if span.generator is not None:
            self.generators.pop(id(span.generator), None)
        facts = self._regions[span.number - 1]
        if error or span.marked:  # a step may get its name while it is open
            self._regions[span.number - 1] = replace(
                facts, name=span.name, attributes=span.attributes, error=error or ""
            )

    def at(self, log: ThreadLog, now_ns: int = 0) -> None:
        """Note in a thread's log in which region the calls that follow lie.

        Times of a thread never go back: a hook that logs an earlier time afterwards gives that.
        """
        raw = self.region.get()
        region = self._of_generator() if self.generators else None
        self.turn(log, raw, region, now_ns)

    def turn(self, log: ThreadLog, raw: Any, region: Any = None, now_ns: int = 0) -> None:
        """Note that a thread goes on with what lies in a region, or in the one of a context."""
        region = region or self._open_of(raw)
        log.region = raw
        log.append((region.number if region is not None else 0) << KIND_BITS | AT)
        log.append(now_ns or self.now())

    def _open_of(self, region: Any) -> Any:
        """Return the innermost region that is open, and of this block."""
        while region is not None and (region.closed or region.block is not self.block):
            region = region.parent
        return region

    def _of_generator(self) -> Any:
        """Return the region that a generator among the frames of this thread has opened."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            region = self.generators.get(id(frame))
            if region is not None and region.generator is frame:
                return region
            frame = frame.f_back
        return None

    @property
    def threads(self) -> Sequence[ThreadLog]:
        """The logs of all threads."""
        return self._threads

    def data(self) -> LogData:
        """Copy the log so far."""
        return LogData(
            threads=tuple((log.thread, log.arrays()) for log in tuple(self._threads)),
            calls=tuple(self.facts),
            names=tuple(self._named),
            regions=tuple(self._regions),
            layers={
                owner: {ident: tuple(each) for ident, each in layers.items()}
                for owner, layers in self._layers.items()
            },
            deaths=tuple(self._deaths),
        )

    def forget(self) -> None:
        """Let go of all events."""
        self._threads.clear()
        self._regions.clear()
        self._layers.clear()
        self.kept.clear()
        self.generators.clear()

    def size(self) -> int:
        """Return about how many entries the log has."""
        return sum(
            len(log.events) + sum(len(each) for each in log.packed) for log in tuple(self._threads)
        )
