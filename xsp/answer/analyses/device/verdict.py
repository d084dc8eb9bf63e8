"""Finds what limits the latency of a trace most, with the numbers that support the verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.device.activity import COMPUTING, Bools
from xsp.answer.analyses.device.critical_path import own_on_path
from xsp.answer.analyses.device.device_latency import DeviceLatency
from xsp.answer.analyses.device.host_collective import communicating, while_communicating
from xsp.answer.analyses.structure.sums import calls
from xsp.answer.analyses.tree import Floats, Tree
from xsp.answer.analyses.work import Roof, dispatching, roof_of, work_of
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints
from xsp.text import counted, duration
from xsp.trace import Trace

_COLUMNS = {
    "candidate": "What may limit the latency.",
    "verdict": "Whether it is what limits it most.",
    "share_pct": "Share of the latency that it takes; null where the trace cannot tell.",
    "time_ns": "That time, of several devices the mean.",
    "evidence": "The numbers that say so, or why it cannot be told.",
}
_SPLIT = ("memory-bound", "compute-bound")
_COMPUTING = ("device-bound", "library-bound", "operator-bound")
_HALF = 0.5  # of the computing time: what has more of it is what limits that


@dataclass(frozen=True, slots=True)
class _Candidate:
    time_ns: float | None
    evidence: str


_Found = dict[str, _Candidate]


@dataclass(frozen=True, slots=True)
class _Computing:
    """What computes: its rows, how long each of them takes, and all of them."""

    rows: Ints
    taken: Floats
    time_ns: float


@analysis("What limits the latency?", _COLUMNS)
def verdict(trace: Trace) -> pl.DataFrame:
    """Return the possible limits of a trace's latency, and mark the one that limits it most.

    Args:
        trace: Any trace; what it cannot tell has no share, and says why.
    """
    tree = Tree.of(trace)
    on_device = bool(tree.is_of(*DEVICE_ACTIVITIES).any())
    whole, found, split = (_of_devices if on_device else _of_host)(tree, trace)
    # What takes most time; of computing, that which limits more than half of it.
    most = max(found, key=lambda name: (found[name].time_ns or 0.0, name))
    if most not in _COMPUTING:
        chosen = most
    else:
        computing = sum(found[name].time_ns or 0.0 for name in _COMPUTING if name in found)
        limits = [name for name in _SPLIT if (split[name].time_ns or 0.0) > _HALF * computing]
        chosen = limits[0] if limits else most
    noise = _noise(trace, whole, chosen, found | split)
    rows = [
        {
            "candidate": name,
            "verdict": name == chosen,
            "share_pct": None if each.time_ns is None or not whole else 100 * each.time_ns / whole,
            "time_ns": each.time_ns,
            "evidence": each.evidence + noise * (name == chosen),
        }
        for name, each in (found | split).items()
    ]
    types = {"verdict": pl.Boolean, "share_pct": pl.Float64, "time_ns": pl.Float64}
    table = pl.DataFrame(rows, schema_overrides=types)
    order = ("verdict", "share_pct", "candidate")
    return table.sort(order, descending=[True, True, False], nulls_last=True).select(*_COLUMNS)


def _noise(trace: Trace, whole: float, chosen: str, every: _Found) -> str:
    """Return which candidate the chosen one cannot be told from, by the latency's interval."""
    latency, low, high = trace.spans.select("latency_ns", "latency_low_ns", "latency_high_ns").row(
        0
    )
    parts = _COMPUTING if chosen in _SPLIT else _SPLIT
    others = {name: each.time_ns or 0.0 for name, each in every.items() if name not in parts}
    time = others.pop(chosen)
    if None in (latency, low, high) or not latency or not whole or not others:
        return ""
    second = max(others, key=lambda name: (others[name], name))
    reach = max(high - latency, latency - low) / latency
    if (time - others[second]) / whole > reach:
        return ""
    return f"; hardly told from {second}, for the latency is known to ± {100 * reach:.0f} % only"


def _of_devices(tree: Tree, trace: Trace) -> tuple[float, _Found, _Found]:
    latency = DeviceLatency.of(trace)
    times, idle, count = latency.times, latency.idle, latency.work.places.height
    device = "the device" if count == 1 else f"the device (mean of {count} devices)"
    found = {
        "host-bound": _Candidate(
            latency.host_ns,
            f"{device} waits {duration(idle['host'])} for work that is not launched yet, "
            f"{duration(latency.before_ns)} before the first work and "
            f"{duration(latency.after_ns)} after the last",
        ),
        "launch-bound": _Candidate(
            latency.launch_ns,
            f"{device} waits {duration(latency.launch_ns)} while calls launch its next work",
        ),
        "communication-bound": _Candidate(
            times["exposed communication"],
            f"{device} communicates {duration(times['communicating'])}, and computes nothing "
            f"during {duration(times['exposed communication'])} of it",
        ),
        "copy-bound": _Candidate(
            times["exposed copies"],
            f"{device} copies {duration(times['copying'])}, and neither computes nor communicates "
            f"during {duration(times['exposed copies'])} of it",
        ),
        "device-bound": _Candidate(
            times["computing"],
            f"{device} computes {duration(times['computing'])}, limited by its memory or its "
            "arithmetic",
        ),
        "unexplained": _Candidate(
            idle["queue"] + idle["unknown"],
            f"cannot tell, because work began {duration(idle['queue'])} late although it was "
            f"launched, and {device} idled {duration(idle['unknown'])} before work whose call is "
            "not known",
        ),
    }
    work = latency.work.table
    kernels = work.filter((pl.col("sort") == COMPUTING) & (pl.col("end_ns") > pl.col("start_ns")))
    rows = kernels["row"].to_numpy()
    taken = (kernels["end_ns"] - kernels["start_ns"]).cast(pl.Float64).to_numpy()
    split = _split(tree, trace, _Computing(rows, taken, times["computing"]))
    return latency.whole_ns, found, split


def _of_host(tree: Tree, trace: Trace) -> tuple[float, _Found, _Found]:
    spans = tree.spans
    whole = float(spans["end_ns"][0] - spans["start_ns"][0])
    often = calls(tree)
    library, ops, layers = (tree.is_of(kind) for kind in (Kind.CALL, Kind.OP, Kind.LAYER))
    collectives = communicating(tree)
    computing = ops & ~dispatching(tree) & ~collectives
    wrappers = ops & ~computing
    row, start, end = own_on_path(tree)
    waits = np.where((library | computing)[row], 0, while_communicating(tree, row, start, end))
    own = np.bincount(row, end - start - waits, spans.height).astype(np.float64)

    def of(which: Bools, noun: str) -> str:
        return counted(int(often[which].sum()), noun)

    found = {
        "library-bound": _Candidate(
            float(own[library].sum()) if library.any() else None,
            f"self time of {of(library, 'library call')}"
            if library.any()
            else "cannot tell, because the trace has no library calls: measure with levels=3",
        ),
        "operator-bound": _Candidate(
            float(own[computing].sum()) if ops.any() else None,
            f"self time of {of(computing, 'operator')} that compute by themselves"
            if ops.any()
            else "cannot tell, because the trace has no operators: measure with levels=2",
        ),
        "framework-bound": _Candidate(
            float(own[layers | wrappers].sum()) if (layers | ops).any() else None,
            f"self time of {of(layers, 'layer')} and {of(wrappers, 'operator')} that do no work "
            "themselves"
            if (layers | ops).any()
            else "cannot tell, because the trace has no layers or operators: measure with levels=2",
        ),
        "program-bound": _Candidate(
            float(own[tree.is_of(Kind.REGION)].sum()), "time outside of layers and operators"
        ),
    }
    if collectives.any():
        found["communication-bound"] = _Candidate(
            float(waits.sum()), "time in which collectives run, and nothing computes beside them"
        )
    launches = tree.is_of(Kind.LAUNCH)
    if launches.any():
        found["launch-bound"] = _Candidate(
            float(own[launches].sum()), f"self time of {of(launches, 'call')} that launch work"
        )
    rows = np.flatnonzero(library | computing)
    split = _split(tree, trace, _Computing(rows, own[rows], float(own[rows].sum())))
    split["thread-bound"] = _Candidate(
        None, "cannot tell, because one number of threads was measured: see xsp sweep --threads"
    )
    return whole, found, split


def _split(tree: Tree, trace: Trace, computing: _Computing) -> _Found:
    """Return how much of the computing time memory limits, and how much arithmetic does.

    By the roofline model (Williams et al., 2009; the paper's section III-D3): memory, where a
    kernel, or the operator or call that it is of, computes fewer operations per byte than the
    device can at its peaks.
    """
    roof = roof_of(trace)
    if roof is None:
        why = "cannot tell, because the peak of the device is not known: see xsp doctor --peak"
        return dict.fromkeys(_SPLIT, _Candidate(None, why))
    known, intensity = _intensities(tree, computing.rows)
    known &= ~tree.is_of(Kind.MEMSET)[computing.rows]  # sets compute nothing
    if not computing.taken[known].sum():
        why = "cannot tell, because no operations and bytes are known of what computes"
        return dict.fromkeys(_SPLIT, _Candidate(None, why))
    scale = computing.time_ns / computing.taken.sum()
    ridge = roof.flops_per_s / roof.bytes_per_s
    limited = known & (intensity < ridge), known & (intensity >= ridge)
    return {
        name: _Candidate(
            scale * computing.taken[which].sum(),
            _evidence(roof, _told(tree, computing.rows[which]), name),
        )
        for name, which in zip(_SPLIT, limited, strict=True)
    }


def _told(tree: Tree, rows: Ints) -> str:
    """Return how many kernels, library calls and operators some rows stand for."""
    often, nouns = calls(tree)[rows], ("kernel", "library call", "operator")
    kinds = (tree.is_of(kind)[rows] for kind in (Kind.KERNEL, Kind.CALL, Kind.OP))
    each = zip(nouns, (int(often[kind].sum()) for kind in kinds), strict=True)
    return (
        " and ".join(counted(number, noun) for noun, number in each if number) or "nothing computes"
    )


def _evidence(roof: Roof, what: str, name: str) -> str:
    side = "fewer than" if name == _SPLIT[0] else "at least"
    ridge = roof.flops_per_s / roof.bytes_per_s
    return f"{what} with {side} {ridge:.3g} operations per byte ({roof.source})"


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
