"""Makes a row per operator, with node and graph run, from TensorFlow's profiler's events.

What the profiler calls an operator are three sorts of event: an operator that Python asked for
(`EagerExecute`), which may be a whole function; a node of a graph (`scope/name:Type`); and an
operator of XLA's compiled code (with the stat `hlo_op`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import polars as pl

from xsp_levels.framework.tensorflow.profiler.run import Runs, innermost

NODE = r"^(?P<node>[^:\s]+):(?P<type>[A-Z_][\w>]*)$"

_EAGER, _SESSION = "EagerExecute", "SessionRun"
_BEGINS, _ENDS = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"
_XLA_ENDS = "end: "  # with the name of an operator of XLA: that the operator ended
_FUNCTION = re.compile(r"^__(?:inference|forward|backward)_(?P<name>.+?)_\d+$")
_EDGES = {"_Arg", "_Retval"}  # what a function is given, and what it returns
_NAMELESS = {"<lambda>", "function"}  # a model that tf.function wraps has the latter
_COMPILED = r"^__\w+:__\w+$"  # a function that XLA compiled, in the row of the function


def function_name(name: str) -> str:
    """Return the name of a function's row, by the function's name in TensorFlow's runtime.

    >>> function_name("__inference_train_step_3538"), function_name("__inference_<lambda>_12")
    ('tf.function train_step', 'tf.function')
    """
    found = _FUNCTION.match(name)
    plain = found["name"] if found else name
    return "tf.function" if plain in _NAMELESS else f"tf.function {plain}"


def operator_table(events: pl.DataFrame) -> pl.DataFrame:
    """Return the operators among events, in the order in which they began.

    Returns:
        `name`, `start_ns`, `end_ns`, `thread`, `is_python`, `node` (name in the graph, null
        outside of one), `sort` (`eager`, `function`, `node` or `xla`), `hlo_op`, `hlo_module`,
        `program_id`, `run` (number of the graph run, null outside of one), `shape`, `id`,
        `parent_id` (id of the function's row that the graph run is of), and `function` (its name).
    """
    if not events.width:
        return pl.DataFrame()
    runs = events.filter(pl.col("name") == _SESSION)
    sessions = _kept(runs, name=pl.lit("Session.run"), sort=pl.lit("function"))
    ran = events.filter(pl.col("hlo_op").is_not_null(), ~pl.col("name").str.starts_with(_XLA_ENDS))
    named = _each(ran["hlo_op"], lambda name: re.sub(r"\.\d+$", "", name))
    facts = {name: pl.col(name) for name in ("hlo_op", "hlo_module", "program_id")}
    xla = _kept(ran, name=named, node=pl.col("hlo_op"), sort=pl.lit("xla"), **facts)
    # Operators that end on another thread than they begin on.
    ends = events.filter(pl.col("name") == _ENDS).select("_c", done_ns="start_ns")
    begun = _begun(events).join(ends.unique("_c"), left_on="_p", right_on="_c", how="left")
    end = pl.max_horizontal("end_ns", "done_ns")
    begun = begun.with_columns(end_ns=end)
    waiting = _kept(begun, name=pl.col("kernel_type"), node="stat.name", sort=pl.lit("node"))
    parts = [_eager(events), sessions, _nodes(events), waiting, xla]
    table = pl.concat(parts, how="diagonal").sort("start_ns", "end_ns", descending=[False, True])
    table = table.with_columns(id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64))
    return Runs(events, table).placed(table)


def _kept(events: pl.DataFrame, **columns: Any) -> pl.DataFrame:
    kept = ["start_ns", "end_ns", "line", "thread", "is_python"]
    return events.select(*kept, **columns)


def _eager(events: pl.DataFrame) -> pl.DataFrame:
    asked = events.filter(pl.col("name") == _EAGER, pl.col("eager_op").is_not_null())
    function = pl.col("is_func").fill_null(0) != 0
    named = _each(asked["eager_op"], function_name)
    return _kept(
        asked,
        name=pl.when(function).then(named).otherwise("eager_op"),
        sort=pl.when(function).then(pl.lit("function")).otherwise(pl.lit("eager")),
        function=pl.when(function).then("eager_op"),
    )


def _nodes(events: pl.DataFrame) -> pl.DataFrame:
    is_node = pl.col("name").str.contains(NODE) & ~pl.col("name").str.contains(_COMPILED)
    nodes = _at_once(events.filter(is_node), _begun(events))
    parts = pl.col("name").str.extract_groups(NODE).struct
    return _kept(
        nodes.filter(~parts.field("type").is_in(list(_EDGES))),
        name=parts.field("type"),
        node=parts.field("node"),
        shape="shape",
        sort=pl.lit("node"),
    )


def _begun(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("name") == _BEGINS, pl.col("kernel_type").is_not_null())


def _at_once(nodes: pl.DataFrame, begun: pl.DataFrame) -> pl.DataFrame:
    """Return nodes without those of operators that wait, which begin by an event of their own."""
    around = innermost(nodes, begun)
    names = nodes["name"].str.extract(NODE).to_list()
    pairs = zip(around.tolist(), begun["stat.name"].to_list(), strict=True)
    waiting = [at for at, node in pairs if at >= 0 and names[at] == node]
    return nodes.filter(~pl.int_range(pl.len()).is_in(waiting))


def _each(names: pl.Series, name_of: Callable[[str], str]) -> pl.Series:
    distinct = {name: name_of(name) for name in names.unique().to_list()}
    return names.replace_strict(distinct, return_dtype=pl.String)
