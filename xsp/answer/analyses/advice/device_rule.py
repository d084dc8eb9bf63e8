"""Finds host-bound devices, pageable copies, synchronizations, and kernels without counters."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from xsp.answer.analyses.advice.finding import Case, Finding, named
from xsp.answer.analyses.cell import text_of
from xsp.answer.analyses.device.device_latency import DeviceLatency
from xsp.answer.analyses.structure.sums import Bools, calls
from xsp.answer.analyses.tree import Floats
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.text import counted, duration, percent

# A device that works less than this part of the time waits for the host.
_BUSY = 0.5
# Of fewer kernels nobody can say that launching them takes the time.
_FEWEST = 10
# Kernels that take at least this part of the device's time deserve to be looked at.
_TOP, _MOST = 0.05, 3
_COUNTED = ("dram_read_bytes", "achieved_occupancy_pct")
_COMMUNICATES = r"(?i)nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
_SYNCHRONISES = r"(?i)synchronize"


def host_bound(case: Case) -> Iterator[Finding]:
    """Find devices that wait for the host to launch short kernels, as `verdict` defines that."""
    tree, often = case.tree, calls(case.tree)
    # The rows of the outermost layers and operators in which devices are given work.
    kinds = (Kind.LAYER, Kind.OP)
    work, _ = case.work_ns()
    launching = np.flatnonzero(case.is_of(*kinds) & (case.above(*kinds) < 0) & (work > 0))
    kernels, launches = case.rows(Kind.KERNEL), launching
    count = int(often[kernels].sum())
    if count < _FEWEST or not len(launches):
        return
    latency = DeviceLatency.of(case.trace)
    busy = latency.times["busy"]
    host, reach = case.latency(launches)
    kernel = float(np.nanmedian(tree.latency_ns()[kernels] / often[kernels]))
    if busy > _BUSY * latency.whole_ns or kernel > host / count:
        return
    waits = {"host-bound": latency.host_ns, "launch-bound": latency.launch_ns}
    gain = min(sum(waits.values()), host)
    yield Finding(
        max(waits, key=lambda name: waits[name]),
        "Launch less often: CUDA graphs, torch.compile, or a larger batch.",
        f"the device works {duration(busy)}, {percent(busy / latency.whole_ns)} of the latency; it "
        f"waits {duration(latency.host_ns)} for work that is not launched yet and "
        f"{duration(latency.launch_ns)} while calls launch work; {counted(count, 'kernel')} of "
        f"{duration(kernel)} (median), and layers and operators on the host take "
        f"{duration(host / count)} for each",
        gain,
        None if reach is None else reach * gain / host,
        "at most: as if the device never waited for the host",
        'torch.compile(model, mode="reduce-overhead"), measured with levels=4, and xsp.compare',
    )


def pageable_copies(case: Case) -> Iterator[Finding]:
    """Find copies from or to pageable memory during which no kernel runs."""
    rows = np.flatnonzero(_is_pageable(case))
    if not len(rows):
        return
    # How long some copies ran while no kernel did.
    spans = case.tree.spans
    start, end = (spans[name].to_numpy().astype(np.float64) for name in ("start_ns", "end_ns"))
    kernels = case.rows(Kind.KERNEL)
    order = kernels[np.argsort(start[kernels], kind="stable")]
    covered = _covered(start[order], end[order], np.concatenate([start[rows], end[rows]]))
    begun, done = np.split(covered, 2)
    exposed = float(np.sum((end - start)[rows] - (done - begun)))
    size = case.tree.attribute("transfer_bytes", pl.Int64)[rows].sum()
    yield Finding(
        "pageable copies",
        "Copy from pinned memory, and asynchronously.",
        f"{counted(len(rows), 'copy')} of pageable memory, {text_of('size_bytes', size)}, run "
        f"{duration(exposed)} while no kernel does, {percent(exposed / case.whole_ns)}",
        exposed,
        case.latency(rows)[1],
        "at most: as if these copies ran beside kernels",
        "DataLoader(…, pin_memory=True) and x.to(device, non_blocking=True)",
    )


def _is_pageable(case: Case) -> Bools:
    """Return which spans are copies from or to pageable memory of the host."""
    ends = [case.tree.attribute(name) == "pageable" for name in ("source", "destination")]
    pageable = (ends[0].fill_null(value=False) | ends[1].fill_null(value=False)).to_numpy()
    copies: Bools = pageable & case.is_of(Kind.MEMCPY)
    return copies


def _covered(start: Floats, end: Floats, at: Floats) -> Floats:
    """Return for some moments how long at least one of some intervals had lasted until then.

    Args:
        start: Beginnings, in order.
        end: Ends.
        at: The moments.

    >>> _covered(np.array([0.0, 2.0, 9.0]), np.array([4.0, 3.0, 10.0]), np.array([1.0, 9.5]))
    array([1. , 4.5])
    """
    if not len(start):
        return np.zeros(len(at))
    latest = np.maximum.accumulate(end)
    begin = np.maximum(start, np.append(start[0], latest[:-1]))
    length = np.maximum(latest - begin, 0.0)
    before = np.searchsorted(start, at, side="right") - 1
    known = before >= 0
    done = np.append(0.0, np.cumsum(length))
    inside = np.clip(at - begin[before], 0.0, length[before])
    return np.where(known, done[before] + inside, 0.0)


def synchronizations(case: Case) -> Iterator[Finding]:
    """Find where the host waits for a device within layers and operators."""
    tree = case.tree
    within = case.above(Kind.LAYER, Kind.OP) >= 0
    rows = np.flatnonzero(_waits(case) & within)
    if not len(rows):
        return
    time, reach = case.latency(rows)
    operator = case.above(Kind.OP)[rows]
    causes = pl.DataFrame(
        {"name": tree.spans["name"][np.maximum(operator, 0)], "time": tree.latency_ns()[rows]}
    ).filter(pl.Series(operator >= 0))
    by = f", in {named(causes)}" if causes.height else ""
    yield Finding(
        "synchronization",
        "Do not wait for the device within the model: no item(), nonzero() or copy to the host.",
        f"{counted(int(calls(tree)[rows].sum()), 'wait')} within layers and operators: "
        f"{duration(time)}, {percent(time / case.whole_ns)}{by}",
        min(time, case.idle_ns),
        reach,
        "at most: as if the host never waited there, and no more than devices idle",
        'torch.cuda.set_sync_debug_mode("warn") shows the lines',
    )


def _waits(case: Case) -> Bools:
    """Return which spans of the host wait for a device: calls to, and copies to pageable memory.

    A copy from the device to pageable memory returns when all work before it is done.
    """
    tree = case.tree
    told = case.is_named(_SYNCHRONISES)
    told = told & case.is_of(Kind.LAUNCH)
    back = (tree.attribute("direction") == "DtoH").fill_null(value=False).to_numpy()
    # The rows of the calls on the host that launched some work.
    rows = np.flatnonzero(_is_pageable(case) & back)
    ids = case.tree.spans["correlation_id"]
    wanted = ids[rows].drop_nulls().unique()
    launches = case.is_of(Kind.LAUNCH)
    launches_of = np.flatnonzero(
        launches & ids.is_in(wanted.implode()).fill_null(value=False).to_numpy()
    )
    told[launches_of] = True
    events = case.is_of(Kind.SYNC) & tree.spans["device"].is_null().to_numpy()
    waits: Bools = told | (events & (tree.nearest(told) < 0))
    return waits


def kernels_to_count(case: Case) -> Iterator[Finding]:
    """Find the kernels that take most time, and of which no hardware counters are known."""
    tree = case.tree
    kernels = case.is_of(Kind.KERNEL)
    known = np.zeros(len(kernels), dtype=np.bool_)
    for name, dtype in zip(_COUNTED, (pl.Int64, pl.Float64), strict=True):
        known |= tree.attribute(name, dtype).is_not_null().to_numpy()
    communicates = case.is_named(_COMMUNICATES)
    rows = np.flatnonzero(kernels & ~known & ~communicates)
    whole = float(np.nansum(tree.latency_ns()[case.rows(*DEVICE_ACTIVITIES)]))
    times = np.nan_to_num(tree.latency_ns()[rows])
    frame = pl.DataFrame({"name": tree.spans["name"][rows], "time": times})
    top = (
        frame.group_by("name", maintain_order=True)
        .agg(pl.sum("time"), pl.len().alias("count"))
        .sort("time", descending=True, maintain_order=True)
        .filter(pl.col("time") > _TOP * whole)
        .head(_MOST)
    )
    if top.is_empty():
        return
    time = float(top["time"].sum())
    # A regular expression for the beginnings of kernels' names.
    words = [name.split("<")[0].split("(")[0].split("::")[-1][:30] for name in top["name"]]
    pattern = "|".join(dict.fromkeys(words))
    yield Finding(
        "kernels to count",
        "Count these kernels' memory traffic and occupancy before changing them.",
        f"{named(top, _MOST)}: {percent(time / whole)} of the device's time, and no hardware "
        "counters of them are known",
        time,
        case.latency(rows[pl.Series(frame["name"]).is_in(top["name"].implode()).to_numpy()])[1],
        "at most: as if these kernels took no time",
        _counting(case, pattern),
    )


def _counting(case: Case, pattern: str) -> str:
    """Return the command that counts what kernels do, with the tool of the device's maker."""
    devices = (case.trace.metadata.get("environment") or {}).get("devices") or ()
    if any(re.search(r"\bAMD\b|Instinct|\bgfx\d", str(device)) for device in devices):
        return (
            "rocprofv3 --pmc FETCH_SIZE WRITE_SIZE --kernel-trace --output-format json "
            f"--kernel-include-regex '{pattern}' -- python …; xsp import *_results.json"
        )
    return "xsp counters FILE python …"
