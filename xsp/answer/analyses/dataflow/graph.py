"""Builds the graphs of operators of a trace: who takes whose outputs, when and on which threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import graph_operators
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace


@dataclass(frozen=True, slots=True)
class GraphRun:
    """The operators of one run of a graph, in the order in which they began.

    Attributes:
        row: Row of each operator in the tree.
        around: Row of the span that the run lies in.
        node: Name of each operator in the graph.
        latency_ns: Latency of each without the profiler; as measured where that is not known.
        start_ns: When each began, in a typical run of the pass with operators, as measured.
        end_ns: When each ended there.
        thread: The thread that it ran on there.
        inputs: Places, in this order, of the operators whose outputs each takes. Of an operator
            whose inputs are not known: the one before on its thread.
    """

    row: Sequence[int]
    around: int
    node: Sequence[str]
    latency_ns: Sequence[float]
    start_ns: Sequence[int]
    end_ns: Sequence[int]
    thread: Sequence[int]
    inputs: Sequence[Sequence[int]]


def graph_runs(trace: Trace) -> list[GraphRun]:
    """Return the runs of graphs in a trace, in their order; none where no inputs are known.

    Operators of one graph lie in the same operator (a function of TensorFlow's) or region, and of
    XLA in the same module.
    """
    tree = Tree.of(trace)
    return tree.once("graph runs", lambda: list(_runs(trace, tree)))


def named_operators(tree: Tree) -> pl.DataFrame:
    """Return the operators of graphs, and the outermost operator of a graph that each lies in.

    Returns:
        `row`, `name` (of the node), `inputs`, and `owner` (a row: its own, for outermost ones).
    """
    node = pl.select(pl.coalesce(tree.attribute("node"), tree.attribute("hlo_op"))).to_series()
    named = graph_operators(tree.spans)
    rows, above = np.flatnonzero(named), tree.nearest(named)
    owner = rows.copy()
    while (inner := above[owner] >= 0).any():
        owner[inner] = above[owner[inner]]
    inputs = tree.attribute("inputs", pl.List(pl.String))
    return pl.DataFrame({"row": rows, "name": node[rows], "inputs": inputs[rows], "owner": owner})


def _runs(trace: Trace, tree: Tree) -> Iterator[GraphRun]:
    table = named_operators(tree).join(_timeline(trace, tree), on="row", how="left")
    holds = (tree.is_of(Kind.OP) | tree.is_of(Kind.REGION)) & (
        tree.nearest(tree.is_of(Kind.OP)) < 0
    )
    own = table["owner"].to_numpy()
    around = np.maximum(tree.nearest(holds)[own], 0)
    operators = tree.nearest(tree.is_of(Kind.OP))[own]
    table = table.with_columns(
        around=pl.Series(np.where(operators >= 0, operators, around)),
        module=tree.attribute("hlo_module")[own],
        latency=pl.Series(tree.latency_ns()[own]),
    ).filter(pl.col("inputs").is_not_null().any().over("around", "module"))
    # An operator that the typical run lacks is looked through.
    seen = table.filter(pl.col("start").is_not_null()).sort("start", "end", "row")
    for (_, _), run in seen.group_by("around", "module", maintain_order=True):
        keys = pl.col("around") == run["around"][0], pl.col("module").eq_missing(run["module"][0])
        lost = dict(
            table.filter(*keys, pl.col("start").is_null()).select("name", "inputs").iter_rows()
        )
        yield _run(run, lost)


def _run(table: pl.DataFrame, lost: Mapping[str, Sequence[str] | None]) -> GraphRun:
    outer = table.filter(pl.col("row") == pl.col("owner"))
    place = {row: at for at, row in enumerate(outer["row"].to_list())}
    last: dict[str, int] = {}  # the latest operator of a name: a loop runs its nodes again
    on_thread: dict[int, int] = {}
    inputs: list[list[int]] = [[] for _ in place]
    columns = table.select("row", "owner", "name", "inputs", "thread").iter_rows()
    for row, owner, name, sources, thread in columns:
        at = place.get(owner)
        if at is None:
            continue
        if sources is not None:
            near = _through(sources, lost) if lost else sources
            # What an operator inside takes may begin after the operator around: no edge leads back.
            inputs[at] += [last[each] for each in near if last.get(each, at) < at]
        elif row == owner and thread in on_thread:
            inputs[at].append(on_thread[thread])
        last[name] = at
        if row == owner:
            on_thread[thread] = at
    measured = (outer["end"] - outer["start"]).cast(pl.Float64)
    latency = outer["latency"].fill_nan(None).fill_null(measured)
    return GraphRun(
        list(place),
        int(table["around"][0]),
        outer["name"].to_list(),
        latency.to_list(),
        outer["start"].to_list(),
        outer["end"].to_list(),
        outer["thread"].to_list(),
        inputs,
    )


def _through(names: Sequence[str], lost: Mapping[str, Sequence[str] | None]) -> list[str]:
    """Return names with those of lost operators replaced by the inputs of these."""
    found: dict[str, None] = {}
    rest, seen = list(names), set()
    while rest:
        name = rest.pop()
        if name not in lost:
            found[name] = None
        elif name not in seen:
            seen.add(name)
            rest += lost[name] or ()
    return list(found)


def _timeline(trace: Trace, tree: Tree) -> pl.DataFrame:
    """Return `row`, `start`, `end` and `thread` of spans in a typical run of the operators' pass.

    A trace without runs has but one timeline, which it is.
    """
    columns = pl.col("thread").fill_null(0), pl.col("start"), pl.col("end")
    runs = trace.typical_runs.filter(pl.col("pass") == Kind.OP.value)
    rows = tree.spans.select("span_id", row=pl.int_range(pl.len()))
    if runs.height:
        timed = runs.rename({"start_ns": "start", "end_ns": "end"})
        return rows.join(timed, on="span_id").select("row", *columns)
    start, end = (pl.coalesce(f"measured_{each}_ns", f"{each}_ns") for each in ("start", "end"))
    return tree.spans.select("thread", row=pl.int_range(pl.len()), start=start, end=end).select(
        "row", *columns
    )
