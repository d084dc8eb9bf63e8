"""Makes the tables of a comparison: spans, layer types and library calls beside each other.

A row has what something takes in both traces, the difference, and the verdict on it. The sums by
layer type and by library call hold where no span of one trace is one of the other: across
frameworks, and where one runs a layer as one operator and another as five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from xsp.answer.analyses import Tree, by_layer_type, by_primitive, layer_types
from xsp.answer.comparison.alignment import Alignment, Bools, Floats, Nodes, align, nodes_of
from xsp.answer.comparison.device import NodeWork, floats
from xsp.answer.comparison.significance import (
    FALSE_DISCOVERY_RATE,
    Differences,
    Estimates,
    corrected,
    with_ends,
)
from xsp.answer.comparison.whole import holds_processes
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints, generations
from xsp.trace import Trace, attribute_column

COLUMNS: Mapping[str, str] = {
    "trace": "Name of the trace that is compared with the first.",
    "kind": "Kind of the span.",
    "phase": "`forward` or `backward`; null where the trace does not tell.",
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
    "calls_a": "How many calls it stands for in the first trace; null where it was added.",
    "calls_b": "The same in the trace that is compared; null where it was removed.",
    **with_ends(
        "latency_a", "_ns", "Latency of all calls in the first trace, of fused spans their sum."
    ),
    **with_ends(
        "latency_b",
        "_ns",
        "Latency of all calls in the trace that is compared, of split spans their sum.",
    ),
    **with_ends(
        "difference",
        "_ns",
        "What it costs more; of an added span all, of a removed one all, negative.",
    ),
    "ratio": "Latency over that in the first trace; where numbers of calls differ, of one call.",
    "own_difference_ns": "Difference without that of rows inside: on the host these sum to the "
    "model's difference. The table is sorted by its size, or by that of "
    "`own_device_difference_ns` where that is larger.",
    "p_value": "Chance of a difference as large or larger, were there none; where numbers of calls "
    "differ, of a difference of one call.",
    "corrected_p_value": "The same, corrected for the number of rows (Benjamini-Hochberg); that of "
    "the root, which is asked for alone, is not corrected.",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, otherwise `not "
    "significant`; `unknown` where an interval is missing; null for what was added or removed.",
    **with_ends(
        "device_a",
        "_ns",
        "Device time a step of all kernels, copies and sets launched in it in the first trace, "
        "added up; null of kernels themselves, and where no device worked.",
    ),
    **with_ends("device_b", "_ns", "The same in the trace that is compared."),
    **with_ends("device_difference", "_ns", "How much longer devices work for it."),
    "device_ratio": "Device time over that in the first trace.",
    "own_device_difference_ns": "Difference of device times without that of rows inside.",
    "device_p_value": "Chance of a difference of device times as large or larger.",
    "corrected_device_p_value": "The same, corrected as `corrected_p_value`.",
    "device_verdict": "`verdict` on the device time; null also where no device works for it.",
}
_SIDES: Mapping[str, str] = {
    "calls_a": "How many calls of these there are in the first trace; null where there are none.",
    "calls_b": "The same in the trace that is compared.",
    **with_ends("own_a", "_ns", "Their self times in the first trace, summed."),
    **with_ends("own_b", "_ns", "Their self times in the trace that is compared, summed."),
    **with_ends(
        "difference", "_ns", "What they take more; of what one trace alone has, all of that."
    ),
    "ratio": "Self time over that in the first trace.",
    "p_value": "Chance of a difference as large or larger, were there none.",
    "corrected_p_value": "The same, corrected for the number of rows (Benjamini-Hochberg).",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, otherwise `not "
    "significant`; `unknown` where an interval is missing; null for what one trace alone has.",
}
_TRACE = {"trace": "Name of the trace that is compared with the first."}
TYPE_COLUMNS: Mapping[str, str] = {
    **_TRACE,
    "layer_type": "What the layers do, or the operators where a trace has no layers; null: not "
    "known.",
    **_SIDES,
}
PRIMITIVE_COLUMNS: Mapping[str, str] = {
    **_TRACE,
    "primitive": "Name of the library's call: a primitive, or a routine.",
    **_SIDES,
}
_ENDS = ("latency_ns", "latency_low_ns", "latency_high_ns")
_TIMES = ("own_ns", "own_low_ns", "own_high_ns")


def table_of(name: str, a: Trace, b: Trace, depth: Kind) -> pl.DataFrame:
    """Return the table of `COLUMNS` of two traces, the root first, then what costs most.

    Args:
        name: What the trace `b` is called.
        a: The first trace.
        b: The trace that is compared with it.
        depth: Deepest kind of span that is compared.
    """
    nodes = nodes_of(a, b, depth)
    alignment = align(*nodes)
    side_a = _side(a, nodes[0], alignment, 0)
    side_b = _side(b, nodes[1], alignment, 1)
    paired, removed, added = map(len, (alignment.a, alignment.removed, alignment.added))
    # What one trace lacks stands as null rows, in the same place on both sides.
    left = pl.concat([side_a, side_a.clear(added)])
    right = pl.concat([side_b[:paired], side_b.clear(removed), side_b[paired:]])
    sides = [
        each.select(pl.all().name.suffix(suffix)) for each, suffix in ((left, "_a"), (right, "_b"))
    ]
    changes = pl.Series(alignment.changes(*nodes), dtype=pl.String)
    return _judged(pl.concat(sides, how="horizontal").with_columns(change=changes), name)


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
    phase = attribute_column(trace.spans, "phase").alias("phase")
    spans = trace.spans.select("kind", phase, "path", "device", calls, *_ENDS)[nodes.row]
    whole = spans["latency_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    owner, told = _owners(nodes, [*at, *(place for places in parts.values() for place in places)])
    told_ns = _told_ns(nodes, owner, told, whole)
    own = told_ns[at]
    ends = Estimates(*(spans[end].fill_null(np.nan).to_numpy()[at].copy() for end in _ENDS))
    for place, places in parts.items():
        own[place] += told_ns[places].sum()
        for value, end in zip((ends.value, ends.low, ends.high), _ENDS, strict=True):
            value[place] += spans[end].fill_null(np.nan).gather(places).sum()
    device = _device_columns(NodeWork(trace, nodes), owner, at, parts, spans["kind"][at])
    on_host: Bools = spans["device"].is_null().to_numpy()[at]
    if not holds_processes(trace):
        ends = ends.widened(on_host)
    more: list[list[str]] = [[] for _ in at]
    for place, places in parts.items():
        more[place] = spans["path"].gather(places).to_list()
    types = pl.Series(nodes.types, dtype=pl.String).gather(at)
    layer_type = layer_types(Tree.of(trace))[nodes.row][at]
    return (
        spans[at]
        .select("kind", "phase", "path", "calls")
        .with_columns(
            type=types,
            layer_type=layer_type,
            more=pl.Series(more, dtype=pl.List(pl.String)),
            latency=ends.value,
            low=ends.low,
            high=ends.high,
            own=own,
            **device,
        )
    )


def _device_columns(
    work: NodeWork, owner: Ints, at: Ints, parts: Mapping[int, list[int]], kinds: pl.Series
) -> dict[str, pl.Series]:
    """Return the device time of rows, its interval, and its part in no row inside."""
    within = work.within(at, parts)
    values = (within.value, within.low, within.high, work.own_ns(owner, at, parts))
    # What a kernel takes is its latency.
    on_host = ~kinds.is_in([kind.value for kind in DEVICE_ACTIVITIES]).to_numpy()
    on_host &= work.known
    names = ("device", "device_low", "device_high", "own_device")
    return {
        name: pl.Series(np.where(on_host, each, np.nan))
        for name, each in zip(names, values, strict=True)
    }


def _owners(nodes: Nodes, places: Sequence[int]) -> tuple[Ints, Bools]:
    """Return in whose row the self time of each node counts, and which nodes have rows.

    Args:
        nodes: Nodes of one trace.
        places: Those that have rows of their own, or are part of another's; the root is first.
    """
    told = np.zeros(len(nodes), np.bool_)
    told[places] = True
    owner = np.arange(len(nodes))
    for level in list(generations(nodes.parent))[1:]:
        untold = level[~told[level]]
        owner[untold] = owner[nodes.parent[untold]]
    return owner, told


def _told_ns(nodes: Nodes, owner: Ints, told: Bools, whole: Floats) -> Floats:
    """Return the self time of nodes that are told, with that of all inside that is not told.

    Args:
        nodes: Nodes of one trace.
        owner: The node in whose row each one's self time counts.
        told: Which nodes have rows.
        whole: Latency of each node in ns.
    """
    own = np.bincount(owner, np.nan_to_num(nodes.own_ns), minlength=len(nodes))
    own[np.isnan(nodes.own_ns)] = np.nan
    holds_told = np.zeros(len(nodes), np.bool_)
    holds_told[owner[nodes.parent[np.flatnonzero(told)[1:]]]] = True
    return np.where(holds_told, own, whole)


def _judged(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return rows with their differences and verdicts, in the order of what they cost."""
    a, b = (
        Estimates(*(floats(rows[f"{end}_{side}"]) for end in ("latency", "low", "high")))
        for side in "ab"
    )
    absent_a, absent_b = (rows[f"path_{side}"].is_null().to_numpy() for side in "ab")
    paired = ~(absent_a | absent_b)
    # What is not there takes no time: that is known, and not missing.
    found = Differences.between(a.zero_where(absent_a), b.zero_where(absent_b))
    # What is called more often takes longer: whether it is slower, one call tells.
    each_a, each_b = a.of_one(floats(rows["calls_a"])), b.of_one(floats(rows["calls_b"]))
    each = Differences.between(each_a, each_b)
    p = np.where(paired, each.p, np.nan)
    corrected_p = np.concatenate([p[:1], corrected(p[1:])])
    verdicts = pl.Series(each.verdicts(corrected_p, FALSE_DISCOVERY_RATE))
    own = _own_difference(rows, "own", absent_a, absent_b)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(a.value > 0, each_b.value / each_a.value, np.nan)
    table = rows.with_columns(
        trace=pl.lit(name),
        **{more: pl.col(more).fill_null([]) for more in ("more_a", "more_b")},
        kind=pl.coalesce("kind_a", "kind_b"),
        phase=pl.coalesce("phase_a", "phase_b"),
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
        **_device_judged(rows, absent_a, absent_b),
    )
    table = table.select(*COLUMNS).with_columns(pl.col(pl.Float64).fill_nan(None))
    costs = [pl.col(f"own_{of}difference_ns").abs() for of in ("", "device_")]
    cost = pl.max_horizontal(costs)
    rest = table[1:].sort(cost, descending=True, nulls_last=True, maintain_order=True)
    return pl.concat([table[:1], rest])


def _own_difference(rows: pl.DataFrame, name: str, absent_a: Bools, absent_b: Bools) -> Floats:
    a, b = (floats(rows[f"{name}_{side}"]) for side in "ab")
    difference: Floats = np.where(absent_b, 0.0, b) - np.where(absent_a, 0.0, a)
    return difference


def _device_judged(
    rows: pl.DataFrame, absent_a: Bools, absent_b: Bools
) -> dict[str, Floats | pl.Series]:
    """Return the columns of device times, with their differences and verdicts."""
    ends = ("device", "device_low", "device_high")
    a, b = (Estimates(*(floats(rows[f"{end}_{side}"]) for end in ends)) for side in "ab")
    works = np.nan_to_num(a.value) + np.nan_to_num(b.value) > 0
    found = Differences.between(a.zero_where(absent_a), b.zero_where(absent_b))
    p = np.where(absent_a | absent_b | ~works, np.nan, found.p)
    corrected_p = np.concatenate([p[:1], corrected(p[1:])])
    verdicts = pl.Series(found.verdicts(corrected_p, FALSE_DISCOVERY_RATE), dtype=pl.String)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(a.value > 0, b.value / a.value, np.nan)
    known = pl.Series(works & ~(absent_a | absent_b))
    return {
        **{f"device_{side}_ns": rows[f"device_{side}"] for side in "ab"},
        **{
            f"device_{side}_{end}_ns": rows[f"device_{end}_{side}"]
            for side in "ab"
            for end in ("low", "high")
        },
        "device_difference_ns": found.value,
        "device_difference_low_ns": found.value - found.half,
        "device_difference_high_ns": found.value + found.half,
        "device_ratio": ratio,
        "own_device_difference_ns": _own_difference(rows, "own_device", absent_a, absent_b),
        "device_p_value": p,
        "corrected_device_p_value": corrected_p,
        "device_verdict": verdicts.to_frame("verdict")
        .select(pl.when(known).then("verdict"))
        .to_series(),
    }


def types_beside(name: str, a: Trace, b: Trace) -> pl.DataFrame:
    """Return the table of `TYPE_COLUMNS`, what differs most first."""
    sides = (_summed(by_layer_type(each), "layer_type", each) for each in (a, b))
    return _beside(name, "layer_type", *sides).select(*TYPE_COLUMNS)


def primitives_beside(name: str, a: Trace, b: Trace) -> pl.DataFrame:
    """Return the table of `PRIMITIVE_COLUMNS`, empty unless both traces have library calls."""
    if not all((each.spans["kind"] == Kind.CALL.value).any() for each in (a, b)):
        return pl.DataFrame(schema=_schema("primitive")).select(*PRIMITIVE_COLUMNS)
    sides = (_summed(by_primitive(each), "primitive", each) for each in (a, b))
    return _beside(name, "primitive", *sides).select(*PRIMITIVE_COLUMNS)


def _schema(key: str) -> pl.Schema:
    types = dict.fromkeys(("trace", key), pl.String()) | dict.fromkeys(_SIDES, pl.Float64())
    calls = dict.fromkeys(("calls_a", "calls_b"), pl.Int64())
    return pl.Schema({**types, **calls, "verdict": pl.String()})


def _summed(table: pl.DataFrame, key: str, trace: Trace) -> pl.DataFrame:
    """Return calls and self times by a key, with what processes may differ by in the intervals."""
    ends = [
        pl.when(pl.col(end).null_count() == 0).then(pl.sum(end)).alias(end) for end in _TIMES[1:]
    ]
    sums = table.group_by(key, maintain_order=True).agg(pl.sum("calls", "own_ns"), *ends)
    times = Estimates(*(floats(sums[name]) for name in _TIMES))
    if not holds_processes(trace):
        times = times.widened(np.ones(sums.height, np.bool_))
    columns = zip(_TIMES, (times.value, times.low, times.high), strict=True)
    return sums.with_columns(pl.Series(name, values).fill_nan(None) for name, values in columns)


def _beside(name: str, key: str, a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of both traces side by side, with their differences and verdicts."""
    both = a.join(b, on=key, how="full", coalesce=True, nulls_equal=True, suffix="_b")
    absent_a, absent_b = (both[calls].is_null().to_numpy() for calls in ("calls", "calls_b"))
    first, second = (
        Estimates(*(floats(both[f"{time}{end}"]) for time in _TIMES)).zero_where(absent)
        for absent, end in ((absent_a, ""), (absent_b, "_b"))
    )
    found = Differences.between(first, second)
    p = np.where(absent_a | absent_b, np.nan, found.p)
    corrected_p = corrected(p)
    verdicts = pl.Series(found.verdicts(corrected_p, FALSE_DISCOVERY_RATE), dtype=pl.String)
    ratio = np.full(both.height, np.nan)
    np.divide(second.value, first.value, out=ratio, where=(first.value > 0) & ~absent_b)
    table = both.with_columns(
        trace=pl.lit(name),
        calls_a=pl.col("calls"),
        **{f"own_a{time[3:]}": pl.col(time) for time in _TIMES},
        **{f"own_b{time[3:]}": pl.col(f"{time}_b") for time in _TIMES},
        difference_ns=found.value,
        difference_low_ns=found.value - found.half,
        difference_high_ns=found.value + found.half,
        ratio=ratio,
        p_value=p,
        corrected_p_value=corrected_p,
        verdict=pl.when(pl.Series(~(absent_a | absent_b))).then(verdicts),
    )
    numbers = table.with_columns(pl.col(pl.Float64).fill_nan(None))
    cost = pl.col("difference_ns").abs()
    ordered = numbers.sort(cost, key, descending=[True, False], nulls_last=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in _schema(key).items())
