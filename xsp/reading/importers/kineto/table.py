"""Makes a table with columns of numbers for each sort of event.

A text is stored once, and its number stands in the columns: a million events have a few thousand
names and shapes. Numbers are whole: what is no number is null.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, auto
from operator import attrgetter
from typing import Any

import polars as pl

from xsp.reading.importers.kineto.event import Args, Event

_LARGEST = (1 << 63) - 1
_PLAIN = r"^\d+(\.\d+)?$"
_DIGITS = re.compile(r"-?\d+$")


class Sort(Enum):
    """The sort of an event."""

    OP = auto()  # an operator
    RANGE = auto()  # a range that a person or a library marked (`record_function`)
    MODULE = auto()  # a call of a module
    PYTHON = auto()  # a call of a Python function
    LAUNCH = auto()  # a call of the runtime
    DRIVER = auto()  # a call of the driver
    KERNEL = auto()
    MEMCPY = auto()
    MEMSET = auto()
    SYNC = auto()  # a wait, as the device saw it
    MEMORY = auto()  # an allocation or a release
    OVERHEAD = auto()  # work of CUPTI or of the driver that it tells of
    MIRROR = auto()  # a range, drawn on the device
    FORWARD = auto()  # where the line from a forward operator to its backward begins
    BACKWARD = auto()  # where that line ends


# By category, in lower case, of events that last.
_LASTING: Mapping[str, Sort] = {
    "cpu_op": Sort.OP,
    "operator": Sort.OP,
    "user_annotation": Sort.RANGE,
    "python_function": Sort.PYTHON,
    "runtime": Sort.LAUNCH,
    "kernel": Sort.KERNEL,
    "mtia_ccp_events": Sort.KERNEL,
    "gpu_memcpy": Sort.MEMCPY,
    "memcpy": Sort.MEMCPY,
    "gpu_memset": Sort.MEMSET,
    "memset": Sort.MEMSET,
    "cuda_sync": Sort.SYNC,
    "xpu_sync": Sort.SYNC,
    "overhead": Sort.OVERHEAD,
    "gpu_user_annotation": Sort.MIRROR,
    **{f"{vendor}_runtime": Sort.LAUNCH for vendor in ("cuda", "xpu", "mtia", "privateuse1")},
    **{f"{vendor}_driver": Sort.DRIVER for vendor in ("cuda", "xpu", "privateuse1")},
}
_SORTS: Mapping[tuple[str, str], Sort] = {
    **{("X", category): sort for category, sort in _LASTING.items()},
    ("s", "fwdbwd"): Sort.FORWARD,
    ("f", "fwdbwd"): Sort.BACKWARD,
    ("s", "forward_backward"): Sort.FORWARD,
    ("f", "forward_backward"): Sort.BACKWARD,
}
# Known, and told by other events as well: names of tracks, the window of the recording, lines
# from calls to what they launched.
_REDUNDANT = frozenset({("X", "trace"), ("i", "")})
_REDUNDANT_PHASES = frozenset({"M", "s", "t", "f"})
_ARROW = "ac2g"  # lines from calls to what they launched, which correlation ids tell as well
_MODULE = "nn.Module: "
_MEMORY = "[memory]"

_WORK = ("correlation", "device", "stream", "context")
_OP = ("external_id", "sequence", "forward_thread")
INTEGERS: Mapping[Sort, tuple[str, ...]] = {
    Sort.OP: _OP,
    Sort.RANGE: _OP,
    Sort.MODULE: ("python_id",),
    Sort.PYTHON: ("python_id",),
    Sort.LAUNCH: ("correlation",),
    Sort.DRIVER: ("correlation",),
    Sort.KERNEL: (*_WORK, "graph", "graph_node", "registers", "shared_memory", "occupancy"),
    Sort.MEMCPY: (*_WORK, "graph", "graph_node", "bytes"),
    Sort.MEMSET: (*_WORK, "graph", "graph_node", "bytes"),
    Sort.SYNC: (*_WORK, "recorded_by"),
    Sort.MEMORY: ("memory_bytes", "address", "device_type", "device_id"),
}
_TEXTS: Mapping[Sort, tuple[str, ...]] = {
    Sort.OP: ("dims", "types"),
    Sort.RANGE: ("dims", "types"),
    Sort.KERNEL: ("grid", "block"),
}
# Attributes of a collective operation: the argument of the event, and the type.
COLLECTIVE: Mapping[str, tuple[str, Any]] = {
    "attr.collective": ("collective", pl.String),
    "attr.collective_group": ("group", pl.String),
    "attr.group_size": ("group_size", pl.Int64),
    "attr.group_ranks": ("group_ranks", pl.String),
    "attr.in_elements": ("in_elements", pl.Int64),
    "attr.out_elements": ("out_elements", pl.Int64),
    "attr.element_type": ("element_type", pl.String),
    "attr.collective_sequence": ("collective_sequence", pl.Int64),
}
_INSTANT = (Sort.MEMORY, Sort.FORWARD, Sort.BACKWARD)
_MAY_BE_COLLECTIVE = (Sort.OP, Sort.KERNEL)
_NO_ARGS = Args()
_PROBED = 100  # events of a piece in which ranks are looked for
_APART, _MOST_RANKS = 1 << 40, 1 << 20  # between the correlation ids of two ranks


def sort_of(category: str) -> Sort | None:
    """Return the sort of events that last by their category, in lower case; None if unknown."""
    return _LASTING.get(category)


@dataclass
class Texts:
    """Texts, and other values, each once; a column holds the numbers that they have here.

    Attributes:
        values: The values, by number.
    """

    values: list[Any] = field(default_factory=list)
    _numbers: dict[Hashable, int | None] = field(default_factory=lambda: {None: None})

    def numbers(self, values: Sequence[Hashable]) -> pl.Series:
        """Return the number of each value, null for None."""
        known = self._numbers
        for value in dict.fromkeys(values):
            if value not in known:
                known[value] = len(self.values)
                self.values.append(value)
        return pl.Series(list(map(known.__getitem__, values)), dtype=pl.Int64)

    def read(self, numbers: pl.Series, read: Callable[[Any], Any], dtype: Any) -> pl.Series:
        """Return the result of a function for the value of each number, null for null.

        The function is called once for each value.
        """
        known = numbers.drop_nulls().unique(maintain_order=True)
        made = pl.Series([read(self.values[number]) for number in known], dtype=dtype)
        place = pl.DataFrame({"number": known, "made": made})
        return numbers.to_frame("number").join(
            place, on="number", how="left", maintain_order="left"
        )["made"]


class Tables:
    """Columns of the events that were added.

    Attributes:
        texts: The texts that stand in the columns as numbers.
        strange: How many events are of a category that is not understood, by category.
        functions: How many calls of Python functions were left out.
        ranks: The ranks that events say they are of, by the process that they name; of files in
            which another tool brought several ranks together.
        untimed: How many events of the tables that were asked for had no sound time, by sort.
    """

    def __init__(self, *, python: bool) -> None:
        self.texts = Texts()
        self.strange: Counter[str] = Counter()
        self.functions = 0
        self.untimed: dict[Sort, int] = {}
        self.ranks: dict[Any, set[int]] = defaultdict(set)
        self._python = python
        self._parts: dict[Sort, list[pl.DataFrame]] = defaultdict(list)

    def add(self, events: list[Event]) -> None:
        """Add events to the columns."""
        if any(
            event.args is not None and event.args.rank is not None for event in events[:_PROBED]
        ):
            self._take_ranks(events)
        alike: dict[tuple[str, str | None], list[Event]] = defaultdict(list)
        for event in events:
            if event.cat != _ARROW:
                alike[event.ph, event.cat].append(event)
        for (phase, category), members in alike.items():
            key = phase, (category or "").lower()
            sort = _SORTS.get(key)
            if sort is Sort.PYTHON:
                names = _names(members)
                modules = [
                    e for e, name in zip(members, names, strict=True) if name.startswith(_MODULE)
                ]
                self._parts[Sort.MODULE].append(self._columns(Sort.MODULE, modules))
                if self._python:
                    others = [
                        e
                        for e, name in zip(members, names, strict=True)
                        if not name.startswith(_MODULE)
                    ]
                    self._parts[Sort.PYTHON].append(self._columns(Sort.PYTHON, others))
                else:
                    self.functions += len(members) - len(modules)
            elif sort is not None:
                self._parts[sort].append(self._columns(sort, members))
            else:
                self._add_another(key, members)

    def add_columns(self, sort: Sort, frame: pl.DataFrame) -> None:
        """Add events of a sort that are columns already, as `table` returns them.

        Columns that are not given are null, and others are ignored.
        """
        columns = [
            (
                frame[name]
                if name in frame.columns
                else pl.Series([None]).new_from_index(0, frame.height)
            )
            .cast(dtype)
            .alias(name)
            for name, dtype in self._columns(sort, []).schema.items()
        ]
        self._parts[sort].append(pl.DataFrame(columns))

    def add_functions(self, frame: pl.DataFrame, names: pl.Series) -> None:
        """Add calls of Python functions and modules, as columns, under these names."""
        is_module = names.str.starts_with(_MODULE)
        self.add_columns(Sort.MODULE, frame.filter(is_module))
        if self._python:
            self.add_columns(Sort.PYTHON, frame.filter(~is_module))
        else:
            self.functions += int((~is_module).sum())

    def _take_ranks(self, events: list[Event]) -> None:
        """Note which process is which rank, and tell calls of one number in several apart."""
        for event in events:
            args = event.args
            if args is None or type(args.rank) is not int:
                continue
            self.ranks[event.pid].add(args.rank)
            if type(args.correlation) is int and 0 <= args.rank < _MOST_RANKS:
                args.correlation += (args.rank + 1) * _APART

    def table(self, sort: Sort) -> pl.DataFrame:
        """Return the columns of a sort: `name`, `start_ns`, `end_ns`, `pid`, `tid` and others.

        `name` and texts are numbers in `texts`. Events without a sound time are left out, and
        counted; those that do not last have no end.
        """
        found = pl.concat([self._columns(sort, []), *self._parts.get(sort, [])])
        lasts = sort not in _INSTANT
        sound = (
            pl.col("end_ns") >= pl.col("start_ns") if lasts else pl.col("start_ns").is_not_null()
        )
        kept = found.filter(sound)
        self.untimed[sort] = found.height - kept.height
        return kept

    def collectives(self, numbers: pl.Series) -> pl.DataFrame:
        """Return attributes of collective operations; no columns if there are no such operations.

        Args:
            numbers: What the events say of a collective operation, as a number in `texts`.
        """
        if numbers.null_count() == len(numbers):
            return pl.DataFrame()
        known = numbers.drop_nulls().unique()
        said = [self.texts.values[number] for number in known]
        columns = [
            pl.Series(name, [each[at] for each in said]).cast(dtype, strict=False)
            for at, (name, (_, dtype)) in enumerate(COLLECTIVE.items())
        ]
        made = pl.DataFrame([known.alias("number"), *columns])
        joined = numbers.to_frame("number").join(
            made, on="number", how="left", maintain_order="left"
        )
        return joined.drop("number")

    def _add_another(self, key: tuple[str, str], events: list[Event]) -> None:
        phase, category = key
        memory = [event for event in events if phase == "i" and event.name == _MEMORY]
        if memory:
            self._parts[Sort.MEMORY].append(self._columns(Sort.MEMORY, memory))
        others = len(events) - len(memory)
        if others and phase not in _REDUNDANT_PHASES and key not in _REDUNDANT:
            self.strange[category or f"phase {phase or 'missing'}"] += others

    def _columns(self, sort: Sort, events: list[Event]) -> pl.DataFrame:
        args = [event.args or _NO_ARGS for event in events]
        start = nanoseconds([event.ts for event in events])
        end = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(events))
        if sort not in _INSTANT:
            end = start + nanoseconds([event.dur for event in events])
        columns = {
            "name": self.texts.numbers(_names(events)),
            "start_ns": start,
            "end_ns": end,
            "pid": integers([event.pid for event in events]),
            "tid": integers([event.tid for event in events]),
        }
        if sort in (Sort.FORWARD, Sort.BACKWARD):
            columns["flow"] = integers([event.id for event in events])
        for name in INTEGERS.get(sort, ()):
            columns[name] = integers(list(map(attrgetter(name), args)))
        for name in _TEXTS.get(sort, ()):
            texts = [text or None for text in map(bytes, map(attrgetter(name), args))]
            columns[name] = self.texts.numbers(texts)
        if sort in _MAY_BE_COLLECTIVE:
            said = [None if each.collective is None else _collective(each) for each in args]
            columns["collective"] = self.texts.numbers(said)
        return pl.DataFrame(columns)


def _names(events: list[Event]) -> list[str]:
    names = [event.name for event in events]
    return names if set(map(type, names)) <= {str} else list(map(str, names))


def _collective(args: Args) -> tuple[str | None, ...]:
    """List the facts about a collective operation, in the order of `COLLECTIVE`."""
    found = (getattr(args, name) for name, _ in COLLECTIVE.values())
    return tuple(None if value is None else str(value) for value in found)


def nanoseconds(microseconds: Sequence[Any]) -> pl.Series:
    """Return numbers of µs, as JSON has them, as whole ns: exactly, however large.

    >>> from msgspec import Raw
    >>> texts = (b"1712867402348256.789", b'"2"', b"-0.5", b"null")
    >>> nanoseconds([Raw(text) for text in texts]).to_list()
    [1712867402348256789, 2000, -500, None]
    """
    given = b"\n".join(microseconds).decode(errors="replace").split("\n")
    if len(given) != len(microseconds):  # what is no number may have lines
        given = [str(number, "utf-8", "replace") for number in microseconds]
    texts = pl.Series(given, dtype=pl.String).str.strip_chars('" ')
    parts = texts.str.split_exact(".", 1).struct.unnest()
    whole = parts["field_0"].cast(pl.Int64, strict=False)
    # One digit more than a nanosecond has, by which the rest is rounded.
    tenths = parts["field_1"].fill_null("").str.slice(0, 4).str.pad_end(4, "0")
    exact = whole * 1000 + (tenths.cast(pl.Int64, strict=False) + 5) // 10
    plain = texts.str.contains(_PLAIN) & (texts.str.len_bytes() < 25) & (whole < _LARGEST // 1001)
    odd = (~plain.fill_null(value=False)).arg_true()
    return exact if not len(odd) else exact.scatter(odd, [_odd(text) for text in texts.gather(odd)])


def integers(values: Sequence[Any]) -> pl.Series:
    """Return values as integers; null where a value is none.

    >>> integers([7, "8", "stream 9", 1.0, None, [], 1 << 70]).to_list()
    [7, 8, 9, 1, None, None, None]
    """
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(value) for value in values], dtype=pl.Int64)


def _odd(text: str) -> int | None:
    try:
        found = Decimal(text) * 1000
        return round(found) if abs(found) < _LARGEST // 4 else None
    except ArithmeticError:  # no number, or "NaN", which cannot be compared, or beyond all bounds
        return None


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and (digits := _DIGITS.search(value)):
        value = int(digits[0]) if len(digits[0]) < 20 else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and abs(value) <= _LARGEST else None
