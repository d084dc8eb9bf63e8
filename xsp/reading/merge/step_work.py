"""Keeps how long each of several steps took, and sums of what devices did in it.

A merged tree has one number for each span, and what one step did alone has no place in it. To
tell the spread of a sum over steps, the sums of each step are kept: by kernel, and by the span that
launched it.

    gemm in aten::mm in fc      step 0: 200 µs    step 1: 202 µs    step 2: 201 µs
    fill in aten::mm in fc      step 0:   0 µs    step 1:   1 µs    step 2:   0 µs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints, Observations, nearest
from xsp.provider import ATTRIBUTE
from xsp.reading.merge.device_time import device_times

_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
_AROUND = [kind.value for kind in (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)]
_SHAPES = pl.List(pl.List(pl.Int64))
_TEXTS = ("kernel", "operator", "layer")
_KEYS = ("kind", *_TEXTS, "shapes", "phase", "span", "layer_span")


def step_work(seen: Observations, members: Sequence[int]) -> dict[str, Any] | None:
    """Return how long each of some runs took and what devices did in it, for a trace's metadata.

    Args:
        seen: The rows of all runs.
        members: The runs, as indices into `seen.runs`.

    Returns:
        `latency_ns` and `device_ns` of each run (time in which a device worked); `names` and
        `shapes`, each once; and `work`, columns of a table of groups of device activities:
        `kind`; `kernel`, `operator` and `layer`, places in `names`; `shapes` put into the
        operator, a place in `shapes`; `phase`; `span` and `layer_span`, ids of the innermost
        span around but launches, and of the innermost layer; `count` of the activities in all
        runs; `time_ns`, a sum for each run. None where no device worked, or of a single run.
    """
    if len(members) < 2:
        return None
    latency_ns = [seen.runs[run].latency_ns for run in members]
    times = device_times(seen, members)
    if times is None:
        return {"latency_ns": latency_ns}
    done = pl.concat(
        [_of_run(seen, run).with_columns(step=pl.lit(step)) for step, run in enumerate(members)]
    )
    groups = done.group_by(*_KEYS, "step", maintain_order=True).agg(
        pl.len().alias("count"), pl.sum("time_ns")
    )
    steps = [
        pl.col("time_ns").filter(pl.col("step") == step).sum().alias(str(step))
        for step in range(len(members))
    ]
    table = groups.group_by(*_KEYS, maintain_order=True).agg(pl.sum("count"), *steps)
    names = pl.concat([table[name] for name in _TEXTS]).drop_nulls().unique(maintain_order=True)
    shapes = table["shapes"].drop_nulls().unique(maintain_order=True)
    places = {name: _places(table[name], names) for name in _TEXTS}
    plain = ("kind", "phase", "span", "layer_span", "count")
    columns = table.select(plain).to_dict(as_series=False)
    sums = table.select(pl.concat_list(map(str, range(len(members))))).to_series()
    return {
        "latency_ns": latency_ns,
        "device_ns": times[seen.first[list(members)]].tolist(),
        "names": names.to_list(),
        "shapes": [_listed(text) for text in shapes],
        "work": {
            **columns,
            **places,
            "shapes": _places(table["shapes"], shapes),
            "time_ns": sums.to_list(),
        },
    }


def _of_run(seen: Observations, run: int) -> pl.DataFrame:
    """Return a row for each kernel, copy and set of a run, with `_KEYS` and `time_ns`."""
    rows, place = seen.runs[run].rows, seen.of(run)
    assert rows is not None
    kind = rows["kind"].cast(pl.String)
    work = np.flatnonzero(kind.is_in(_ACTIVITIES).to_numpy())
    parent = rows["parent"].to_numpy().astype(np.int64)

    def around(*kinds: str) -> Ints:
        return nearest(parent, parent[work], kind.is_in(kinds).to_numpy())

    def told(name: str, at: Ints, dtype: Any = pl.String) -> pl.Series:
        known = f"{ATTRIBUTE}{name}" in rows.columns
        empty = pl.Series([None], dtype=dtype).new_from_index(0, rows.height)
        values = rows[f"{ATTRIBUTE}{name}"] if known else empty
        return _at(values, at)

    operator, layer, span = around("op"), around("layer"), around(*_AROUND)
    ids = pl.Series(seen.key[place])
    shapes = told("input_shapes", operator, _SHAPES)
    one = pl.element().cast(pl.List(pl.String)).list.join(" ").fill_null("?")
    return pl.select(
        kind=kind[work],
        kernel=pl.coalesce(told("full_name", work), rows["name"][work]),
        operator=_at(rows["name"], operator),
        layer=pl.coalesce(told("module_path", layer), _at(rows["name"], layer)),
        shapes=shapes.list.eval(one).list.join(","),
        phase=told("phase", layer),
        span=_at(ids, span),
        layer_span=_at(ids, layer),
        time_ns=pl.Series((seen.end_ns - seen.start_ns)[place][work]),
    )


def _at(values: pl.Series, rows: Ints) -> pl.Series:
    """The values at some rows, null at row -1."""
    found = values.gather(np.maximum(rows, 0)).to_frame("value")
    return found.select(pl.when(pl.Series(rows >= 0)).then("value")).to_series()


def _places(values: pl.Series, among: pl.Series) -> list[int | None]:
    numbers = pl.int_range(len(among), eager=True)
    return values.replace_strict(among, numbers, return_dtype=pl.Int64).to_list()


def _listed(text: str) -> list[list[int] | None]:
    """Read what stands for a list of shapes.

    >>> _listed("1 3 224,64,,?")
    [[1, 3, 224], [64], [], None]
    """
    return [
        None if shape == "?" else [int(size) for size in shape.split()] for shape in text.split(",")
    ]
