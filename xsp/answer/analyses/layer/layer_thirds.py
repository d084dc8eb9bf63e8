"""Sums time, memory and work of each third of a model's layers (Table X of the paper)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.answer.analyses.layer.share import totals
from xsp.answer.analyses.owned_work import MEANINGS, work_by_owner
from xsp.answer.analyses.total import total
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

THIRDS: Final = ("first", "middle", "last")
_SHARES = {
    "own_ns": "latency_pct",
    "own_device_ns": "device_pct",
    "own_allocated_bytes": "allocated_pct",
    "flops": "flops_pct",
    "accessed_bytes": "accessed_pct",
}
_WITHIN = ("group", "phase")
_COLUMNS = columns(
    "group", "phase",
    third="Third of the modules, in the order in which they are first called.",
    layers="How many layers are in it.",
    most_of="Of what it has more than the other two: latency, device, allocated and so on.",
    own_ns="Their latencies less those of the layers inside, summed.",
    own_low_ns="Lower end of its 95 % interval.",
    own_high_ns="Upper end of its 95 % interval.",
    latency_pct="This time as a share of that of the three thirds.",
    own_device_ns="Time in which devices worked on what they launched, without the layers inside.",
    device_pct="This time as a share of that of the three thirds.",
    own_allocated_bytes="What its layers allocated less what the layers inside did, summed.",
    allocated_pct="This as a share of what the three thirds allocated.",
    flops="Operations in its layers.",
    flops_pct="These as a share of those in the three thirds.",
    accessed_bytes="Bytes that its layers read and wrote.",
    accessed_pct="These as a share of those of the three thirds.",
    work_source=MEANINGS["work_source"],
)  # fmt: skip


@analysis("Which third of the model needs most?", _COLUMNS, needs=(Need.LAYERS,))
def layer_thirds(trace: Trace) -> pl.DataFrame:
    """Return time, memory and work of the first, middle and last third of the layers.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    shares = (
        (100 * pl.col(name) / pl.sum(name).over(_WITHIN)).fill_nan(None).alias(share)
        for name, share in _SHARES.items()
    )
    sums = [total(name) for name in _SHARES if name != "own_ns"]
    sources = pl.col("work_source").str.split(", ").explode().drop_nulls().unique().sort()
    # Rows of layers with `third`: that of the model which each is in, from 0.
    # The paper divides by the layers' index, and runs each layer once, forwards. Here a module
    # keeps in every call, and in the backward pass, the third that it was in when it was first
    # called.
    rows = _worked(trace, layer_rows(trace))
    modules = rows.select("group", "module").unique(maintain_order=True)
    number = pl.int_range(pl.len()).over("group")
    thirds = modules.with_columns(third=3 * number // pl.len().over("group"))
    numbered = rows.join(thirds, on=["group", "module"], nulls_equal=True, maintain_order="left")
    return (
        numbered.group_by(*_WITHIN, "third", maintain_order=True)
        .agg(
            pl.min("index"),
            pl.len().cast(pl.Int64).alias("layers"),
            *totals("own_ns"),
            *sums,
            sources.str.join(", ").replace("", None),
        )
        .with_columns(shares)
        .with_columns(most_of=_most(_SHARES.values()))
        .sort(pl.min("index").over(_WITHIN), "third", maintain_order=True)
        .with_columns(
            pl.col("third").replace_strict(dict(enumerate(THIRDS)), return_dtype=pl.String)
        )
        .select(*_COLUMNS)
    )


def _worked(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of layers with the work of the spans of which each is the innermost layer."""
    tree = Tree.of(trace)
    among = np.zeros(len(tree.parent), np.bool_)
    among[rows["row"].to_numpy()] = True
    owner = np.where(among, np.arange(len(among)), tree.nearest(among))
    work = work_by_owner(tree, owner)
    accessed = pl.sum_horizontal("read_bytes", "write_bytes", ignore_nulls=True)
    known = pl.any_horizontal(pl.col("read_bytes", "write_bytes").is_not_null())
    work = work.with_columns(accessed_bytes=pl.when(known).then(accessed))
    return rows.join(work, left_on="row", right_on="owner", how="left", maintain_order="left")


def _most(shares: Iterable[str]) -> pl.Expr:
    """Return the names of the shares that no other third of the same model exceeds."""
    names = [
        pl.when(pl.col(share) == pl.col(share).max().over(_WITHIN)).then(
            pl.lit(share.removesuffix("_pct"))
        )
        for share in shares
    ]
    return pl.concat_str(names, separator=", ", ignore_nulls=True).replace("", None)
