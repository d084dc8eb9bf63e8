"""Groups the spans of a trace that look alike, and adds up each group.

The rows of a tree and the spans of a reduced export are such groups. A tree groups
neighbors with equal subtrees, an export groups small spans of one name; both share the
definition of looking alike (`alike`) and the sums (`sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import ON_DEVICE, Ints, Keys, lineage_keys, mix
from xsp.trace.attribute import attribute_column

_TIMES = ("least_ns", "most_ns", "busy_ns")
SUMMED = ("latency_ns", "self_ns", "overhead_ns", "device_ns")
# A pattern of siblings is folded where it recurs so often, and is at most so long.
_RECURRENCES, _LONGEST_PATTERN = 4, 32
# A module that is called by the same name so often is called in a loop.
_ROUNDS = 3
_OF_A_BLOCK = r" .*\b\d"  # names of operators that end with a block's number
_PROCESSES = 8
_STEPS = ("region", "layer")
_BOUNDS = ("latency_low_ns", "latency_high_ns")


@dataclass(frozen=True, slots=True)
class Folding:
    """Spans in groups, in the order of their first members.

    The parents of a group's members are one span, or spans of one group.

    Attributes:
        of: Number of each span's group; the root's group is 0.
        first: Index of each group's first member.
        count: Number of members of each group.
        parent: Number of each group's parent group, -1 for the root's group.
    """

    of: Ints
    first: Ints
    count: Ints
    parent: Ints


def fold(own: Keys, parent: Ints, levels: Sequence[Ints]) -> Folding:
    """Return spans in groups: siblings with equal keys, and alike the children of a group.

    Args:
        own: Key of each span.
        parent: Index of each span's parent, -1 for the root.
        levels: Indexes of the spans of depth 0, of depth 1, and so on.

    >>> levels = [np.array([0]), np.array([1, 2]), np.array([3, 4])]
    >>> own = np.array([0, 7, 7, 5, 5], dtype=np.uint64)
    >>> fold(own, np.array([-1, 0, 0, 1, 2]), levels).of
    array([0, 1, 1, 2, 2])
    """
    keys = lineage_keys(own, parent, levels)
    _, first, of, count = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    # np.unique numbers groups by key: they are renumbered by their first member.
    by_first = np.argsort(first)
    of, first = np.argsort(by_first)[of], first[by_first]
    above = np.where(parent[first] < 0, -1, of[parent[first]])
    return Folding(of, first, count[by_first], above)


def parent_rows(spans: pl.DataFrame) -> Ints:
    """Return the row of each span's parent, -1 for the root.

    In an unchecked trace a parent may be missing, or come after its child: the root is the
    parent of such spans, so that the way up from every span ends at the root.
    """
    ids = spans["span_id"].to_numpy()
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    wanted = spans["parent_id"].fill_null(0).to_numpy()
    by_id = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[by_id], wanted), len(ids) - 1)
    found = by_id[place].astype(np.int64)
    found[(ids[found] != wanted) | (found >= np.arange(len(ids)))] = 0
    found[0] = -1
    return found


def alike(spans: pl.DataFrame, *more: str, named: bool = True) -> Keys:
    """Return keys that are equal where spans look alike.

    Spans look alike that have the same kind, phase and exception, and the same class of
    module, or without a class the same name.

    Args:
        spans: Columns of `trace.spans`.
        more: Further columns that must be equal.
        named: Whether class, name and phase must be equal.
    """
    looks = spans.select("kind", *more, attribute_column(spans, "error"))
    if named:
        label = pl.coalesce(attribute_column(spans, "module_class"), "name").alias("label")
        looks = looks.hstack(spans.select(label, attribute_column(spans, "phase")))
    return looks.hash_rows().to_numpy()


def numberless(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans of which numbered steps have one name: that without the numbers.

    Marked spans whose names differ in numbers alone are numbered steps, where there are at least
    `_ROUNDS` of them in the trace. So are operators, for which libraries mark what they do to
    each block of a model: `FSDP::pre_forward (block.7)`.

    >>> names = ["Step 0 to 10", "Step 10 to 20", "Step 20 to 30", "phase 1", "phase 2"]
    >>> numberless(pl.DataFrame({"kind": "region", "name": names}))["name"].to_list()
    ['Step # to #', 'Step # to #', 'Step # to #', 'phase 1', 'phase 2']
    """
    marked = spans["kind"] == Kind.REGION.value
    if "attributes" in spans.columns:  # shapes, and numbers of models, are no steps' numbers
        marked &= ~attribute_column(spans, "is_group", pl.Boolean).fill_null(value=False)
    of_blocks = (spans["kind"] == Kind.OP.value) & spans["name"].str.contains(_OF_A_BLOCK)
    numbered = [(marked, r"\d+"), (of_blocks, r"\b\d+\b")]
    for chosen, number in numbered:
        rows = chosen.arg_true()
        if len(rows) < _ROUNDS:
            continue
        bare = pl.col("name").str.replace_all(number, "#")
        often = pl.len().over(bare) >= _ROUNDS
        names = spans[rows].select(pl.when(often).then(bare).otherwise("name")).to_series()
        spans = spans.with_columns(spans["name"].scatter(rows, names))
    return spans


def shapes(spans: pl.DataFrame, parent: Ints, levels: Sequence[Ints]) -> Keys:
    """Return keys that are equal where the subtrees of spans are alike.

    Such spans look alike, have the same number of parameters, and their children have
    the same names and shapes in the same order. Operators that an operator calls, calls of
    libraries, and sums of system calls do not count, but what they launched does (kernels,
    copies): operators copy what lies badly in memory, or not, from one step of a loop to the next.
    """
    parameters = attribute_column(spans, "parameter_bytes", pl.Int64).hash().to_numpy()
    looks, names = mix(alike(spans) + mix(parameters)), mix(spans["name"].hash().to_numpy())
    # Few processes stand apart: one may make the others wait.
    process = attribute_column(spans, "process", pl.Int64)
    if process.drop_nulls().n_unique() <= _PROCESSES:
        looks = mix(looks + np.where(process.is_null(), 0, process.hash().to_numpy()))
    worker = attribute_column(spans, "process_name", pl.String)  # that makes system calls
    looks = mix(looks + np.where(worker.is_null(), 0, worker.hash().to_numpy()))
    # Which spans tell the subtree around them from others: see `shapes`.
    kinds = spans["kind"]
    of_operator = (kinds == Kind.OP.value).to_numpy()
    inside = of_operator & of_operator[parent] & (parent >= 0)
    # Sums of system calls: those of one name occur in some steps only.
    sums = attribute_column(spans, "calls_per_step", pl.Float64).is_not_null().to_numpy()
    counts: NDArray[np.bool_] = ~inside & ~sums & (kinds != Kind.CALL.value).to_numpy()
    ordinals = np.zeros_like(looks)
    ordinals[counts] = _ordinals(parent[counts])
    keys, below = looks.copy(), np.zeros_like(looks)
    # From the deepest level up, so that children's keys are complete.
    for rows in reversed(levels[1:]):
        keys[rows] = mix(looks[rows] + below[rows])
        full = mix(keys[rows] + names[rows] + ordinals[rows])
        np.add.at(below, parent[rows], np.where(counts[rows], full, below[rows]))
    return keys


def steps(spans: pl.DataFrame) -> Keys:
    """Return keys that are equal where one module is called again; 0 for spans of no module.

    What a loop does is known by the names of its steps: one may differ inside from the next.
    """
    of_module = spans["kind"].is_in(_STEPS).to_numpy()
    names = mix(alike(spans) + mix(spans["name"].hash().to_numpy()))
    return np.where(of_module, np.maximum(names, 1), 0).astype(np.uint64)


def neighbors(shapes: Keys, steps: Keys, parent: Ints) -> Keys:
    """Return keys that are equal where siblings of one shape belong together.

    Siblings of one shape in a row are a run. In a loop, where steps of the same names recur
    whatever lies between them (`_loops`), all runs of one shape and step have equal keys. Where
    a pattern of runs recurs often enough elsewhere, the runs in the same place of the pattern
    have. The n-th key of one shape is the same in all parents, so that children of parents that
    are folded fold with each other.

    Args:
        shapes: Key of each span's subtree (`shapes`).
        steps: Key of each span that may be a step of a loop, 0 for others (`steps`).
        parent: Index of each span's parent, -1 for the root.

    >>> shapes = np.array([9, 7, 7, 5, 7], dtype=np.uint64)
    >>> parent = np.array([-1, 0, 0, 0, 0])
    >>> _firsts(neighbors(shapes, np.zeros_like(shapes), parent))
    array([0, 1, 1, 3, 4])
    >>> _firsts(neighbors(shapes, np.array([0, 3, 3, 0, 3], dtype=np.uint64), parent))
    array([0, 1, 1, 3, 1])
    """
    order = np.argsort(parent, kind="stable")
    families, shapes, steps = _changes(parent[order]), shapes[order], steps[order]
    family = np.cumsum(families, dtype=np.int64)
    loops = _loops(steps, family)
    parts = families | _changes(loops)
    heads = np.flatnonzero(parts | _changes(shapes))
    lengths = np.diff(heads, append=len(order))
    kinds = mix(shapes[heads] + lengths.astype(np.uint64))
    runs = _first_alike(kinds, np.cumsum(parts, dtype=np.int64)[heads])
    looped = np.flatnonzero(loops[heads] >= 0)
    rounds = heads[looped]
    loop = mix(loops[rounds].astype(np.uint64))
    runs[looped] = looped[_firsts(mix(shapes[rounds] + mix(steps[rounds] + loop)))]
    first = np.flatnonzero(runs == np.arange(len(runs)))
    looks, around = shapes[heads[first]], family[heads[first]].astype(np.uint64)
    keys = np.zeros(len(runs), dtype=np.uint64)
    keys[first] = mix(looks + mix(_ordinals(mix(looks + mix(around)))))
    result = np.empty(len(order), dtype=np.uint64)
    result[order] = np.repeat(keys[runs], lengths)
    return result


def _loops(steps: Keys, family: Ints) -> Ints:
    """Return the first step of the loop that each sibling belongs to, -1 for none.

    Steps are a loop where they recur, alone or in a pattern, at least `_ROUNDS` times. What
    follows a step belongs to the step's loop, and so does what precedes the first step.

    >>> steps = np.array([0, 3, 0, 3, 0, 0, 3, 0, 8, 0], dtype=np.uint64)
    >>> _loops(steps, np.ones(10, dtype=np.int64))
    array([ 1,  1,  1,  1,  1,  1,  1,  1, -1, -1])
    """
    result = np.full(len(steps), -1)
    rows = np.flatnonzero(steps)
    if len(rows) < _ROUNDS:
        return result
    loops, free = np.full(len(rows), -1), np.ones(len(rows), dtype=np.bool_)
    for period in range(1, _LONGEST_PATTERN + 1):
        starts, size = _patterns(steps[rows], family[rows], free, period, _ROUNDS)
        for start, end in zip(starts.tolist(), (starts + size).tolist(), strict=True):
            loops[start:end] = rows[start]
            free[start:end] = False
    before = np.searchsorted(rows, np.arange(len(steps)), side="right") - 1
    after = np.minimum(before + 1, len(rows) - 1)
    for place in (after, before):  # the step before a sibling has the last word
        there = (place >= 0) & (family[rows[place]] == family)
        result = np.where(there, loops[place], result)
    return result


def _firsts(keys: Keys) -> Ints:
    """Return for each key the place of the first that is equal."""
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    result: Ints = first[of]
    return result


def _first_alike(kinds: Keys, family: Ints) -> Ints:
    """Return for each run of siblings the first run in the same place of a recurring pattern.

    >>> kinds = np.array([9, 1, 2, 1, 2, 1, 2, 1, 2, 1], dtype=np.uint64)
    >>> _first_alike(kinds, np.zeros(10, dtype=np.int64))
    array([0, 1, 2, 1, 2, 1, 2, 1, 2, 1])
    """
    found = np.arange(len(kinds))
    rows = np.flatnonzero(np.bincount(family)[family] >= 2 * _RECURRENCES)
    kinds, family, free = kinds[rows], family[rows], np.ones(len(rows), dtype=np.bool_)
    # Short patterns first: a long pattern would also match two rounds of a short one.
    for period in range(2, _LONGEST_PATTERN + 1):
        starts, size = _patterns(kinds, family, free, period, _RECURRENCES)
        place = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        start = np.repeat(starts, size)
        # The first round of a pattern stands for the later ones, run by run.
        found[rows[start + place]] = rows[start + place % period]
        free[start + place] = False
    return found


def _patterns(
    kinds: Keys, family: Ints, free: NDArray[np.bool_], period: int, often: int
) -> tuple[Ints, Ints]:
    """Return the starts and sizes of stretches in which free runs recur so often with a period."""
    before, after = slice(None, -period), slice(period, None)
    same = (kinds[before] == kinds[after]) & (family[before] == family[after])
    same &= free[before] & free[after]
    edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
    starts, size = edges[::2], edges[1::2] - edges[::2] + period
    enough = size >= often * period
    return starts[enough], size[enough]


def heads(spans: pl.DataFrame, first: Ints) -> pl.DataFrame:
    """Return the columns that rows show of the first member of each group, beside its times."""
    label = pl.coalesce(attribute_column(spans, "module_class"), "name")
    phase, error = attribute_column(spans, "phase"), attribute_column(spans, "error")
    often = attribute_column(spans, "error_calls", pl.Int64)
    unlike = attribute_column(spans, "two_kinds", pl.String)
    guessed = attribute_column(spans, "calls_inferred", pl.Boolean)
    path = attribute_column(spans, "module_path", pl.String)
    worker = attribute_column(spans, "process_name", pl.String)
    return spans.select(
        "kind",
        "name",
        phase,
        error,
        often,
        unlike,
        guessed,
        path,
        worker,
        label=label,
        remark=_remark(spans),
        on_host=~ON_DEVICE,
    )[first]


def _remark(spans: pl.DataFrame) -> pl.Series:
    """Return the words about waiting and compiling that a row shows of each span, else null."""
    calls = attribute_column(spans, "calls", pl.Int64).fill_null(1)
    part = 100 * attribute_column(spans, "awaiting_ns", pl.Float64) * calls / spans["latency_ns"]
    known = spans.select(part=part.clip(upper_bound=100.0).round(), latency="latency_ns")
    awaiting = pl.when(pl.col("part") >= 1).then(
        pl.format("{} % awaiting", pl.col("part").cast(pl.Int64))
    )
    return known.select(awaiting).to_series()


def occurrences(spans: pl.DataFrame) -> pl.DataFrame:
    """Return how often each span occurred, and the shortest, longest and overall time of these.

    A span of a trace that sums up occurrences stands for `calls` of them, any other for itself.

    Args:
        spans: Columns of `trace.spans`.

    Returns:
        Columns `calls`, `least_ns`, `most_ns` and `busy_ns`; null only where no latency is known.
    """
    latency = pl.col("latency_ns").fill_nan(None)
    known = {name: attribute_column(spans, name, pl.Float64) for name in _TIMES}
    return spans.select(
        attribute_column(spans, "calls", pl.Int64).fill_null(1),
        *(pl.coalesce(values, latency).alias(name) for name, values in known.items()),
    )


def sums(spans: pl.DataFrame, of: Ints, *more: pl.Expr) -> pl.DataFrame:
    """Return the sums over the members of each group, one row per group.

    Unknown values are left out of a sum; the sum is null where no value is known. The sum of
    a bound is null where a known latency has no bound. Bounds are added up as if the errors
    of latencies were fully correlated, which gives the widest interval.

    Args:
        spans: Columns of `trace.spans` and of `occurrences`, and those that `more` needs.
        of: Number of each span's group.
        more: Further columns of the result, aggregated over a group's rows.
    """
    floats = pl.col(*SUMMED, *_BOUNDS).fill_nan(None)
    known = pl.col("latency_ns").is_not_null()
    return (
        spans.with_columns(floats, pl.Series("group", of))
        .group_by("group", maintain_order=True)
        .agg(
            *(total(pl.col(name)).alias(name) for name in SUMMED),
            *(_whole_total(pl.col(name).filter(known)).alias(name) for name in _BOUNDS),
            pl.len().cast(pl.Int64).alias("count"),
            pl.sum("calls"),
            total(pl.col("busy_ns")),
            pl.min("least_ns"),
            pl.max("most_ns"),
            *more,
        )
        .sort("group")
        .drop("group")
    )


def total(values: pl.Expr) -> pl.Expr:
    """Return the sum of the known values, null where no value is known: missing is not 0."""
    return pl.when(values.count() > 0).then(values.sum())


def _whole_total(values: pl.Expr) -> pl.Expr:
    """Return the sum, null where any value is unknown."""
    return pl.when(values.null_count() == 0).then(total(values))


def agreed(values: pl.Series, folding: Folding, rows: Ints) -> pl.Series:
    """Return the value that all members of a group share, null where they differ.

    Args:
        values: A column of a frame.
        folding: Groups of some rows of the frame.
        rows: The row of the frame for each index in `folding`.
    """
    heads = rows[folding.first]
    first = values.gather(heads)
    if values.null_count() == values.len():
        return first
    # Hashes are compared, as values of some types (lists of lists) are slow to compare.
    hashes = values.to_frame().hash_rows().to_numpy()
    # A group agrees where no member differs from the group's first.
    odd = hashes[rows] != hashes[heads][folding.of]
    differ = np.bincount(folding.of[odd], minlength=len(heads)) > 0
    shared = pl.when(pl.Series(differ)).then(None).otherwise(first)
    return pl.select(shared.alias(values.name)).to_series()


def _ordinals(keys: NDArray[np.integer]) -> Keys:
    """Return for each key how many equal ones stand before it.

    >>> _ordinals(np.array([7, 5, 7, 7]))
    array([0, 0, 1, 2], dtype=uint64)
    """
    order = np.argsort(keys, kind="stable")
    places = np.arange(len(keys))
    firsts = np.maximum.accumulate(np.where(_changes(keys[order]), places, 0))
    before = np.empty(len(keys), dtype=np.uint64)
    before[order] = places - firsts
    return before


def _changes(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether each value differs from its predecessor; true for the first value."""
    return np.append(True, values[1:] != values[:-1])


def chain_name(names: Sequence[str]) -> str:
    """Return one name for spans of which each does nearly all the work of the one before.

    >>> chain_name(["aten::linear", "aten::addmm"])
    'aten::linear → addmm'
    """
    if len(names) == 1:
        return names[0]
    space, colons, _ = names[0].rpartition("::")
    arrow = "⋯" if len(names) > 2 else "→"
    return f"{names[0]} {arrow} {names[-1].removeprefix(space + colons)}"
