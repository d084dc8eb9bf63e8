"""Finds the graph run of each operator, and the function that began the run.

The operators of a graph run on the threads of a pool, where the executor says of which run they
are. What began the run (`FunctionRun` in a function's row, `SessionRun`) says the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Integers = npt.NDArray[np.int64]

_BEGINS = ("FunctionRun", "SessionRun")
_EXECUTES = "ExecutorState::Process"
_WAITS = "ExecutorState::ProcessAsync::Start"
_NONE = -1


def innermost(outer: pl.DataFrame, inner: pl.DataFrame) -> Integers:
    """Return the position of the shortest of the ranges around each of others, on its line.

    Args:
        outer: `line`, `start_ns`, `end_ns` of ranges that nest.
        inner: The same of others.

    Returns:
        Positions in `outer`; -1 where there is none.

    >>> outer = pl.DataFrame({"line": [0, 0, 1], "start_ns": [0, 2, 0], "end_ns": [9, 5, 9]})
    >>> inner = pl.DataFrame({"line": [0, 0, 0], "start_ns": [3, 6, 8], "end_ns": [4, 7, 12]})
    >>> innermost(outer, inner).tolist()
    [1, 0, -1]
    """
    result = np.full(inner.height, _NONE, np.int64)
    for line in inner["line"].unique().to_list():
        ranges = _sorted(outer, line)
        _sweep(ranges, _sorted(inner, line), result)
    return result


def _sorted(frame: pl.DataFrame, line: int) -> list[tuple[int, int, int]]:
    """Return start, negated end and position of the ranges of a line, outer ones first."""
    own = frame.select("line", "start_ns", -pl.col("end_ns"), at=pl.int_range(pl.len()))
    return sorted(own.filter(pl.col("line") == line).drop("line").rows())


def _sweep(
    outer: Sequence[tuple[int, int, int]], inner: Sequence[tuple[int, int, int]], result: Integers
) -> None:
    open_: list[tuple[int, int]] = []  # ends and positions of ranges that have begun
    at = 0
    for start, less_end, position in inner:
        while at < len(outer) and outer[at][:2] <= (start, less_end):
            open_.append((-outer[at][1], outer[at][2]))
            at += 1
        while open_ and open_[-1][0] < start:
            open_.pop()
        for end, place in reversed(open_):
            if end >= -less_end:
                result[position] = place
                break


class Runs:
    """The graph runs of a recording, and the functions that began them.

    Args:
        events: Events of all threads.
        table: Operators, with `id`, `sort` and their places in time.
    """

    def __init__(self, events: pl.DataFrame, table: pl.DataFrame) -> None:
        self._executed = _numbered(events.filter(pl.col("name") == _EXECUTES), "id")
        # The types of the operators that call functions.
        waits = events.filter(pl.col("name") == _WAITS)["kernel_type"].drop_nulls()
        calls = waits.unique().to_list()
        self._functions = table.filter((pl.col("sort") == "function") | pl.col("name").is_in(calls))
        begun = _numbered(events.filter(pl.col("name").is_in(_BEGINS)), "id")
        around = innermost(self._functions, begun)
        ids = self._functions["id"].to_numpy()
        self._began = {
            run: int(ids[at])
            for run, at in zip(begun["number"].to_list(), around.tolist(), strict=True)
            if at != _NONE
        }

    def placed(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return operators with `run` and `parent_id`, without those of runs that nobody began.

        These are of tf.data's functions, which load data beside the model.
        """
        at = innermost(self._executed, table)
        numbers = pl.Series([*self._executed["number"].to_list(), None], dtype=pl.Int64)
        run = numbers.gather(np.where(at == _NONE, len(numbers) - 1, at))
        graph = table["sort"].is_in(["node", "xla"]) & ~table["is_python"]
        lost = graph & run.is_null()
        owner = run.replace_strict(self._began, default=None, return_dtype=pl.Int64)
        owner = pl.Series(
            [
                self._only(start, end) if missing else each
                for each, missing, start, end in zip(
                    owner.to_list(), lost, table["start_ns"], table["end_ns"], strict=True
                )
            ],
            dtype=pl.Int64,
        )
        runs = {began: number for number, began in self._began.items()}
        found = owner.replace_strict(runs, default=None, return_dtype=pl.Int64)
        placed = table.with_columns(
            run=pl.coalesce(run, found), parent_id=pl.when(~pl.col("is_python")).then(owner)
        )
        names = dict(self._functions.select("id", "function").rows())
        function = owner.replace_strict(names, default=None, return_dtype=pl.String)
        placed = placed.with_columns(function=pl.coalesce(function, "function"))
        return placed.filter(~graph | owner.is_not_null())

    def _only(self, start_ns: int, end_ns: int) -> int | None:
        """Return the id of the one function that ran at a time; None if there are several.

        An executor that was still busy when the recording ended says nothing of its run.
        """
        around = self._functions.filter(
            pl.col("start_ns") <= start_ns, pl.col("end_ns") >= end_ns, "is_python"
        )
        return int(around["id"][0]) if around.height == 1 else None


def _numbered(events: pl.DataFrame, number: str) -> pl.DataFrame:
    return events.filter(pl.col(number).is_not_null()).select(
        "line", "start_ns", "end_ns", number=number
    )
