"""Sums calls and times of each module with all modules inside, nested by path."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.structure.part import part_names
from xsp.answer.analyses.structure.sums import on_host, outermost, share_pct, sums_of, times
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.matching import Ints
from xsp.trace import Trace, total

_COLUMNS = {
    "part": "The step or marked part of the trace that the module was called in.",
    "phase": "`forward` or `backward`.",
    "module": "Dotted path of the module, empty for the model itself; `*` stands for numbers.",
    "depth": "How many names the path has.",
    "type": "Class of the module; null where it is only a name in the paths of others.",
    "layer_type": "What it does, in words that hold for all frameworks.",
    "modules": "How many modules the row stands for: more than one where numbers are folded.",
    "calls": "How often they were called; 0 where it is only a name in the paths of others.",
    "latency_ns": "Latency of the module, or of all modules whose paths lie below.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "share_pct": "Latency as a share of the trace's.",
    "own_ns": "Latency less that of the layers inside: these sum to the layers' time.",
    "own_low_ns": "Lower end of its 95 % interval.",
    "own_high_ns": "Upper end of its 95 % interval.",
    "own_share_pct": "Self time as a share of the trace's latency.",
    "device_ns": "Time in which a device worked for it, and for all modules below; null where no "
    "device worked.",
    "device_share_pct": "That time as a share of the time in which devices worked for the trace.",
}
# A name that is a number, or ends in one: `3`, `BertLayer_3`.
_NUMBERED = r"(^|_)\d+$"


@analysis("Where in the model does the time go, module by module?", _COLUMNS,
          needs=(Need.LAYERS,))  # fmt: skip
def module_latency(trace: Trace, *, fold: bool = False, depth: int | None = None) -> pl.DataFrame:
    """Return each module, and each name that only leads to modules, in the order they began.

    Args:
        trace: A trace with layers.
        fold: Whether modules of one class whose paths differ in numbers alone, as repeated blocks
            do, are one row: `layers.*.mlp` for `layers.0.mlp`, `layers.1.mlp`, …
        depth: Deepest row, in names of the path; None shows all.

    Raises:
        AnalysisError: The trace has no layers.
    """
    tree = on_host(Tree.of(trace))
    layers = tree.is_of(Kind.LAYER)
    rows = tree.rows(Kind.LAYER)
    module = pl.coalesce(tree.attribute("module_path")[rows], tree.spans["name"][rows])
    frame = pl.select(
        part_names(tree)[rows],
        tree.attribute("phase")[rows],
        path=module,
        type=tree.attribute("module_class")[rows],
        layer_type=layer_types(tree)[rows],
        row=pl.Series(rows),
        device_ns=tree.spans["device_ns"][rows],
    ).hstack(times(tree, layers)[rows])
    frame = frame.join(_names(frame, fold=fold), on="path", how="left", maintain_order="left")
    deepest = frame["names"].list.len().max()
    assert isinstance(deepest, int)
    above = tree.nearest(layers)
    tables = [
        _at_depth(frame, above, at)
        for at in range(min(deepest, deepest if depth is None else depth) + 1)
    ]
    whole = tree.latency_ns()[0]
    return (
        pl.concat(tables)
        .with_columns(
            share_pct=share_pct("latency_ns", whole),
            own_share_pct=share_pct("own_ns", whole),
            device_share_pct=share_pct("device_ns", tree.spans["device_ns"][0] or 0.0),
        )
        .with_columns(order=pl.min("first").over("part", "phase"))
        .sort("order", "first", "depth", maintain_order=True)
        .select(*_COLUMNS)
    )


def _names(frame: pl.DataFrame, *, fold: bool) -> pl.DataFrame:
    """Return the names that each path consists of, with `*` for numbers if they are folded.

    Returns:
        Columns `path` and `names`, a list: `["layers", "*", "mlp"]`.
    """
    paths = frame.unique("path", maintain_order=True).select("path", "type")
    split = pl.when(pl.col("path") == "").then(pl.lit([], dtype=pl.List(pl.String)))
    paths = paths.with_columns(names=split.otherwise(pl.col("path").str.split(".")))
    deepest = paths["names"].list.len().max()
    if fold and isinstance(deepest, int):
        for at in range(deepest):
            paths = _folded(paths, at)
    return paths.select("path", "names")


def _folded(paths: pl.DataFrame, at: int) -> pl.DataFrame:
    """Return paths with `*` for the number in the name at a place, where blocks repeat.

    A name has a number that is one, or ends in `_` and one. Blocks repeat where several modules
    that differ in this number alone are of one class.
    """
    here = pl.col("names").list.len() == at + 1
    name = pl.col("names").list.get(at, null_on_oob=True)
    key = ("around", "starred")
    numbered = paths.with_columns(
        around=pl.col("names").list.head(at),
        name=name,
        starred=pl.when(name.str.contains(_NUMBERED)).then(name.str.replace(r"\d+$", "*")),
        of=pl.when(here).then(pl.col("type")),
    )
    siblings = (
        numbered.drop_nulls("starred")
        .group_by(key)
        .agg(repeats=(pl.col("of").drop_nulls().n_unique() <= 1) & (pl.n_unique("name") > 1))
    )
    names = pl.col("names")
    star = pl.concat_list(names.list.head(at), pl.col("starred"), names.list.slice(at + 1))
    return (
        numbered.join(siblings, on=key, how="left", maintain_order="left")
        .with_columns(names=pl.when("repeats").then(star).otherwise("names"))
        .select("path", "type", "names")
    )


def _at_depth(frame: pl.DataFrame, above: Ints, depth: int) -> pl.DataFrame:
    """Return the row of each module, or beginning of modules' paths, of so many names.

    Args:
        frame: A row for each layer: `part`, `phase`, `path`, `type`, `names`, its times, and
            `row`, that of its span.
        above: Row of each span's innermost layer around it, -1 for none.
        depth: The number of names.
    """
    by = ("part", "phase", "module")
    length = pl.col("names").list.len()
    chosen = frame.filter(length >= depth).with_columns(
        module=pl.col("names").list.head(depth).list.join("."), here=length == depth
    )
    rows = chosen["row"].to_numpy()
    among, key = np.zeros(len(above), np.bool_), np.zeros(len(above), np.uint64)
    among[rows], key[rows] = True, chosen.select(by).hash_rows().to_numpy()
    first = outermost(above, among, key)[rows]
    own = [
        pl.when(pl.col("here").any()).then(part).alias(part.meta.output_name())
        for part in sums_of("own", "here")
    ]
    return (
        chosen.with_columns(pl.Series("outer", first))
        .group_by(by, maintain_order=True)
        .agg(
            pl.lit(depth, dtype=pl.Int64).alias("depth"),
            pl.col("type", "layer_type").filter("here").drop_nulls().first(),
            pl.max_horizontal(pl.col("path").filter("here").n_unique(), 1).cast(pl.Int64)
            .alias("modules"),
            pl.col("calls").filter("here").sum(),
            *sums_of("latency", "outer"),
            *own,
            total(pl.col("device_ns").filter("outer")).alias("device_ns"),
            pl.min("row").alias("first"),
        )
    )  # fmt: skip
