"""Lists the bytes of parameters, buffers and allocations of each layer."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.memory.held import held
from xsp.answer.analyses.structure.part import part_names
from xsp.answer.analyses.structure.sums import calls
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "part": "The step or marked part of the trace that the layer was called in.",
    "phase": "`forward` or `backward`.",
    "layer": "Dotted path of the module, or the layer's name where it has none.",
    "type": "Class of the module.",
    "calls": "How often it was called.",
    "parameter_bytes": "Its parameters, without those of modules called in it, or tied to others.",
    "shared_parameter_bytes": "Tied to those of a module before it, which counts them.",
    "buffer_bytes": "Its buffers, without those of the modules called in it.",
    "allocated_bytes": "Allocated in it, without what layers inside allocated.",
    "kept_bytes": "What it left behind, with all inside: activations; negative if it freed more.",
    "peak_bytes": "Most that one call held at a time, with all inside, above its start.",
}


@analysis("How large are each layer's parameters, buffers and activations?", _COLUMNS,
          needs=(Need.LAYERS, Need.MEMORY))  # fmt: skip
def layer_memory(trace: Trace) -> pl.DataFrame:
    """Return the sizes of each layer, in the order they began.

    Args:
        trace: A trace whose layers record what they allocate.

    Raises:
        AnalysisError: The trace has no layers, or no allocations.
    """
    tree = Tree.of(trace)
    rows = tree.rows(Kind.LAYER)
    keys = ("part", "phase", "layer", "type")
    frame = pl.select(
        part_names(tree)[rows],
        tree.attribute("phase")[rows],
        layer=pl.coalesce(tree.attribute("module_path")[rows], tree.spans["name"][rows]),
        type=tree.attribute("module_class")[rows],
        calls=pl.Series(calls(tree)[rows]),
    )
    shared = tree.attribute("shared_parameter_bytes", pl.Int64)
    sizes = pl.DataFrame(
        {
            "parameter_bytes": _own_size(
                tree, tree.attribute("parameter_bytes", pl.Int64) - shared.fill_null(0)
            )[rows],
            "shared_parameter_bytes": _own_size(tree, shared)[rows],
            "buffer_bytes": _own_size(tree, tree.attribute("buffer_bytes", pl.Int64))[rows],
        }
    )
    frame = pl.concat([frame, sizes, _memory(tree)[rows]], how="horizontal")
    summed = ("allocated_bytes", "kept_bytes")
    known = [pl.when(pl.col(name).count() > 0).then(pl.sum(name)).alias(name) for name in summed]
    largest = pl.max("parameter_bytes", "shared_parameter_bytes", "buffer_bytes", "peak_bytes")
    often = pl.col(summed) * pl.col("calls")
    return (
        frame.with_columns(often)
        .group_by(keys, maintain_order=True)
        .agg(pl.sum("calls"), *known, largest)
        .select(*_COLUMNS)
    )


def _own_size(tree: Tree, size: pl.Series) -> pl.Series:
    """Return a size of modules less that of the modules called in them, each of these once."""
    layers = tree.is_of(Kind.LAYER)
    above = tree.nearest(layers)
    inside = pl.DataFrame(
        {"above": above, "path": tree.attribute("module_path"), "size": size}
    ).filter(pl.Series(layers & (above >= 0)) & size.is_not_null())
    once = inside.unique(["above", "path"])
    taken = np.zeros(len(layers), dtype=np.int64)
    np.add.at(taken, once["above"].to_numpy(), once["size"].to_numpy())
    return (size - pl.Series(taken)).clip(lower_bound=0)


def _memory(tree: Tree) -> pl.DataFrame:
    """Compute the bytes that each span allocates outside its layers, leaves and holds at most."""
    memory, layers = held(tree), tree.is_of(Kind.LAYER)
    own, spans = np.zeros(len(layers), dtype=np.int64), len(layers)
    of = np.where(layers, np.arange(spans), tree.nearest(layers))[memory.row]
    np.add.at(own, of[of >= 0], memory.own_allocated[of >= 0])
    known = np.zeros(spans, dtype=np.bool_)
    known[memory.row] = True
    kept, peak = np.zeros(spans, dtype=np.int64), np.zeros(spans, dtype=np.int64)
    kept[memory.row], peak[memory.row] = memory.net, memory.peak
    sizes = {"allocated_bytes": own, "kept_bytes": kept, "peak_bytes": peak}
    return pl.DataFrame(sizes).select(pl.when(pl.Series(known)).then(pl.all()))
