"""The table: two traces and how they are aligned in, a row per span with its difference out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from xsp.analyses import Tree, by_operators, layer_types
from xsp.comparison.alignment import (
    Alignment,
    Bools,
    Floats,
    Nodes,
    align,
    align_across,
    frameworks_of,
    nodes_of,
    units_of,
)
from xsp.comparison.setting import holds_processes
from xsp.comparison.significance import (
    FALSE_DISCOVERY_RATE,
    Differences,
    Estimates,
    corrected,
)
from xsp.evaluation import generations
from xsp.level import Kind
from xsp.trace import Trace, attribute_column

COLUMNS = {
    "trace": "Name of the trace that is compared with the first.",
    "kind": "Kind of the span.",
    "change": "What became of it: `same`, `renamed`, `replaced` (another type in its place), "
    "`moved` (among its siblings, or elsewhere in the tree), `fused` (several became one), `split` "
    "(one became several), `removed` or `added`; the last two with what lies inside, unless that "
    "has rows of its own.",
    "path_a": "Path of the span in the first trace; null where it was added.",
    "path_b": "Path in the trace that is compared; null where it was removed.",
    "more_a": "Paths of the other spans of the first trace that were fused into it.",
    "more_b": "Paths of the other spans that it was split into, or that were left empty.",
    "type_a": "Class of the module, or the name where there is none, in the first trace.",
    "type_b": "The same in the trace that is compared.",
    "layer_type_a": "What it does, in words that hold for all frameworks, in the first trace.",
    "layer_type_b": "The same in the trace that is compared.",
    "confidence": "How much of two layers of different frameworks agrees (type, parameters, sizes "
    "of what comes out), from 0 to 1; null where names tell what belongs together.",
    "calls_a": "How many calls it stands for in the first trace; null where it was added.",
    "calls_b": "The same in the trace that is compared; null where it was removed.",
    "latency_a_ns": "Latency of all calls in the first trace, of fused spans their sum.",
    "latency_a_low_ns": "Lower end of its 95 % interval.",
    "latency_a_high_ns": "Upper end of its 95 % interval.",
    "latency_b_ns": "Latency of all calls in the trace that is compared, of split spans their sum.",
    "latency_b_low_ns": "Lower end of its 95 % interval.",
    "latency_b_high_ns": "Upper end of its 95 % interval.",
    "difference_ns": "What it costs more; of an added span all, of a removed one all, negative.",
    "difference_low_ns": "Lower end of its 95 % interval.",
    "difference_high_ns": "Upper end of its 95 % interval.",
    "ratio": "Latency over that in the first trace; where numbers of calls differ, of one call.",
    "own_difference_ns": "Difference without that of rows inside: on the host these sum to the "
    "model's difference. The table is sorted by its size.",
    "p_value": "Chance of a difference as large or larger, were there none; where numbers of calls "
    "differ, of a difference of one call.",
    "corrected_p_value": "The same, corrected for the number of rows (Benjamini-Hochberg); that of "
    "the root, which is asked for alone, is not corrected.",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, otherwise `not "
    "significant`; `unknown` where an interval is missing; null for what was added or removed.",
}

_ENDS = ("latency_ns", "latency_low_ns", "latency_high_ns")


def table_of(
    name: str, a: Trace, b: Trace, depth: Kind, *, operators: bool = False
) -> pl.DataFrame:
    """Return the table of `COLUMNS` of two traces, the root first, then what costs most.

    Args:
        name: What the trace `b` is called.
        a: The first trace.
        b: The trace that is compared with it.
        depth: Deepest kind of span that is compared.
        operators: Whether operators of different frameworks are paired, and not their layers.
    """
    if differ_in_framework(a, b):
        a, b = _worked(a), _worked(b)
    nodes = nodes_of(a, b, depth)
    alignment = _aligned((a, b), nodes, depth, operators=operators)
    side_a = _side(a, nodes[0], alignment, 0)
    side_b = _side(b, nodes[1], alignment, 1)
    removed, added = len(alignment.removed), len(alignment.added)
    # What one trace lacks stands as null rows, in the same place on both sides.
    left = pl.concat([side_a, side_a.clear(added)])
    paired = len(alignment.a)
    right = pl.concat([side_b[:paired], side_b.clear(removed), side_b[paired:]])
    rows = pl.concat(
        [
            left.rename(lambda column: f"{column}_a"),
            right.rename(lambda column: f"{column}_b"),
        ],
        how="horizontal",
    )
    changes = pl.Series(alignment.changes(*nodes), dtype=pl.String)
    confidence = np.full(rows.height, np.nan)
    if alignment.confidence is not None:
        confidence[:paired] = alignment.confidence
    return _judged(rows.with_columns(change=changes, confidence=confidence), name)


def differ_in_framework(a: Trace, b: Trace) -> bool:
    """Return whether two traces are of different frameworks, so that no names are alike."""
    first, second = frameworks_of(a), frameworks_of(b)
    return bool(first) and bool(second) and not first & second


def _worked(trace: Trace) -> Trace:
    """Return a trace whose layers last as long as their operators, if they tell that."""
    tree = Tree.of(trace)
    worked = by_operators(tree)
    return trace if worked is tree else Trace(worked.spans, trace.metadata)


def depth_across(a: Trace, b: Trace) -> Kind | None:
    """Return how deep two traces of different frameworks are compared: operators for one's layers.

    Returns:
        None where the frameworks are the same, or one trace has neither layers nor operators.
    """
    if not differ_in_framework(a, b):
        return None
    layers = (bool((each.spans["kind"] == Kind.LAYER.value).any()) for each in (a, b))
    return Kind.LAYER if all(layers) else Kind.OP


def _aligned(
    traces: tuple[Trace, Trace], nodes: tuple[Nodes, Nodes], depth: Kind, *, operators: bool
) -> Alignment:
    """Return which layers are the same: by what they compute, where frameworks differ."""
    if depth not in (Kind.LAYER, Kind.OP) or not differ_in_framework(*traces):
        return align(*nodes)
    pairs = zip(traces, nodes, strict=True)
    first, second = (units_of(trace, each, operators=operators) for trace, each in pairs)
    return align_across(nodes, (first, second))


def _parts(alignment: Alignment, side: int) -> Mapping[int, list[int]]:
    """Return the nodes of one side that became part of a pair, by the pair's place."""
    parts: dict[int, list[int]] = {}
    for each in alignment.joined:
        place = int(np.searchsorted(alignment.a, each.pair[0]))
        parts.setdefault(place, []).extend((each.more_a, each.more_b)[side])
    return parts


def _side(trace: Trace, nodes: Nodes, alignment: Alignment, side: int) -> pl.DataFrame:
    """Return one trace's share of the rows: its pairs, then what it has alone."""
    paired, alone = (alignment.a, alignment.b)[side], (alignment.removed, alignment.added)[side]
    parts = _parts(alignment, side)
    at = np.concatenate([paired, alone])
    calls = attribute_column(trace.spans, "calls", pl.Int64).fill_null(1).alias("calls")
    spans = trace.spans.select("kind", "path", "device", calls, *_ENDS)[nodes.row]
    whole = spans["latency_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    told_ns = _told_ns(
        nodes, [*at, *(place for places in parts.values() for place in places)], whole
    )
    own = told_ns[at]
    ends = Estimates(*(spans[end].fill_null(np.nan).to_numpy()[at].copy() for end in _ENDS))
    for place, places in parts.items():
        own[place] += told_ns[places].sum()
        for value, end in zip((ends.value, ends.low, ends.high), _ENDS, strict=True):
            value[place] += spans[end].fill_null(np.nan).gather(places).sum()
    on_host: Bools = spans["device"].is_null().to_numpy()[at]
    if not holds_processes(trace):
        ends = ends.widened(on_host)
    types = pl.Series(nodes.types, dtype=pl.String).gather(at)
    layer_type = layer_types(Tree.of(trace))[nodes.row][at]
    return (
        spans[at]
        .select("kind", "path", "calls")
        .with_columns(
            type=types,
            layer_type=layer_type,
            more=_more(spans["path"], parts, len(at)),
            latency=ends.value,
            low=ends.low,
            high=ends.high,
            own=own,
        )
    )


def _told_ns(nodes: Nodes, places: Sequence[int], whole: Floats) -> Floats:
    """Return the own time of nodes that are told, with that of all inside that is not told.

    Args:
        nodes: Nodes of one trace.
        places: Those that have rows of their own, or are part of another's; the root is first.
        whole: Latency of each node in ns.
    """
    told = np.zeros(len(nodes), np.bool_)
    told[places] = True
    owner = np.arange(len(nodes))
    for level in list(generations(nodes.parent))[1:]:
        untold = level[~told[level]]
        owner[untold] = owner[nodes.parent[untold]]
    own = np.bincount(owner, np.nan_to_num(nodes.own_ns), minlength=len(nodes))
    own[np.isnan(nodes.own_ns)] = np.nan
    holds_told = np.zeros(len(nodes), np.bool_)
    holds_told[owner[nodes.parent[np.flatnonzero(told)[1:]]]] = True
    return np.where(holds_told, own, whole)


def _more(paths: pl.Series, parts: Mapping[int, list[int]], rows: int) -> pl.Series:
    """Return for each row the paths of what became part of it."""
    lists = [paths.gather(places).to_list() for places in parts.values()]
    known = pl.DataFrame(
        {"row": list(parts), "more": lists}, schema={"row": pl.Int64, "more": pl.List(pl.String)}
    )
    numbers = pl.DataFrame({"row": np.arange(rows)})
    return numbers.join(known, on="row", how="left", maintain_order="left")["more"]


def _judged(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return rows with their differences and verdicts, in the order of what they cost."""
    a, b = _estimates(rows, "a"), _estimates(rows, "b")
    paired = (rows["path_a"].is_not_null() & rows["path_b"].is_not_null()).to_numpy()
    absent_a, absent_b = (rows[f"path_{side}"].is_null().to_numpy() for side in "ab")
    found = Differences.between(_zero_where(a, absent_a), _zero_where(b, absent_b))
    # What is called more often takes longer: whether it is slower, one call tells.
    each_a, each_b = a.of_one(_floats(rows["calls_a"])), b.of_one(_floats(rows["calls_b"]))
    each = Differences.between(each_a, each_b)
    p = np.where(paired, each.p, np.nan)
    corrected_p = np.concatenate([p[:1], corrected(p[1:])])
    verdicts = pl.Series(each.verdicts(corrected_p, FALSE_DISCOVERY_RATE))
    own = np.where(absent_b, 0.0, _floats(rows["own_b"])) - np.where(
        absent_a, 0.0, _floats(rows["own_a"])
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(a.value > 0, each_b.value / each_a.value, np.nan)
    table = rows.with_columns(
        trace=pl.lit(name),
        **{more: pl.col(more).fill_null([]) for more in ("more_a", "more_b")},
        kind=pl.coalesce("kind_a", "kind_b"),
        **{f"latency_{side}_ns": f"latency_{side}" for side in "ab"},
        **{f"latency_{side}_{end}_ns": f"{end}_{side}" for side in "ab" for end in ("low", "high")},
        difference_ns=found.value,
        difference_low_ns=found.value - found.half,
        difference_high_ns=found.value + found.half,
        ratio=ratio,
        own_difference_ns=own,
        p_value=p,
        corrected_p_value=corrected_p,
        verdict=pl.when(pl.Series(paired)).then(verdicts),
    )
    numbers = pl.col(pl.Float64).fill_nan(None)
    return _by_cost(table.select(*COLUMNS).with_columns(numbers))


def _by_cost(table: pl.DataFrame) -> pl.DataFrame:
    cost = pl.col("own_difference_ns").abs()
    rest = table[1:].sort(cost, descending=True, nulls_last=True, maintain_order=True)
    return pl.concat([table[:1], rest])


def _estimates(rows: pl.DataFrame, side: str) -> Estimates:
    return Estimates(*(_floats(rows[f"{end}_{side}"]) for end in ("latency", "low", "high")))


def _zero_where(of: Estimates, absent: Bools) -> Estimates:
    """Return estimates in which what is not there takes no time: known, and not missing."""
    return Estimates(*(np.where(absent, 0.0, end) for end in (of.value, of.low, of.high)))


def _floats(values: pl.Series) -> Floats:
    floats: Floats = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return floats
