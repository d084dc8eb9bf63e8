"""Makes rows of steps, operators, ranges and launches on the host's threads.

A thread's number is its line's. What XPlane records on the host is of five sorts:

* a call that has a correlation id is a launch: of CUDA or HIP, in old files named by its kernel;
* an operator of TensorFlow (`scope/name:Type`), or of XLA: on a CPU with the stat `hlo_op`, on a
  GPU a range with the name of an operator of which kernels say that they are;
* a call of a Python function is an operator, where it is read at all;
* a range with a number of a step (stat `step_num`) is a step;
* all other ranges are calls, of the runtime or the user's own: the file does not tell which.
"""

from __future__ import annotations

import re
from array import array

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.reading.importers.reading import each_once
from xsp.reading.importers.xplane.event import PYTHON, LeftOut
from xsp.text import call_name, short_name

_TENSORFLOW_OP = re.compile(r"^(?P<scope>[^:\s]+):(?P<type>[A-Z_]\w*)$")
_JAX_PROGRAM = r"^(?:jit|pjit|pmap|xla_computation)_"  # how JAX begins the names of programs
_END = "end: "  # with the name of an operator: that the operator ended
_THUNKS = "GpuExecutable::ExecuteThunks"  # the range in which XLA launches kernels
_LAUNCH = pl.col("correlation_id").is_not_null()
_IS_STEP = pl.col("step_num").is_not_null() & (pl.col("end_ns") > pl.col("start_ns"))


def host_rows(
    events: pl.DataFrame, hlo_ops: frozenset[str], left: LeftOut
) -> tuple[SpanRows, SpanRows]:
    """Return the rows of the host's threads, and the steps, which are not among the rows.

    Args:
        events: Events of all host planes, and `thread`, the number of the thread.
        hlo_ops: Names of the operators that kernels say they are of.
        left: Counts the marks that are left out.
    """
    steps = _steps(events)
    of_xla = pl.when(pl.col("name").is_in(hlo_ops)).then("name")
    events = _one_number(events).with_columns(hlo_op=pl.coalesce("hlo_op", of_xla))
    events = events.with_columns(asker=pl.Series(askers(events)), row=pl.int_range(pl.len()))
    # A step is the root of its step, and rows state that as 0.
    number = pl.when(_IS_STEP).then(0).otherwise(pl.col("row") + 1)
    numbers = events.select(asker="row", parent=number)
    events = events.join(numbers, on="asker", how="left", maintain_order="left")
    instant = pl.col("start_ns") == pl.col("end_ns")
    ends = pl.col("name").str.starts_with(_END)
    tensorflow = pl.col("name").str.contains(_TENSORFLOW_OP.pattern)
    made = pl.col("hlo_op").is_not_null() | tensorflow | pl.col("name").str.starts_with(PYTHON)
    mark = events.select(((instant & ~made) | ends) & ~_LAUNCH).to_series()
    # Tell marks that say what is known: that work was handed over (`asker`), or has ended.
    handed = pl.col("_p").is_not_null() | pl.col("_c").is_not_null() | (pl.col("name") == STOP)
    is_read = handed | pl.col("name").str.starts_with(_END)
    left.marks.update(events.filter(mark & ~is_read)["name"].to_list())
    return _rows(events.filter(~mark & ~_IS_STEP)), steps


def _rows(events: pl.DataFrame) -> SpanRows:
    if not events.height:
        return no_rows()
    named = {name: _described(name) for name in events["name"].unique().to_list()}
    kinds, names, scopes = (
        events["name"].replace_strict(
            {name: each[part] for name, each in named.items()}, return_dtype=pl.String
        )
        for part in range(3)
    )
    frame = events.with_columns(kind_=kinds, name_=names, scope_=scopes)
    kind = (
        pl.when(_LAUNCH)
        .then(pl.lit(Kind.LAUNCH.value))
        .when(pl.col("hlo_op").is_not_null())
        .then(pl.lit(Kind.OP.value))
        .otherwise("kind_")
    )
    frame = frame.with_columns(kind_=kind)
    op = pl.col("kind_") == Kind.OP.value
    launch_name = each_once(events["name"], _launch_name)
    is_asker = pl.col("row").is_in(events["asker"].unique().implode())
    frame = frame.with_columns(
        name_=pl.when(_LAUNCH).then(launch_name).when(op).then("name_").otherwise("name"),
        scope_=pl.when(op).then("scope_"),
        # Ids begin with 1, for 0 stands for the root.
        id_=pl.when(is_asker).then(pl.col("row") + 1),
    )
    # The framework that an operator is of: its own name tells, or that of XLA's program.
    of_jax = pl.col("hlo_module").fill_null("").str.contains(_JAX_PROGRAM)
    framework = (
        pl.when(pl.col("hlo_op").is_not_null() & of_jax)
        .then(pl.lit("jax"))
        .when(pl.col("name").str.contains(_TENSORFLOW_OP.pattern))
        .then(pl.lit("tensorflow"))
    )
    return span_rows(
        {
            "kind": frame["kind_"],
            "name": frame["name_"],
            "start_ns": frame["start_ns"],
            "end_ns": frame["end_ns"],
            "thread": frame["thread"],
            "correlation_id": frame["correlation_id"],
            "id": frame["id_"],
            "parent_id": frame["parent"],
            "attr.framework": frame.select(framework).to_series(),
            "attr.scope": frame["scope_"],
            "attr.hlo_op": frame.select(pl.when(op).then("hlo_op")).to_series(),
            "attr.hlo_module": frame.select(pl.when(op).then("hlo_module")).to_series(),
        }
    )


def _described(name: str) -> tuple[str, str, str | None]:
    """Return kind, name and scope of a range, by its name in the file.

    >>> _described("model/dense/MatMul:MatMul"), _described("PjitFunction(f)")
    (('op', 'MatMul', 'model/dense/MatMul'), ('call', 'PjitFunction(f)', None))
    """
    if name.startswith(PYTHON):
        return Kind.OP.value, name.removeprefix(PYTHON), None
    found = _TENSORFLOW_OP.match(name)
    if found:
        return Kind.OP.value, found["type"], found["scope"]
    return Kind.CALL.value, name, None


def _launch_name(name: str) -> str:
    """Return the name of a call without its version, or of a kernel without its parameters.

    >>> _launch_name("cuMemcpyHtoDAsync_v2"), _launch_name("void f<int>(int)")
    ('cuMemcpyHtoDAsync', 'f')
    """
    return call_name(name) if re.fullmatch(r"\w+", name) else short_name(name)


def _steps(events: pl.DataFrame) -> SpanRows:
    """Return the steps, each named by its number."""
    steps = events.filter(_IS_STEP)
    if not steps.height:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": steps["name"] + " " + steps["step_num"].cast(pl.String),
            "start_ns": steps["start_ns"],
            "end_ns": steps["end_ns"],
            "thread": steps["thread"],
        }
    )


def _one_number(events: pl.DataFrame) -> pl.DataFrame:
    """Return events in which each thread has one number, as far as the file shows which are one.

    On AMD's GPUs the calls of HIP are on lines of their own, with other numbers of the threads. A
    line of HIP calls is that of the thread in whose `ExecuteThunks` all its calls for XLA's
    kernels lie, if there is exactly one such thread.
    """
    of_xla = events.filter(_LAUNCH & pl.col("hlo_op").is_not_null()).sort("start_ns")
    ranges = events.filter(pl.col("name") == _THUNKS).sort("start_ns")
    if not of_xla.height or not ranges.height:
        return events
    known = set(ranges["thread"].unique().to_list())
    same: dict[int, int] = {}
    for (line,), calls in of_xla.group_by("thread", maintain_order=True):
        if line in known:
            continue
        holding = [
            thread
            for (thread,), theirs in ranges.group_by("thread", maintain_order=True)
            if _all_within(calls, theirs)
        ]
        if len(holding) == 1:
            same[int(str(line))] = int(str(holding[0]))
    if len(set(same.values())) < len(same):
        return events
    return events.with_columns(pl.col("thread").replace(same))


def _all_within(calls: pl.DataFrame, ranges: pl.DataFrame) -> bool:
    """Tell whether each call lies in one of the ranges, which are sorted."""
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    at = np.searchsorted(starts, calls["start_ns"].to_numpy(), side="right") - 1
    return bool(np.all((at >= 0) & (calls["end_ns"].to_numpy() <= ends[at])))


# Finds the range that asked for a row of the host on another thread.

_START, STOP = "ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion"
_MARK = pl.col("start_ns") == pl.col("end_ns")
_KEY = ["type", "number"]


def askers(rows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the index of the row that asked for each row, -1 where none is known.

    Only rows that lie in no range of their own thread have one.

    Args:
        rows: `thread`, `start_ns`, `end_ns`, `name`, `_pt`, `_p`, `_ct`, `_c` of n events.
    """
    found = np.full(rows.height, -1, np.int64)
    rows = rows.select("thread", "start_ns", "end_ns", "name", "_pt", "_p", "_ct", "_c")
    numbered = rows.with_columns(row=pl.int_range(pl.len()))
    # The ranges that lie in no other range of their thread.
    ranges = numbered.filter(~_MARK).select("row", "thread", "start_ns", "end_ns")
    ranges = ranges.sort("thread", "start_ns", -pl.col("end_ns"), maintain_order=True)
    before = pl.col("end_ns").cum_max().shift(1).over("thread")
    outermost = ranges.filter(before.is_null() | (pl.col("end_ns") > before))
    # Thread and time of what hands work over, by its number; the first of several.
    made = numbered.filter(pl.col("_p").is_not_null())
    producers = made.select(
        pl.col("_pt").fill_null(0).alias("type"),
        pl.col("_p").alias("number"),
        pl.col("thread").alias("asker_thread"),
        pl.col("start_ns").alias("asked_ns"),
    ).unique(_KEY, keep="first", maintain_order=True)
    # Rows with the number of the region that each lies in; the others are left out.
    answered = (
        outermost.sort("start_ns")
        .join_asof(
            _regions(numbered).sort("region_ns"),
            left_on="start_ns",
            right_on="region_ns",
            by="thread",
            check_sortedness=False,
        )
        .filter(pl.col("end_ns") <= pl.col("stop"))
    )
    asking = answered.join(producers, on=_KEY, how="inner")
    for (thread,), queries in asking.group_by("asker_thread"):
        lane = numbered.filter((pl.col("thread") == thread) & ~_MARK)
        at, answer = _holding(lane, queries)
        found[at] = answer
    found[found == np.arange(rows.height)] = -1
    return found


def _regions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return thread, start, end and number of all work that was taken over."""
    taken = rows.filter(pl.col("_c").is_not_null())
    stops = rows.filter(pl.col("name") == STOP).select("thread", stop="start_ns").sort("stop")
    starts = taken.filter(pl.col("name") == _START).sort("start_ns")
    regions = starts.join_asof(
        stops,
        left_on="start_ns",
        right_on="stop",
        by="thread",
        strategy="forward",
        check_sortedness=False,
    ).filter(pl.col("stop").is_not_null())
    ranges = taken.filter(~_MARK).with_columns(stop="end_ns")
    return pl.concat([regions, ranges.select(regions.columns)]).select(
        "thread",
        region_ns="start_ns",
        stop="stop",
        type=pl.col("_ct").fill_null(0),
        number=pl.col("_c"),
    )


def _holding(lane: pl.DataFrame, queries: pl.DataFrame) -> tuple[array[int], array[int]]:
    """Return rows that were asked for, and the innermost row of a thread that holds each.

    A row holds what was asked for in its time and ended in its time.
    """
    ranges = lane.select("start_ns", "end_ns", "row").sort("start_ns", -pl.col("end_ns"))
    asked = queries.select("asked_ns", "end_ns", "row").sort("asked_ns")
    rows, answers, open_ranges = array("q"), array("q"), list[tuple[int, int]]()
    coming = ranges.iter_rows()  # not a list of all: there may be a million
    following = next(coming, None)
    for time, need, row in asked.iter_rows():
        while following is not None and following[0] <= time:
            start, end, number = following
            while open_ranges and open_ranges[-1][0] < start:
                open_ranges.pop()
            open_ranges.append((end, number))
            following = next(coming, None)
        holder = next((number for end, number in reversed(open_ranges) if end >= need), -1)
        rows.append(row)
        answers.append(holder)
    return rows, answers
