"""The verdict: a trace in, what limits its latency, with the numbers that say so, out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.analyses.contract import analysis
from xsp.analyses.device.activity import COMPUTING, Bools, Work
from xsp.analyses.device.critical_path import own_on_path
from xsp.analyses.device.device_idle import CAUSES, idle_times
from xsp.analyses.device.device_time import times_of
from xsp.analyses.tree import Floats, Tree
from xsp.analyses.work import Roof, roof_of, work_of
from xsp.evaluation import Ints
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.quantity import duration
from xsp.trace import Trace

_COLUMNS = {
    "candidate": "What may limit the latency.",
    "verdict": "Whether it is what limits it most.",
    "share_pct": "Share of the latency that it takes; null where the trace cannot tell.",
    "time_ns": "That time, of several devices the mean.",
    "evidence": "The numbers that say so, or why it cannot be told.",
}
_SPLIT = ("memory-bound", "compute-bound")
_HALF = 0.5  # of the computing time: what has more of it is what limits that


@dataclass(frozen=True, slots=True)
class _Candidate:
    time_ns: float | None
    evidence: str


@analysis("What limits the latency?", _COLUMNS)
def verdict(trace: Trace) -> pl.DataFrame:
    """Return what may limit the latency of a trace, and which of that does most.

    Args:
        trace: Any trace; what it cannot tell has no share, and says why.
    """
    tree = Tree.of(trace)
    on_device = bool(tree.is_of(*DEVICE_ACTIVITIES).any())
    whole, found, split = (_of_devices if on_device else _of_host)(tree, trace)
    chosen = _chosen(found, split)
    rows = [
        {
            "candidate": name,
            "verdict": name == chosen,
            "share_pct": None if each.time_ns is None or not whole else 100 * each.time_ns / whole,
            "time_ns": each.time_ns,
            "evidence": each.evidence,
        }
        for name, each in (found | split).items()
    ]
    types = {"verdict": pl.Boolean, "share_pct": pl.Float64, "time_ns": pl.Float64}
    table = pl.DataFrame(rows, schema_overrides=types)
    order = ("verdict", "share_pct", "candidate")
    return table.sort(order, descending=[True, True, False], nulls_last=True).select(*_COLUMNS)


_Found = dict[str, _Candidate]


def _chosen(found: _Found, split: _Found) -> str:
    """Return what takes most time; of computing, that which limits more than half of it."""
    most = max(found, key=lambda name: (found[name].time_ns or 0.0, name))
    if most not in ("device-bound", "library-bound", "operator-bound"):
        return most
    computing = sum(
        found[name].time_ns or 0.0
        for name in ("device-bound", "library-bound", "operator-bound")
        if name in found
    )
    limits = [name for name in _SPLIT if (split[name].time_ns or 0.0) > _HALF * computing]
    return limits[0] if limits else most


def _of_devices(tree: Tree, trace: Trace) -> tuple[float, dict[str, _Candidate], _Found]:
    work = Work.of(tree)
    count = work.places.height
    begin = float(tree.spans["start_ns"][0])
    whole = float(max(tree.spans["end_ns"][0], work.table["end_ns"].max())) - begin
    times = {part: float(each.mean()) for part, each in times_of(work, trace).items()}
    idle = idle_times(work, "place").select(CAUSES).sum().row(0, named=True)
    cause = {name: float(ns or 0) / count for name, ns in idle.items()}
    around = times["idle before the first work"]
    first_last = work.table.group_by("place").agg(pl.col("end_ns").max())["end_ns"]
    after = whole + begin - float(first_last.cast(pl.Float64).mean())  # type: ignore[arg-type]
    of = "" if count == 1 else f" (mean of {count} devices)"
    found = {
        "host-bound": _Candidate(
            cause["host"] + around + after,
            f"the device{of} waits {duration(cause['host'])} for work that is not launched yet, "
            f"{duration(around)} before the first and {duration(after)} after the last",
        ),
        "launch-bound": _Candidate(
            cause["launch"], f"the device{of} waits while calls launch its next work"
        ),
        "communication-bound": _Candidate(
            times["exposed communication"],
            f"of {duration(times['communicating'])} of communication, while nothing computes",
        ),
        "copy-bound": _Candidate(
            times["exposed copies"],
            f"of {duration(times['copying'])} of copies, while nothing computes or communicates",
        ),
        "device-bound": _Candidate(
            times["computing"], f"the device{of} computes, limited by its memory or its arithmetic"
        ),
        "unexplained": _Candidate(
            cause["queue"] + cause["unknown"],
            f"cannot tell, because work began {duration(cause['queue'])} late although it was "
            f"launched, and {duration(cause['unknown'])} were before work whose call is not known",
        ),
    }
    kernels = work.table.filter(pl.col("sort") == COMPUTING)
    rows = kernels["row"].to_numpy()
    taken = (kernels["end_ns"] - kernels["start_ns"]).cast(pl.Float64).to_numpy()
    return whole, found, _split(tree, trace, rows, taken, times["computing"])


def _of_host(tree: Tree, trace: Trace) -> tuple[float, dict[str, _Candidate], _Found]:
    spans = tree.spans
    whole = float(spans["end_ns"][0] - spans["start_ns"][0])
    own = own_on_path(tree)
    calls, ops = tree.is_of(Kind.CALL), tree.is_of(Kind.OP)
    calling = np.zeros(len(own), bool)
    inner = np.flatnonzero((calls | ops) & (tree.parent >= 0))
    calling[tree.parent[inner]] = True
    leaves = ops & ~calling
    around = (ops & calling) | tree.is_of(Kind.LAYER)
    found = {
        "library-bound": _Candidate(
            float(own[calls].sum()) if calls.any() else None,
            f"{int(calls.sum())} library calls"
            if calls.any()
            else "cannot tell, because the trace has no library calls: measure with levels=3",
        ),
        "operator-bound": _Candidate(
            float(own[leaves].sum()) if ops.any() else None,
            f"own time of {int(leaves.sum())} operators that call no other and no library"
            if ops.any()
            else "cannot tell, because the trace has no operators: measure with levels=2",
        ),
        "framework-bound": _Candidate(
            float(own[around].sum()) if around.any() else None,
            f"own time of {int(around.sum())} layers, and operators that call others"
            if around.any()
            else "cannot tell, because the trace has no layers or operators: measure with levels=2",
        ),
        "program-bound": _Candidate(
            float(own[tree.is_of(Kind.PIPELINE)].sum()), "time outside of layers and operators"
        ),
    }
    launches = tree.is_of(Kind.LAUNCH)
    if launches.any():
        found["launch-bound"] = _Candidate(
            float(own[launches].sum()), f"{int(launches.sum())} calls of the device's interface"
        )
    rows = np.flatnonzero(calls | leaves)
    computing = float(own[rows].sum())
    split = _split(tree, trace, rows, own[rows], computing)
    split["thread-bound"] = _Candidate(
        None, "cannot tell, because one number of threads was measured: see xsp sweep --threads"
    )
    return whole, found, split


def _split(
    tree: Tree, trace: Trace, rows: Ints, taken: Floats, computing: float
) -> dict[str, _Candidate]:
    """Return how much of the computing time memory limits, and how much arithmetic does.

    By the roofline model (Williams et al., 2009; the paper's section III-D3): memory, where a
    kernel, or the operator or call that it is of, computes fewer operations per byte than the
    device can at its peaks.
    """
    roof = roof_of(trace)
    if roof is None:
        why = "cannot tell, because the peak of the device is not known: see xsp doctor --peak"
        return dict.fromkeys(_SPLIT, _Candidate(None, why))
    known, intensity = _intensities(tree, rows)
    if not taken[known].sum():
        why = "cannot tell, because no operations and bytes are known of what computes"
        return dict.fromkeys(_SPLIT, _Candidate(None, why))
    scale = computing / taken.sum()
    return {
        name: _Candidate(scale * taken[which].sum(), _evidence(roof, int(which.sum()), name))
        for name, which in zip(_SPLIT, _limited(known, intensity, roof), strict=True)
    }


def _limited(known: Bools, intensity: Floats, roof: Roof) -> tuple[Bools, Bools]:
    ridge = roof.flops_per_s / roof.bytes_per_s
    return known & (intensity < ridge), known & (intensity >= ridge)


def _evidence(roof: Roof, count: int, name: str) -> str:
    side = "below" if name == _SPLIT[0] else "above"
    ridge = roof.flops_per_s / roof.bytes_per_s
    return f"{count} of what computes {side} {ridge:.3g} operations per byte ({roof.source})"


def _intensities(tree: Tree, rows: Ints) -> tuple[Bools, Floats]:
    """Return of which rows operations and bytes are known, theirs or those of what they are in."""
    work = work_of(tree)
    size = (work["read_bytes"] + work["write_bytes"]).cast(pl.Float64).fill_null(0.0).to_numpy()
    flops = work["flops"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    has = (size > 0) & ~np.isnan(flops)
    source = np.where(has[rows], rows, tree.nearest(has)[rows])
    known: Bools = source >= 0
    intensity = np.where(known, flops[source] / np.where(size[source] > 0, size[source], 1.0), 0.0)
    return known, intensity
