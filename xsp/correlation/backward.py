"""Gives backward operators the layers whose forward made them: a forest in, a forest out.

Autograd numbers what the forward pass records, thread by thread; a backward
operator carries that number and the thread. The modules themselves are not
called again, so rows for them are derived here: one for every unbroken run of
operators that one layer made.

    forward   layer "fc" holds op "addmm" (sequence 5)
    backward  op "AddmmBackward" (sequence 5) gets a derived layer "fc" around it
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from xsp.correlation.forest import Forest
from xsp.correlation.interval import Integers, enclosing
from xsp.evaluation import nearest
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, PROVENANCE, Provenance, SpanRows

_LAYER, _OP = Kind.LAYER.order, Kind.OP.order
_COPIED = tuple(ATTRIBUTE + name for name in ("module_path", "module_class", "module_type"))


def derive_backward(forest: Forest) -> Forest:
    """Return the forest with derived layers around what each layer did backward.

    Derived layers nest as the forward ones do, consecutive runs share their
    ancestors, and all of them come after the rows that were given. A row that no
    layer is known for, such as the accumulation of a gradient, stays where time
    puts it, which may be in a derived layer.
    """
    if forest.rows["forward_thread"].null_count() == len(forest):
        return forest
    ops, makers = _find_makers(forest)
    if not np.any(makers >= 0):
        return forest
    runs, innermost = _draw_runs(forest, ops, makers)
    widened = forest.with_rows(
        _derived_rows(forest.rows, runs),
        runs["op"].to_numpy(),
        parent=runs["parent"].to_numpy(),
        end=runs["end_ns"].to_numpy(),
    )
    widened.parent[ops] = innermost
    return replace(widened, parent=_adopt(widened, runs, ops))


def _find_makers(forest: Forest) -> tuple[Integers, Integers]:
    """Return the outermost backward operators whose forward is known, and their layers.

    They are sorted by parent, lane and time. The layer is -1 for what the model
    did outside of every layer.
    """
    columns = forest.rows.select("sequence", "forward_thread", "thread").with_columns(
        root=forest.root, row=np.arange(len(forest)), outermost=forest.order[forest.parent] < _OP
    )
    numbered = columns.filter(pl.lit(forest.order == _OP), pl.col("sequence").is_not_null())
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
    makers = _innermost_layer(forest, made["made_by"].to_numpy())
    sequence = np.lexsort((ops, forest.lane[ops], forest.parent[ops]))
    return ops[sequence], makers[sequence]


def _innermost_layer(forest: Forest, rows: Integers) -> Integers:
    """Return the layer that each row is or lies in, -1 where there is none."""
    found = nearest(forest.parent, rows, forest.order <= _LAYER)
    return np.where(forest.order[found] == _LAYER, found, -1)


def _layers_around(forest: Forest, layer: Integers) -> Integers:
    """Return the layers around each layer, the outermost first, itself last, then -1."""
    inside_out = []
    while np.any(layer >= 0):
        inside_out.append(layer)
        outer = np.where(layer < 0, -1, forest.parent[layer])
        layer = np.where((outer >= 0) & (forest.order[outer] == _LAYER), outer, -1)
    chains = np.stack(inside_out, axis=1)
    column = np.count_nonzero(chains >= 0, axis=1)[:, None] - 1 - np.arange(len(inside_out))
    found = np.take_along_axis(chains, np.maximum(column, 0), axis=1)
    return np.where(column < 0, -1, found)


def _draw_runs(forest: Forest, ops: Integers, makers: Integers) -> tuple[pl.DataFrame, Integers]:
    """Return one line per derived layer, outer ones first, and each operator's new parent.

    Columns: `template` (the forward layer), `parent`, `home` (what the operators
    were under), `op` (the first of them), `end_ns`.
    """
    home = forest.parent[ops]
    both = np.append(makers, _innermost_layer(forest, home))
    layers, around = np.split(_layers_around(forest, both), 2)
    begins = _changes(home) | _changes(forest.lane[ops])
    innermost, count, runs = home, len(forest), []
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
                    "end_ns": np.maximum.reduceat(forest.end[ops], first)[shown[first]],
                }
            )
        )
        count += len(at)
        innermost = np.where(shown, index[np.cumsum(begins) - 1], innermost)
    return pl.concat(runs), innermost


def _changes(values: Integers) -> Integers:
    """Return whether each value differs from the one before it; the first does."""
    return np.append(True, values[1:] != values[:-1])


def _derived_rows(rows: SpanRows, runs: pl.DataFrame) -> SpanRows:
    copied = [name for name in _COPIED if name in rows.columns]
    first = rows[runs["op"]]
    return rows[runs["template"]].select(
        "kind",
        "name",
        first["start_ns"],
        runs["end_ns"],
        first["thread"],
        pl.lit(Provenance.DERIVED.value, dtype=PROVENANCE).alias("provenance"),
        *copied,
        pl.lit("backward").alias(f"{ATTRIBUTE}phase"),
    )


def _adopt(forest: Forest, runs: pl.DataFrame, ops: Integers) -> Integers:
    """Return parents, with rows beside a derived layer, in its time, put into it."""
    derived = np.arange(len(forest) - runs.height, len(forest))
    home = np.append(forest.parent[: -runs.height], runs["home"].to_numpy())
    place = home * (forest.lane.max() + 1) + forest.lane
    free = forest.rows["parent_id"].is_null().to_numpy() & np.isin(place, place[derived])
    free[derived] = free[ops] = False
    rows = np.append(derived, np.flatnonzero(free))
    found = enclosing(place[rows], forest.start[rows], forest.end[rows], forest.order[rows])
    adopted = (found >= 0) & (rows < derived[0])
    parent = forest.parent.copy()
    parent[rows[adopted]] = rows[found[adopted]]
    return parent
