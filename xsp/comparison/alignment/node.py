"""Nodes: two traces and a depth in, the spans that are aligned, numbered alike, out.

Spans of both traces have equal numbers where their names are equal, and so have types, kinds and
what lies inside, so that everything after compares numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.analyses import Tree
from xsp.comparison.alignment.sequence import Floats, Sequence
from xsp.evaluation import Ints, Keys, generations, mix
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace, attribute_column

Bools = NDArray[np.bool_]

# Names of modules that hold a whole model for some purpose: of DataParallel and of torch.compile.
_WRAPPERS = r"(^|\.)(module|_orig_mod)(\.|$)"

# What each depth adds to the depths before it.
DEPTHS: dict[Kind, tuple[Kind, ...]] = {
    Kind.PIPELINE: (Kind.PIPELINE,),
    Kind.LAYER: (Kind.LAYER,),
    Kind.OP: (Kind.OP,),
    Kind.CALL: (Kind.CALL,),
    Kind.KERNEL: DEVICE_ACTIVITIES,
}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The spans of one trace that are aligned, in the trace's order, the root first.

    Attributes:
        row: Row of each in `trace.spans`.
        parent: Place of the nearest one around it, -1 for the root.
        own_ns: Latency less that of the next ones inside, NaN where not known.
        types: Class of the module of each, or its name where there is none.
        parameters: Size of the module's parameters in bytes, -1 where not known.
        module: Number of the module's path in the model, -1 for the model and what is no module.
        children: Places of all but the root, those of one parent together.
        begin: Where in `children` those of each one begin; and where the last end.
        like: Kind, name, type and content of each as numbers shared with the other trace.
        sequence: Key of the kinds, names and types of all children, in their order.
    """

    row: Ints
    parent: Ints
    own_ns: Floats
    types: list[str]
    parameters: Ints
    module: Ints
    children: Ints
    begin: Ints
    like: Sequence
    sequence: Keys

    def __len__(self) -> int:
        return len(self.row)

    def children_of(self, node: int) -> Ints:
        """Return the places of the children of one."""
        return self.children[self.begin[node] : self.begin[node + 1]]


def nodes_of(a: Trace, b: Trace, depth: Kind) -> tuple[Nodes, Nodes]:
    """Return the spans of two traces down to a depth, one of `DEPTHS`."""
    wanted = list(DEPTHS)[: list(DEPTHS).index(depth) + 1]
    kinds = tuple(kind for each in wanted for kind in DEPTHS[each])
    trees = [Tree.of(trace) for trace in (a, b)]
    among = [tree.is_of(*kinds).copy() for tree in trees]
    for each in among:
        each[0] = True  # the root, whatever it is
    rows = [np.flatnonzero(each) for each in among]
    words = [_words(tree.spans[kept]) for tree, kept in zip(trees, rows, strict=True)]
    numbers = _numbers(*words)
    first, second = (_nodes(*each) for each in zip(trees, among, words, numbers, strict=True))
    return first, second


def _words(spans: pl.DataFrame) -> pl.DataFrame:
    """Return kind (with the phase), name and type of spans, and how large their parameters are."""
    phase = attribute_column(spans, "phase").fill_null("")
    type_ = attribute_column(spans, "module_class")
    parameters = attribute_column(spans, "parameter_bytes", pl.Int64).fill_null(-1)
    return spans.select(
        "name",
        kind=pl.col("kind") + "/" + phase,
        type=pl.coalesce(type_, "name"),
        parameter_bytes=parameters,
        module=attribute_column(spans, "module_path").fill_null("").str.replace_all(_WRAPPERS, ""),
    )


def _numbers(a: pl.DataFrame, b: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return kind, name and type as numbers that both share; names of digits below zero."""
    both = pl.concat([a, b])
    texts = both.select(
        pl.col(each).cast(pl.Enum(both[each].unique().sort())).to_physical().cast(pl.Int64)
        for each in ("kind", "name", "type", "module")
    )
    digits = both["name"].str.contains(r"^\d+$")
    name = pl.when(digits).then(-1 - texts["name"]).otherwise(texts["name"])
    module = pl.when(both["module"] == "").then(-1).otherwise(texts["module"])
    numbered = texts.with_columns(name=name, module=module, parameters=both["parameter_bytes"])
    return numbered[: a.height], numbered[a.height :]


def _nodes(tree: Tree, among: Bools, words: pl.DataFrame, numbers: pl.DataFrame) -> Nodes:
    row = np.flatnonzero(among)
    place = np.cumsum(among) - 1
    above = tree.nearest(among)[row]
    parent = np.where(above < 0, -1, place[above])
    kind, name, type_, module, parameters = (numbers[each].to_numpy() for each in numbers.columns)
    children = np.argsort(parent, kind="stable")[1:]
    begin = np.searchsorted(parent[children], np.arange(len(row) + 1))
    ordinal = np.zeros(len(row), np.int64)
    ordinal[children] = np.arange(len(children)) - begin[parent[children]]
    own = _key(kind, type_, parameters)
    label = _key(kind, name, type_)
    content = _contents(own, parent, ordinal)
    like = Sequence(kind, name, type_, content.view(np.int64))
    sequence = np.zeros(len(row), np.uint64)
    np.add.at(sequence, parent[children], mix(label[children] + _spread(ordinal[children])))
    own_ns, types = tree.own_ns(among)[row], words["type"].to_list()
    return Nodes(row, parent, own_ns, types, parameters, module, children, begin, like, sequence)


def _contents(own: Keys, parent: Ints, ordinal: Ints) -> Keys:
    """Return a key for the kinds, types and parameters of each and of all inside, in order."""
    keys = own.copy()
    for level in list(generations(parent))[:0:-1]:  # from the deepest up, without the root
        np.add.at(keys, parent[level], mix(keys[level] + _spread(ordinal[level])))
    return keys


def _key(*columns: Ints) -> Keys:
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = mix(key ^ column.astype(np.int64).view(np.uint64))
    return key


def _spread(ordinal: Ints) -> Keys:
    return mix(ordinal.astype(np.uint64))
