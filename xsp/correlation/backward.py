"""Gives backward operators the layers whose forward made them.

Autograd numbers what the forward pass records, thread by thread; a backward
operator carries that number and the thread. The modules themselves are not
called again, so rows for them are derived here, for `xsp.correlation.parent`: one for
every unbroken run of operators that one layer made.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.correlation.interval import Integers, Placed, enclosing, sort_outside_in
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, KIND, SpanRows, concat_rows

_LAYER, _OP = Kind.LAYER.order, Kind.OP.order
_COPIED = tuple(ATTRIBUTE + name for name in ("module_path", "module_class", "module_type"))


def derive_backward(placed: Placed, parent: Integers) -> tuple[Placed, Integers]:
    """Return rows and parents with derived layers around what each layer did backward.

    Derived layers nest as the forward ones do, consecutive runs share their
    ancestors, and all of them come after the rows that were given. A row that no
    layer is known for, such as the accumulation of a gradient, stays where time
    puts it, which may be in a derived layer.

    Args:
        placed: Rows as `xsp.correlation.parent` placed them, n of them.
        parent: Index of each row's parent, -1 for roots.
    """
    if placed.rows["forward_thread"].null_count() == len(placed):
        return placed, parent
    ops, makers = _find_makers(placed, parent)
    if not np.any(makers >= 0):
        return placed, parent
    runs, innermost = _draw_runs(placed, parent, ops, makers)
    widened = _append(placed, runs)
    parent = np.append(parent, runs["parent"].to_numpy())
    parent[ops] = innermost
    return widened, _adopt(widened, parent, runs, ops)


def _find_makers(placed: Placed, parent: Integers) -> tuple[Integers, Integers]:
    """Return the outermost backward operators whose forward is known, and their layers.

    They are sorted by parent, lane and time. The layer is -1 for what the model
    did outside of every layer.
    """
    columns = placed.rows.select("sequence", "forward_thread", "thread").with_columns(
        root=placed.root, row=np.arange(len(placed)), outermost=placed.order[parent] < _OP
    )
    numbered = columns.filter(pl.lit(placed.order == _OP), pl.col("sequence").is_not_null())
    backward = numbered.filter(pl.col("forward_thread").is_not_null(), pl.col("outermost"))
    # Operators that do not differentiate see the number too; the last one took it.
    forward = numbered.filter(pl.col("forward_thread").is_null()).unique(
        ["root", "thread", "sequence"], keep="last"
    )
    made = backward.join(
        forward.select("root", "sequence", forward_thread="thread", made_by="row"),
        on=["root", "sequence", "forward_thread"],
    ).filter(pl.col("made_by") < pl.col("row"))
    ops = made["row"].to_numpy()
    makers = _innermost_layer(placed, parent, made["made_by"].to_numpy())
    sequence = np.lexsort((ops, placed.lane[ops], parent[ops]))
    return ops[sequence], makers[sequence]


def _innermost_layer(placed: Placed, parent: Integers, rows: Integers) -> Integers:
    """Return the layer that each row is or lies in, -1 where there is none."""
    layer = rows.copy()
    while np.any(deeper := placed.order[layer] > _LAYER):
        layer[deeper] = parent[layer[deeper]]
    return np.where(placed.order[layer] == _LAYER, layer, -1)


def _layers_around(placed: Placed, parent: Integers, layer: Integers) -> Integers:
    """Return the layers around each layer, the outermost first, itself last, then -1."""
    inside_out = []
    while np.any(layer >= 0):
        inside_out.append(layer)
        outer = np.where(layer < 0, -1, parent[layer])
        layer = np.where((outer >= 0) & (placed.order[outer] == _LAYER), outer, -1)
    chains = np.stack(inside_out, axis=1)
    column = np.count_nonzero(chains >= 0, axis=1)[:, None] - 1 - np.arange(len(inside_out))
    found = np.take_along_axis(chains, np.maximum(column, 0), axis=1)
    return np.where(column < 0, -1, found)


def _draw_runs(
    placed: Placed, parent: Integers, ops: Integers, makers: Integers
) -> tuple[pl.DataFrame, Integers]:
    """Return one line per derived layer, outer ones first, and each operator's new parent.

    Columns: `template` (the forward layer), `parent`, `home` (what the operators
    were under), `op` (the first of them), `end_ns`.
    """
    home = parent[ops]
    both = np.append(makers, _innermost_layer(placed, parent, home))
    layers, around = np.split(_layers_around(placed, parent, both), 2)
    begins = _changes(home) | _changes(placed.lane[ops])
    innermost, count, runs = home, len(placed), []
    for layer, enclosing_layer in zip(layers.T, around.T, strict=True):
        begins = begins | _changes(layer)
        first = np.flatnonzero(begins)
        # A gradient taken inside a layer's own forward is in that layer already.
        shown = (layer >= 0) & (layer != enclosing_layer)
        index = count + np.cumsum(shown[first]) - 1
        at = first[shown[first]]
        runs.append(
            pl.DataFrame(
                {
                    "template": layer[at],
                    "parent": innermost[at],
                    "home": home[at],
                    "op": ops[at],
                    "end_ns": np.maximum.reduceat(placed.end[ops], first)[shown[first]],
                }
            )
        )
        count += len(at)
        innermost = np.where(shown, index[np.cumsum(begins) - 1], innermost)
    return pl.concat(runs), innermost


def _changes(values: Integers) -> Integers:
    """Return whether each value differs from the one before it; the first does."""
    return np.append(True, values[1:] != values[:-1])


def _append(placed: Placed, runs: pl.DataFrame) -> Placed:
    """Return the rows with those of the derived layers after them."""
    op = runs["op"].to_numpy()
    return Placed(
        rows=concat_rows([placed.rows, _derived_rows(placed.rows, runs)]),
        root=np.append(placed.root, placed.root[op]),
        lane=np.append(placed.lane, placed.lane[op]),
        start=np.append(placed.start, placed.start[op]),
        end=np.append(placed.end, runs["end_ns"].to_numpy()),
        order=np.append(placed.order, np.full(len(op), _LAYER)),
    )


def _derived_rows(rows: SpanRows, runs: pl.DataFrame) -> SpanRows:
    copied = [name for name in _COPIED if name in rows.columns]
    first = rows[runs["op"]]
    return rows[runs["template"]].select(
        "kind",
        "name",
        first["start_ns"],
        runs["end_ns"],
        first["thread"],
        pl.lit(Kind.OP.value, dtype=KIND).alias("rung"),
        *copied,
        pl.lit("backward").alias(f"{ATTRIBUTE}phase"),
    )


def _adopt(placed: Placed, parent: Integers, runs: pl.DataFrame, ops: Integers) -> Integers:
    """Return parents, with rows beside a derived layer, in its time, put into it."""
    derived = np.arange(len(placed) - runs.height, len(placed))
    home = np.append(parent[: -runs.height], runs["home"].to_numpy())
    place = home * (placed.lane.max() + 1) + placed.lane
    free = placed.rows["parent_id"].is_null().to_numpy() & np.isin(place, place[derived])
    free[derived] = free[ops] = False
    rows = np.append(derived, np.flatnonzero(free))
    rows = rows[sort_outside_in(placed.start[rows], placed.end[rows], placed.order[rows])]
    lane = np.unique(place[rows], return_inverse=True)[1]
    found = enclosing(lane, placed.start[rows], placed.end[rows], placed.order[rows])
    adopted = (found >= 0) & (rows < derived[0])
    parent = parent.copy()
    parent[rows[adopted]] = rows[found[adopted]]
    return parent
