"""Computes the shares of a trace's time that lie under layers, operators, calls and nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.structure.sums import Bools, calls, on_host, outermost
from xsp.answer.analyses.structure.timeline import drawn_ns, on_clock
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace

_COLUMNS = {
    "time": "What is divided: `device time`, `operators' time`, or the `latency` of the trace.",
    "under": "Kind of span that it lies under; `nothing` for what lies under none of the kinds.",
    "name": "What lies under nothing, by name; null for the sum.",
    "calls": "How many spans the row is of.",
    "latency_ns": "How much of the time lies there.",
    "share_pct": "That as a share of the time.",
}
_SCHEMA = {"under": pl.String, "name": pl.String, "calls": pl.Int64, "latency_ns": pl.Float64}
_CAUSES = (Kind.LAYER, Kind.OP, Kind.CALL)


@analysis("How much of the time is attributed, and what is not?", _COLUMNS)
def attribution(trace: Trace) -> pl.DataFrame:
    """Return shares of up to three times that lie under layers, operators, calls and nothing.

    Device time is that of all kernels, copies and sets, added up. The operators' time is their
    own: under a library call is what they spent in calls, under nothing what the framework
    computed itself. The latency is that of the root, under nothing is what the program does
    outside of layers, operators and calls. Shares of one time overlap, for an
    operator lies in a layer.

    Args:
        trace: Any trace; kinds that it lacks have no rows.
    """
    tree = on_host(Tree.of(trace))
    divided = {"device time": _device(tree), "operators' time": _operators(tree)}
    # How much of the root's latency lies in layers, operators and calls.
    here = on_clock(tree)
    length, own = drawn_ns(tree, here)
    group = np.zeros(len(here), dtype=np.uint64)
    under = {
        kind: (outermost(tree.nearest(among), among, group), length)
        for kind in _causes(tree)
        if (among := here & tree.is_of(kind)).any()
    }
    causes = tree.is_of(*_CAUSES)
    nothing = here & ~causes & (tree.nearest(causes) < 0) & (own > 0)
    latency = _table(tree, under, (nothing, own))[0], float(length[0])
    tables = [
        table.with_columns(time=pl.lit(time), share_pct=100 * pl.col("latency_ns") / whole)
        for time, (table, whole) in (divided | {"latency": latency}).items()
        if whole > 0
    ]
    empty = pl.DataFrame(schema=_SCHEMA | {"time": pl.String, "share_pct": pl.Float64})
    return pl.concat([empty, *tables]).select(*_COLUMNS)


def _device(tree: Tree) -> tuple[pl.DataFrame, float]:
    """Return where the devices' work lies, and how much there is."""
    work = tree.is_of(*DEVICE_ACTIVITIES)
    time = np.where(work, np.nan_to_num(tree.latency_ns()), 0.0)
    under = {kind: work & (tree.nearest(tree.is_of(kind)) >= 0) for kind in _causes(tree)}
    nothing = work & ~np.logical_or.reduce([*under.values(), np.zeros_like(work)])
    return _table(tree, {kind: (rows, time) for kind, rows in under.items()}, (nothing, time))


def _operators(tree: Tree) -> tuple[pl.DataFrame, float]:
    """Return how much of the operators' self time lies in calls; nothing where there are none."""
    operators, library = tree.is_of(Kind.OP), tree.is_of(Kind.CALL)
    if not operators.any() or not library.any():
        return pl.DataFrame(schema=_SCHEMA), 0.0
    whole = np.nan_to_num(tree.own_ns(operators))
    rest = np.minimum(np.nan_to_num(tree.own_ns(operators | library)), whole)
    rest = np.where(operators, rest, 0.0)
    table, _ = _table(tree, {Kind.CALL: (operators, whole - rest)}, (operators & (rest > 0), rest))
    return table, float(whole.sum())


def _causes(tree: Tree) -> list[Kind]:
    return [kind for kind in _CAUSES if tree.is_of(kind).any()]


def _table(
    tree: Tree, under: Mapping[Kind, tuple[Bools, Floats]], nothing: tuple[Bools, Floats]
) -> tuple[pl.DataFrame, float]:
    """Return a row for each kind, one for nothing, and one for each name under nothing."""
    often = calls(tree)
    rows = [
        {"under": under_what, "calls": int(often[among].sum()), "latency_ns": time[among].sum()}
        for under_what, (among, time) in [*under.items(), ("nothing", nothing)]
    ]
    among, time = nothing
    by_name = (
        pl.DataFrame({"calls": often, "latency_ns": time})
        .with_columns(tree.spans["name"], under=pl.lit("nothing"))
        .filter(pl.Series(among))
        .group_by("under", "name", maintain_order=True)
        .agg(pl.sum("calls", "latency_ns"))
        .sort("latency_ns", descending=True, maintain_order=True)
    )
    table = pl.concat([pl.DataFrame(rows, schema=_SCHEMA), by_name.select(*_SCHEMA)])
    return table, float(time.sum())
