"""Adds layers around the backward operators of a forest.

Autograd numbers the operators of the forward pass, thread by thread; a backward operator has the
number and the thread of its forward operator. The backward pass does not call the layers again,
so layers are derived here: one for every unbroken sequence of operators that one layer made.

    forward   layer "fc" holds op "addmm" (sequence 5)
    backward  op "AddmmBackward" (sequence 5) gets a derived layer "fc" around it
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import nearest
from xsp.provider import ATTRIBUTE, PROVENANCE, Provenance, SpanRows
from xsp.reading.correlation.forest import Forest
from xsp.reading.correlation.interval import Integers, enclosing

_LAYER, _OP = Kind.LAYER.order, Kind.OP.order
_COPIED = tuple(ATTRIBUTE + name for name in ("module_path", "module_class", "module_type"))


def derive_backward(forest: Forest) -> Forest:
    """Return the forest with derived layers around the backward operators of each layer.

    Derived layers nest as the forward layers do, consecutive derived layers share their
    ancestors, and all of them come after the rows that were given. A row whose layer is not
    known, such as the accumulation of a gradient, gets its parent by time, which may be a
    derived layer.
    """
    if forest.rows["forward_thread"].null_count() == len(forest):
        return forest
    ops, layers = _find_layers(forest)
    if not np.any(layers >= 0):
        return forest
    derived, innermost = _derive_layers(forest, ops, layers)
    if not derived.height:
        return forest
    widened = forest.with_rows(
        _derived_rows(forest.rows, derived),
        derived["op"].to_numpy(),
        parent=derived["parent"].to_numpy(),
        end=derived["end_ns"].to_numpy(),
    )
    widened.parent[ops] = innermost
    return replace(widened, parent=_adopt(widened, derived["home"].to_numpy(), ops))


def _find_layers(forest: Forest) -> tuple[Integers, Integers]:
    """Return the outermost backward operators whose forward is known, and their layers.

    The operators are sorted by parent, lane and time. The layer is -1 for operators that the
    model called outside of every layer.
    """
    is_backward = forest.rows["forward_thread"].is_not_null().to_numpy()
    outermost = ~is_backward  # which rows do not lie in a backward operator
    rows = np.flatnonzero(is_backward)
    outermost[rows] = nearest(forest.parent, forest.parent[rows], is_backward) < 0
    columns = forest.rows.select("sequence", "forward_thread", "thread").with_columns(
        root=forest.root, row=np.arange(len(forest)), outermost=outermost
    )
    numbered = columns.filter(pl.lit(forest.order == _OP), pl.col("sequence").is_not_null())
    backward = numbered.filter(pl.col("forward_thread").is_not_null(), pl.col("outermost"))
    # Operators that are not differentiated show the number too; the last operator is the one.
    forward = numbered.filter(pl.col("forward_thread").is_null()).unique(
        ["root", "thread", "sequence"], keep="last"
    )
    made = backward.join(
        forward.select("root", "sequence", forward_thread="thread", made_by="row"),
        on=["root", "sequence", "forward_thread"],
    ).filter(pl.col("made_by") < pl.col("row"))
    ops = made["row"].to_numpy()
    layers = _innermost_layer(forest, made["made_by"].to_numpy())
    sequence = np.lexsort((ops, forest.lane[ops], forest.parent[ops]))
    return ops[sequence], layers[sequence]


def _innermost_layer(forest: Forest, rows: Integers) -> Integers:
    """Return the layer that each row is or lies in, -1 where there is none."""
    return nearest(forest.parent, rows, forest.order == _LAYER)


def _layers_around(forest: Forest, layer: Integers) -> Integers:
    """Return the layers around each layer, outermost first, the layer itself last, then -1."""
    inside_out = []
    while np.any(layer >= 0):
        inside_out.append(layer)
        outer = np.where(layer < 0, -1, forest.parent[layer])
        layer = _innermost_layer(forest, outer)
    chains = np.stack(inside_out, axis=1)
    column = np.count_nonzero(chains >= 0, axis=1)[:, None] - 1 - np.arange(len(inside_out))
    found = np.take_along_axis(chains, np.maximum(column, 0), axis=1)
    return np.where(column < 0, -1, found)


def _derive_layers(
    forest: Forest, ops: Integers, layers: Integers
) -> tuple[pl.DataFrame, Integers]:
    """Return one line per derived layer, outer ones first, and each operator's new parent.

    Columns: `template` (the forward layer), `parent`, `home` (the former parent of the
    operators), `op` (the first operator), `end_ns`.
    """
    home = forest.parent[ops]
    both = np.append(layers, _innermost_layer(forest, home))
    layers, around = np.split(_layers_around(forest, both), 2)
    begins = _changes(home) | _changes(forest.lane[ops])
    innermost, count, lines = home, len(forest), []
    for layer, enclosing_layer in zip(layers.T, around.T, strict=True):
        begins = begins | _changes(layer)
        first = np.flatnonzero(begins)
        # A gradient taken inside a layer's own forward is in that layer already.
        shown = (layer >= 0) & (layer != enclosing_layer)
        index = count + np.cumsum(shown[first]) - 1
        at = first[shown[first]]
        lines.append(
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
    return pl.concat(lines), innermost


def _changes(values: Integers) -> Integers:
    """Return whether each value differs from the value before; the first one does."""
    return np.append(True, values[1:] != values[:-1])


def _derived_rows(rows: SpanRows, derived: pl.DataFrame) -> SpanRows:
    copied = [name for name in _COPIED if name in rows.columns]
    first = rows[derived["op"]]
    return rows[derived["template"]].select(
        "kind",
        "name",
        first["start_ns"],
        derived["end_ns"],
        first["thread"],
        pl.lit(Provenance.DERIVED.value, dtype=PROVENANCE).alias("provenance"),
        *copied,
        pl.lit("backward").alias(f"{ATTRIBUTE}phase"),
    )


def _adopt(forest: Forest, homes: Integers, ops: Integers) -> Integers:
    """Return parents, with rows that lie beside a derived layer, but in its time, put into it."""
    derived = np.arange(len(forest) - len(homes), len(forest))
    home = np.append(forest.parent[: -len(homes)], homes)
    place = home * (forest.lane.max() + 1) + forest.lane
    free = forest.rows["parent_id"].is_null().to_numpy() & np.isin(place, place[derived])
    free[derived] = free[ops] = False
    rows = np.append(derived, np.flatnonzero(free))
    found = enclosing(place[rows], forest.start[rows], forest.end[rows], forest.order[rows])
    adopted = (found >= 0) & (rows < derived[0])
    parent = forest.parent.copy()
    parent[rows[adopted]] = rows[found[adopted]]
    return parent
