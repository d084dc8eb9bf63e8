"""Places each operator with each of its shapes below the roof."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.kernel.intensity import COLUMNS, ROOF_COLUMNS, with_intensity, with_roof
from xsp.answer.analyses.kernel.kernel_information import SOURCE_COLUMN, WORK_COLUMNS
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.owned_work import work_by_owner
from xsp.answer.analyses.shape import shapes_text
from xsp.answer.analyses.structure.sums import calls, launched, on_host, share_pct
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import roof_of
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace

_SHAPES = pl.List(pl.List(pl.Int64))
_COLUMNS = {
    "operator": "Name of the operator.",
    "shapes": "Shapes of the tensors put in; null where not known.",
    "element_types": "Their element types; null where not known.",
    "layer_type": "What it computes.",
    "calls": "How often it was called.",
    "time_ns": "Device time of what it launched itself, added up; without a device, its self time.",
    "share_pct": "That time as a share of that of all operators.",
    **WORK_COLUMNS,
    **COLUMNS,
    **ROOF_COLUMNS,
    **SOURCE_COLUMN,
}


@analysis(
    "How near is each operator, with each of its shapes, to what the device can do?",
    _COLUMNS,
    needs=(Need.OPERATORS,),
)
def operator_roofline(trace: Trace) -> pl.DataFrame:
    """Return time, work, rates and place below the roof of each operator by its shapes.

    Rows whose work is not known have no rates. `with_peak` says what the device can do, where the
    data sheet is not to count.

    Args:
        trace: A trace with operators.

    Raises:
        AnalysisError: The trace has no operators.
    """
    tree = Tree.of(trace)
    host = on_host(tree)
    among = tree.is_of(Kind.OP)
    rows = np.flatnonzero(among)
    on_device = bool(tree.is_of(*DEVICE_ACTIVITIES).any())
    time = launched(host, among)[0] if on_device else np.nan_to_num(host.own_ns(among))
    types = tree.attribute("input_dtypes", pl.List(pl.String))
    each = pl.DataFrame(
        {
            "operator": tree.spans["name"][rows],
            "shapes": shapes_text(tree.attribute("input_shapes", _SHAPES))[rows],
            "element_types": types.list.eval(pl.element().fill_null("?")).list.join(", ")[rows],
            "layer_type": layer_types(tree)[rows],
            "calls": calls(tree)[rows],
            "time_ns": time[rows],
        }
    )
    keys = ("operator", "shapes", "element_types")
    number = each.select(pl.struct(keys).rank("dense").cast(pl.Int64) - 1).to_series()
    # What kernels and library calls count is the work of the innermost operator around them.
    owner = np.full(len(among), -1)
    owner[rows] = number.to_numpy()
    inside = tree.nearest(among)
    owner = np.where(among | (inside < 0), owner, owner[np.maximum(inside, 0)])
    owner[tree.is_of(Kind.MEMCPY, Kind.MEMSET)] = -1
    work = work_by_owner(tree, owner).rename({"owner": "number"})
    sums = (
        each.with_columns(number=number)
        .group_by("number", maintain_order=True)
        .agg(*(pl.col(key).first() for key in (*keys, "layer_type")), pl.sum("calls", "time_ns"))
    )
    roof = roof_of(trace)
    table = with_intensity(sums.join(work, on="number", how="left"), roof, "time_ns")
    placed = with_roof(table, roof, "time_ns")
    rest = table.join(placed.select("number"), on="number", how="anti")
    rest = rest.with_columns(flops_per_s=pl.lit(None, pl.Float64))
    return (
        pl.concat([placed, rest], how="diagonal_relaxed")
        .filter(pl.col("time_ns") > 0)
        .with_columns(share_pct=share_pct("time_ns", float(sums["time_ns"].sum())))
        .sort("time_ns", "operator", "shapes", descending=[True, False, False])
        .select(*_COLUMNS)
    )
