"""Units: the nodes of a trace in, the layers that are paired across frameworks, and facts, out.

Frameworks name and nest layers differently, so only the layers that compute are paired: those
that are no containers, the outermost of them. Where a trace has no layers its operators are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.analyses import Tree, layer_types
from xsp.comparison.alignment.node import Bools, Nodes
from xsp.comparison.alignment.sequence import Floats
from xsp.evaluation import Ints
from xsp.layer_type import LayerType
from xsp.level import Kind
from xsp.trace import Trace

_SHAPES = pl.List(pl.List(pl.Int64))
_FUSED = re.compile(r"fused|relu|gelu|silu|swish|act(?:ivation)?$", re.IGNORECASE)
_PADS = re.compile(r"pad", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Units:
    """The layers of one trace that are paired, in the order in which they began.

    Attributes:
        place: Place of each in the trace's `Nodes`.
        type: Layer type, with the phase where that is backward; empty where not known.
        parameters: Size of the parameters in bytes, NaN where not known.
        shape: Sizes of what came out: rising, without the batch and axes of one; None: not known.
        module: Number of the module's path, shared with the other trace; -1 for none.
        fuses: Whether the layer's name, class or operators tell that it does more than its type.
        pads: Whether its class or name tells that it pads.
    """

    place: Ints
    type: list[str]
    parameters: Floats
    shape: list[tuple[int, ...] | None]
    module: Ints
    fuses: Bools
    pads: Bools

    def __len__(self) -> int:
        return len(self.place)

    def is_of(self, *types: LayerType) -> Bools:
        """Return which units are of some layer types, in whichever phase."""
        found: Bools = np.array([each.partition("/")[0] in types for each in self.type], np.bool_)
        return found


def frameworks_of(trace: Trace) -> frozenset[str]:
    """Return the frameworks that a trace's layers are of; its operators, where it has no layers.

    Spans without a statement are PyTorch's where a class of a module or a namespace says so.
    """
    tree = Tree.of(trace)
    layers = tree.is_of(Kind.LAYER)
    among = pl.Series(layers if layers.any() else tree.is_of(Kind.OP))
    classes, names = tree.attribute("module_class"), tree.spans["name"]
    torch = pl.select(
        pl.when(classes.is_not_null() | names.str.contains("::")).then(pl.lit("pytorch"))
    ).to_series()
    stated = pl.select(pl.coalesce(tree.attribute("framework"), torch)).to_series()
    return frozenset(stated.filter(among).drop_nulls().unique().to_list())


def units_of(trace: Trace, nodes: Nodes, *, operators: bool) -> Units:
    """Return the layers of a trace that are paired.

    Args:
        trace: Any trace.
        nodes: Its nodes.
        operators: Whether operators are paired, even where there are layers.
    """
    tree = Tree.of(trace)
    types = layer_types(tree)
    computing = _computing(tree, types, operators=operators)
    rows = np.flatnonzero(computing & (tree.nearest(computing) < 0))
    rows = rows[np.isin(rows, nodes.row)]
    rows = rows[np.argsort(tree.spans["start_ns"].to_numpy()[rows], kind="stable")]
    place = np.searchsorted(nodes.row, rows)
    inside = _Inside(tree, rows)
    class_ = pl.coalesce(tree.attribute("module_class"), tree.spans["name"])
    words = pl.select(class_ + " " + tree.spans["name"]).to_series()[rows].to_list()
    return Units(
        place,
        _typed(tree, types, rows),
        inside.parameters(),
        inside.shapes(),
        nodes.module[place],
        inside.fused() | np.array([bool(_FUSED.search(each)) for each in words], np.bool_),
        np.array([bool(_PADS.search(each)) for each in words], np.bool_),
    )


def _computing(tree: Tree, types: pl.Series, *, operators: bool) -> Bools:
    layers = tree.is_of(Kind.LAYER)
    if operators or not layers.any():
        return tree.is_of(Kind.OP)
    held = types.eq_missing(LayerType.CONTAINER.value).to_numpy()
    found: Bools = layers & ~held
    return found


def _typed(tree: Tree, types: pl.Series, rows: Ints) -> list[str]:
    backward = tree.attribute("phase")[rows].eq_missing("backward").to_list()
    told = types[rows].fill_null("").to_list()
    return [f"{kind}/backward" if back else kind for kind, back in zip(told, backward, strict=True)]


class _Inside:
    """What the operators in units tell of units that tell nothing themselves.

    Args:
        tree: The trace.
        rows: Rows of the units.
    """

    def __init__(self, tree: Tree, rows: Ints) -> None:
        self._tree, self._rows = tree, rows
        among = np.zeros(tree.spans.height, np.bool_)
        among[rows] = True
        self._owner = np.where(among, np.arange(len(among)), tree.nearest(among))

    def parameters(self) -> Floats:
        """Return the bytes of the parameters: the unit's own statement, or its operators' sum."""
        stated = self._tree.attribute("parameter_bytes", pl.Int64)
        summed = self._of_operators(stated).group_by("owner").agg(pl.sum("value"))
        return self._filled(stated.cast(pl.Float64), summed)

    def shapes(self) -> list[tuple[int, ...] | None]:
        """Return the sizes of what came out: of the unit, or of the last operator in it."""
        stated = self._tree.attribute("output_shapes", _SHAPES).list.first()
        ended = self._of_operators(stated).sort("end_ns", maintain_order=True)
        last = ended.group_by("owner").agg(pl.last("value"))
        known = dict(last.iter_rows())
        own = stated[self._rows].to_list()
        told = (
            known.get(row) if of is None else of
            for of, row in zip(own, self._rows.tolist(), strict=True)
        )
        return [None if shape is None else _sizes(shape) for shape in told]

    def fused(self) -> Bools:
        """Return which units have operators that say which other layers were fused into them."""
        told = self._tree.attribute("fused_layers", pl.List(pl.String)).list.len() > 0
        owners = self._owner[told.fill_null(value=False).to_numpy()]
        return np.isin(self._rows, owners)

    def _of_operators(self, values: pl.Series) -> pl.DataFrame:
        frame = pl.DataFrame(
            {"owner": self._owner, "value": values, "end_ns": self._tree.spans["end_ns"]}
        )
        return frame.filter(pl.Series(self._tree.is_of(Kind.OP))).drop_nulls("value")

    def _filled(self, stated: pl.Series, known: pl.DataFrame) -> Floats:
        values = dict(known.iter_rows())
        own = stated[self._rows].to_list()
        pairs = zip(own, self._rows.tolist(), strict=True)
        return np.array(
            [values.get(row, math.nan) if of is None else of for of, row in pairs], np.float64
        )


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return sizes that do not depend on where a framework has the channels.

    >>> _sizes([8, 64, 56, 56]) == _sizes([8, 56, 56, 64])
    True
    """
    return tuple(sorted(size for size in shape[1:] if size != 1))
