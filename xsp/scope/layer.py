"""Puts the operators of a visit inside layers that are derived from the operators.

A layer lasts from the start of its first operator to the end of its last one, on whatever threads
these ran. Where its operators state nothing around them, they lie in what runs on their own thread,
and so does the layer; otherwise it is on no thread. `operators_ns` is the time in which at least
one of its operators ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.provider import ATTRIBUTE, Provenance, SpanRows, concat_rows, span_rows
from xsp.scope.call import Calls, derive
from xsp.scope.nesting import homes
from xsp.scope.path import Paths, numbered

Integers = NDArray[np.int64]

Describe = Callable[[tuple[str, ...]], Mapping[str, Any] | None]

_FORWARD = "forward"


def _undescribed(path: tuple[str, ...]) -> None:
    return None


def layered(
    ops: SpanRows,
    scopes: pl.Series,
    *,
    steps: pl.Series | None = None,
    phases: pl.Series | None = None,
    describe: Describe = _undescribed,
) -> SpanRows:
    """Return operators in layers, followed by these layers: one row for each call of each layer.

    An operator in another operator (by time on its thread, or as its `parent_id` states) lies in
    the layers that its scope has beyond that operator's scope, and these lie in that operator. A
    `parent_id` that states anything else becomes that of the outermost layer.

    Args:
        ops: Operators of one visit, on any threads.
        scopes: `List(String)`: layers around each operator, outermost first, as the parts of the
            innermost layer's path; null or empty where no layer is known.
        steps: Number of the graph run of each operator; operators of different runs share no
            layer. A visit may hold several steps. None: all are of one run.
        phases: `"backward"` or null for each operator; phases share no layer either.
        describe: Returns attributes of the layer with a path, or None. `module_path` is the path
            with dots, unless they name it otherwise.

    >>> ops = span_rows({"kind": "op", "name": ["Conv2D", "Relu"], "start_ns": [1, 5],
    ...                  "end_ns": [4, 9], "thread": [1, 2]})
    >>> found = layered(ops, pl.Series([["net", "conv"], ["net"]]))
    >>> found.select("name", "start_ns", "end_ns", "attr.operators_ns").rows()
    [('Conv2D', 1, 4, None), ('Relu', 5, 9, None), ('net', 1, 9, 7.0), ('conv', 1, 4, 3.0)]
    """
    paths = numbered(scopes)
    if not paths.parts:
        return ops
    home = homes(ops)
    # The graph run and the phase of each operator.
    run = pl.Series([0]).new_from_index(0, ops.height) if steps is None else steps
    forward = pl.Series([_FORWARD]).new_from_index(0, ops.height)
    phase = forward if phases is None else phases.cast(pl.String).fill_null(_FORWARD)
    runs = pl.DataFrame({"run": run.cast(pl.Int64), "phase": phase})
    # A number for each operator; operators with different numbers share no layer.
    outside = pl.when(pl.Series(home < 0)).then(ops["parent_id"])
    keys = runs.with_columns(outside.alias("outside"), home=pl.Series(home))
    number = keys.select(pl.struct(pl.all()).rank("dense").cast(pl.Int64))
    worlds = number.to_series().to_numpy()
    calls = derive(ops, paths, home, worlds)
    if not len(calls.layer):
        return ops
    # A number from which on ids are nobody else's, the same for the same operators.
    first = ops.row(0, named=True)
    text = f"{first['name']}\0{first['start_ns']}\0{first['thread']}\0{ops.height}"
    first_id = int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) << 22
    own_ids = first_id + np.arange(len(calls.layer))
    ops = _with_ids(ops, home, first_id + len(calls.layer))
    inside = ops.with_columns(_chosen(calls.innermost, own_ids, ops["parent_id"]))
    return concat_rows([inside, _layer_rows(ops, calls, home, runs, own_ids, (paths, describe))])


def _layer_rows(
    ops: SpanRows,
    calls: Calls,
    home: Integers,
    runs: pl.DataFrame,
    own_ids: Integers,
    described: tuple[Paths, Describe],
) -> SpanRows:
    """Return a row for each call of a layer."""
    first = calls.first
    around = pl.Series(home[first])
    outermost = ops.select(
        pl.when(around >= 0)
        .then(pl.col("id").gather(around.clip(0)))
        .otherwise(pl.col("parent_id").gather(first))
    ).to_series()
    attributes = _attributes(*described)[calls.layer]
    return span_rows(
        {
            "kind": Kind.LAYER.value,
            "name": attributes["name"],
            "start_ns": calls.start_ns,
            "end_ns": calls.end_ns,
            "thread": _threads(ops, calls),
            "id": own_ids,
            "parent_id": _chosen(calls.parent, own_ids, outermost),
            "provenance": Provenance.DERIVED.value,
            f"{ATTRIBUTE}operators_ns": calls.busy_ns.astype(np.float64),
            f"{ATTRIBUTE}phase": runs["phase"].gather(first),
            f"{ATTRIBUTE}call_index": _call_index(calls, runs[first]),
            **{name: attributes[name] for name in attributes.columns if name != "name"},
        }
    )


def _threads(ops: SpanRows, calls: Calls) -> pl.Series:
    """Return the thread of each layer's outermost layer, null where its operators state a place."""
    outermost, above = np.arange(len(calls.parent)), calls.parent
    while np.any(above >= 0):
        outermost = np.where(above >= 0, above, outermost)
        above = np.where(above >= 0, calls.parent[outermost], -1)
    placed = pl.when(pl.col("parent_id").is_null()).then("thread")
    return ops.select(placed).to_series().gather(calls.first[outermost])


def _attributes(paths: Paths, describe: Describe) -> pl.DataFrame:
    """Return name and attributes of each layer."""
    found = []
    for parts in paths.parts:
        told = {"module_path": ".".join(parts), **(describe(parts) or {})}
        attributes = {f"{ATTRIBUTE}{name}": value for name, value in told.items()}
        found.append({"name": parts[-1], **attributes})
    return pl.DataFrame(found, infer_schema_length=None)


def _call_index(calls: Calls, runs: pl.DataFrame) -> pl.Series:
    """Return which call of the layer each is within its graph run; null where it is the only one.

    The calls of a layer stand in the order of their starts.
    """
    frame = runs.with_columns(layer=pl.Series(calls.layer), start=pl.Series(calls.start_ns))
    key = ["run", "phase", "layer"]
    number = (pl.col("start").rank("ordinal").over(key) - 1).cast(pl.Int64)
    return frame.select(index=pl.when(pl.len().over(key) > 1).then(number)).to_series()


def _chosen(place: Integers, ids: Integers, otherwise: pl.Series) -> pl.Series:
    """Return the id at each place, and the other value where the place is -1."""
    told = pl.Series("parent_id", ids[np.maximum(place, 0)])
    return told.zip_with(pl.Series(place >= 0), otherwise.alias("parent_id"))


def _with_ids(ops: SpanRows, home: Integers, first_id: int) -> SpanRows:
    """Return operators of which those that hold others have ids."""
    holds = np.zeros(ops.height, dtype=bool)
    holds[home[home >= 0]] = True
    made = pl.when(pl.Series(holds)).then(first_id + pl.int_range(pl.len()))
    return ops.with_columns(id=pl.coalesce("id", made))
