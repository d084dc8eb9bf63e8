"""Makes a polars frame with one row per span from columns of numbers and names.

Providers return rows (`ROW_SCHEMA`), `xsp.reading.correlation` makes a tree of the rows of each
step (`xsp.matching.TREE_SCHEMA`), and `xsp.reading.merge` one trace of all trees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import polars as pl

from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.text import writable

KIND = pl.Enum([kind.value for kind in Kind])


class Provenance(StrEnum):
    """Origin of a row, which decides the pass that its latency is taken from (`PASS`)."""

    RECORDED = "recorded"  # a provider saw it begin and end
    MARKER = "marker"  # a range that a library announces; recorded on the kernel level
    # The others are made by `xsp.reading.correlation`:
    ENDED_BY_LAUNCH = "ended_by_launch"  # only the beginning was seen; ends with its last launch
    DERIVED = "inferred"  # made of the backward operators in the row
    REPLAYED = "replayed"  # made of the nodes of a CUDA graph in the row


PROVENANCE = pl.Enum([provenance.value for provenance in Provenance])

# One row per span. `ATTRIBUTE`-prefixed columns may follow, of any type.
ROW_SCHEMA: dict[str, Any] = {
    "kind": KIND,
    "name": pl.String,
    "start_ns": pl.Int64,  # CLOCK_MONOTONIC
    "end_ns": pl.Int64,  # null: the row ends with the last launch inside (`correlate`)
    "thread": pl.Int64,  # threading.get_ident(); null on a device
    "device": pl.Int32,
    "stream": pl.Int64,
    "correlation_id": pl.Int64,
    "sequence": pl.Int64,  # autograd sequence number, null where there is none
    "forward_thread": pl.Int64,  # thread of the forward operator, for backward ones
    "id": pl.Int64,  # the provider's own id of the span, for `parent_id` of other rows
    "parent_id": pl.Int64,  # id of the parent; 0: the root; null: the parent is found by time
    "uncertainty_ns": pl.Int64,  # by how much start and end may be off; null: they are exact
    "duration_ns": pl.Int64,  # of a row without start and end, which is placed by order
    "inside": pl.String,  # pattern of names of the operators that such a row can lie in
    "provenance": PROVENANCE,  # how the row came to be; null from a provider: recorded
}


# One row per sample of what a thread ran. All samples stand for equally much time.
SAMPLE_SCHEMA: dict[str, Any] = {
    "time_ns": pl.Int64,  # CLOCK_MONOTONIC
    "thread": pl.Int64,  # threading.get_ident()
    "function": pl.String,  # the innermost function: qualified name
    "file": pl.String,  # of a function without source, where it was called
    "line": pl.Int64,
    # The calls around it, the outermost first, as JSON: [[function, file, line it was at], ...];
    # null: not known. Many samples have the same ones, and a text is kept once for all of them.
    "callers": pl.String,
}


class Account(StrEnum):
    """What the operating system charges to a thread while it runs spans."""

    WATCHED = "watched"  # the thread was watched from start to end; `cause`: a `Watched`
    RUNNABLE = "runnable"  # ns in which it could have run, and waited for a processor
    BLOCKED = "blocked"  # ns in which it waited for something else; `cause`: the system call
    WOKEN = "woken"  # a blocked thread was woken; `cause`: the thread, process or interrupt
    PREEMPTED = "preempted"  # it had to give way to another thread
    MIGRATION = "migration"  # it went on on another processor
    PAGE_FAULT = "page_fault"  # it touched a page that memory did not have mapped
    MAJOR_FAULT = "major_fault"  # of these one that waited for a disk
    READ = "read_bytes"  # bytes that a system call read
    WRITTEN = "written_bytes"
    # Counted by the processor, sampled: each account stands for as many as its amount.
    CYCLES = "cycles"
    INSTRUCTIONS = "instructions"
    CACHE_MISSES = "cache_misses"  # of the last level


class Watched(StrEnum):
    """What is known of a watched thread; accounts of other sorts are unknown, not zero."""

    SWITCHES = "switches"  # runnable, blocked, preempted, migration
    WAKERS = "wakers"  # woken; without them a wait for a processor after a block is blocked too
    FAULTS = "faults"  # page_fault, of code of the program alone if major_fault is unknown
    CALLS = "calls"  # read_bytes, written_bytes, and causes of blocked
    COUNTERS = "counters"  # cycles, instructions, cache_misses


# What the operating system charges to the spans around it, and is no span itself.
ACCOUNT_SCHEMA: dict[str, Any] = {
    "start_ns": pl.Int64,  # CLOCK_MONOTONIC
    "end_ns": pl.Int64,  # equal to start_ns: a moment
    "thread": pl.Int64,  # as in rows of spans
    "thread_name": pl.String,  # `pt_data_worker 1234` for a process that this one started
    "what": pl.Enum([account.value for account in Account]),
    "cause": pl.String,
    "amount": pl.Float64,  # ns, bytes, or how often
    # On which a runnable or blocked thread goes on, or a watched one is first; null: not known.
    "processor": pl.Int32,
    # Whether all of it lies where it says; otherwise it is the sum over a visit, which says
    # something of steps only.
    "exact": pl.Boolean,
}

# One row per value that a monitor read. A value that nobody gave has no row.
READING_SCHEMA: dict[str, Any] = {
    "time_ns": pl.Int64,  # CLOCK_MONOTONIC of the value
    "since_ns": pl.Int64,  # begin of the time it averages over; null: a counter, or a moment's
    "device": pl.Int32,  # as CUDA or HIP number them; -1: the host
    "metric": pl.String,  # ends in its unit: `energy_j`
    "value": pl.Float64,
}

ATTRIBUTE = "attr."

_DEFAULTS = {"provenance": Provenance.RECORDED.value}


# What makes it impossible to place a row. A key ends the sentence "2 of 9 rows ...".
_LAST = [kind.value for kind in Kind if kind.order >= Kind.LAUNCH.order]
_NO_START, _NO_END = pl.col("start_ns").is_null(), pl.col("end_ns").is_null()
_DEFECTS: Mapping[str, pl.Expr] = {
    "have no kind": pl.col("kind").is_null(),
    "have no name": pl.col("name").is_null(),
    "have an end_ns, but no start_ns: state both, or neither and a duration_ns": (
        _NO_START & ~_NO_END
    ),
    "have no start_ns, so that duration_ns and inside must say where to place them; leave out what "
    "cannot be placed, and count it in Records.dropped": (
        _NO_START & (pl.col("duration_ns").is_null() | pl.col("inside").is_null())
    ),
    "have a start_ns, but no end_ns: only kinds of span that launch others can do without": (
        ~_NO_START & _NO_END & pl.col("kind").is_in(_LAST)
    ),
    "end before they begin: take both times from one clock, and convert them alike": (
        pl.col("end_ns") < pl.col("start_ns")
    ),
    "have a duration_ns below 0": pl.col("duration_ns") < 0,
}

SpanRows = pl.DataFrame
Samples = pl.DataFrame
Accounts = pl.DataFrame
Readings = pl.DataFrame


def span_rows(columns: Mapping[str, Any]) -> SpanRows:
    """Return rows with every column of `ROW_SCHEMA`; columns that are not given are null.

    Args:
        columns: `kind`, `name`, `start_ns` and `end_ns` (sequences or arrays of
            one length n), any other column of `ROW_SCHEMA`, and attributes under
            names that begin with `attr.`. A scalar stands for n equal values.

    Raises:
        ProviderError: A column is missing, unknown, or of the wrong type; or a row cannot be
            placed in a tree (see `checked`).
    """
    unknown = [c for c in columns if c not in ROW_SCHEMA and not c.startswith(ATTRIBUTE)]
    missing = [c for c in ("kind", "name", "start_ns", "end_ns") if c not in columns]
    if unknown or missing:
        raise ProviderError(f"span rows: missing columns {missing}, unknown columns {unknown}")
    try:
        try:
            frame = _frame(columns)
        except UnicodeEncodeError:  # some user's name, or a file's, is not Unicode
            frame = _frame(writable(columns))
        return checked(frame)
    except pl.exceptions.PolarsError as error:
        raise ProviderError(f"span rows: {error}") from error


def list_column(
    values: Sequence[Hashable], dtype: Any, form: Callable[[Any], Any] | None = None
) -> pl.Series:
    """Return a column of lists; each distinct one is made once, as polars is slow at that.

    Args:
        values: For each row a tuple, whose items may be tuples in turn, or None.
        dtype: Data type of the column.
        form: Returns the list for a value; None: tuples become lists.
    """
    index: dict[Hashable, int] = {}
    rows = [index.setdefault(value, len(index)) for value in values]
    return pl.Series([(form or _as_lists)(value) for value in index], dtype=dtype).gather(rows)


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value


@functools.cache
def no_rows() -> SpanRows:
    """Return zero rows of the right schema; most providers have none of most visits."""
    return pl.DataFrame(schema=ROW_SCHEMA)


def concat_rows(frames: list[SpanRows]) -> SpanRows:
    """Return the rows of all frames; an attribute is null in rows of frames without it."""
    frames = [frame for frame in frames if frame.height]
    if len(frames) < 2:
        return frames[0] if frames else no_rows()
    return pl.concat(frames, how="diagonal_relaxed")


def _frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    """Return a frame of columns; of a visit there are few rows, so no query is worth its cost."""
    given = {
        name: values
        if isinstance(values, pl.Series)
        else pl.Series(name, ([values] if _is_scalar(values) else values))
        for name, values in columns.items()
    }
    lengths = [len(given[name]) for name in columns if not _is_scalar(columns[name])]
    rows = lengths[0] if lengths else 1
    whole = [
        (given[name] if name in given else pl.Series(name, [_DEFAULTS.get(name)], dtype=dtype))
        .cast(dtype)
        .alias(name)
        for name, dtype in ROW_SCHEMA.items()
    ]
    whole += [given[name].alias(name) for name in given if name.startswith(ATTRIBUTE)]
    scalar = {name for name in (*ROW_SCHEMA, *columns) if _is_scalar(columns.get(name))}
    return pl.DataFrame(
        [each.new_from_index(0, rows) if each.name in scalar else each for each in whole]
    )


def _is_scalar(values: Any) -> bool:
    return isinstance(values, str) or not hasattr(values, "__len__")


def checked(rows: SpanRows) -> SpanRows:
    """Return the rows, if each of them can be placed in a tree.

    Raises:
        ProviderError: They are no frame with the columns of `ROW_SCHEMA`; or a row has no kind or
            no name, ends before it begins, or has no time and may not do without.
    """
    if not isinstance(rows, pl.DataFrame):
        raise ProviderError(f"span rows: a {type(rows).__name__} is no frame; span_rows makes one")
    schema = rows.schema
    wrong = [name for name, dtype in ROW_SCHEMA.items() if schema.get(name) != dtype]
    if wrong:
        raise ProviderError(
            f"span rows: columns {wrong} are missing, or not of the type of ROW_SCHEMA; make the "
            "frame with span_rows"
        )
    # Tell, without a query, whether all rows have kind, name and an end after the start.
    if any(rows[name].null_count() for name in ("kind", "name", "start_ns", "end_ns")):
        all_timed = False
    else:
        untold = rows["duration_ns"].null_count() == rows.height
        all_timed = untold and bool((rows["end_ns"] >= rows["start_ns"]).all())
    if all_timed:
        return rows
    found = rows.select(mask.fill_null(value=False).alias(what) for what, mask in _DEFECTS.items())
    for column in found:
        if column.any():
            at = int(column.arg_max() or 0)
            raise ProviderError(
                f"span rows: {int(column.sum())} of {rows.height} rows (the first: "
                f"{rows['kind'][at]} {rows['name'][at]}, index {at}) {column.name}"
            )
    return rows
