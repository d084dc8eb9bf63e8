"""Rules on programs and machines: a case in; its own code, waits, first calls and threads out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from xsp.analyses.advice.finding import Case, Finding, named
from xsp.analyses.structure.sums import calls
from xsp.analyses.tree import Floats, Tree
from xsp.level import Kind
from xsp.text import counted, duration, percent
from xsp.trace import own_functions

_LOADS = r"(^|of )data loading$|DataLoader"
_FIRST = r"^first call of "
_IMPORTS = r"^import"
_TRAINING_STEP = "training step"
# Parts of a training step that are PyTorch's own work.
_WORK = r"^(forward|backward|optimizer step|zero_grad|clip gradients)$"


def data_loading(case: Case) -> Iterator[Finding]:
    """Find programs that wait for data."""
    tree = case.tree
    loads = case.is_of(Kind.PIPELINE, Kind.OP)
    loads = loads & case.is_named(_LOADS)
    rows = np.flatnonzero(loads & (tree.nearest(loads) < 0))
    if not len(rows):
        return
    time, reach = case.latency(rows)
    workers = tree.attribute("workers", pl.Int64)[rows].max()
    if workers == 0:
        advice, told = "Load data in worker processes.", ", and no worker process does it"
    else:
        advice = "Load data faster: more workers, persistent ones, less work for each sample."
        told = f", with {counted(workers, 'worker')}" if isinstance(workers, int) else ""
    yield Finding(
        "data loading",
        advice,
        f"the program waits {duration(time)} for data, {percent(time / case.whole_ns)}, "
        f"{counted(int(calls(tree)[rows].sum()), 'time')}{told}",
        min(time, case.idle_ns),
        reach,
        "at most: as if data were always ready"
        + (", and no more than devices idle" if case.has_device else ""),
        "DataLoader(…, num_workers=N, persistent_workers=True), profiled the same way",
    )


def program_code(case: Case) -> Iterator[Finding]:
    """Find the functions in which a program spends its time between calls of models."""
    tree = case.tree
    if not tree.attribute("whole_block", pl.Boolean)[0]:
        return
    groups = case.trace.metadata.get("groups", ())
    inference = [group["name"] for group in groups if group.get("phase") != _TRAINING_STEP]
    called = tree.spans["name"].is_in(inference).to_numpy() | case.is_named(_WORK)
    between = case.is_of(Kind.PIPELINE) & ~called & (tree.nearest(called) < 0)
    between = between & ~case.is_named(_LOADS)
    own_ns = np.maximum(tree.spans["self_ns"].fill_null(0.0).to_numpy() - _waited_ns(tree), 0.0)
    functions = own_functions(tree.spans, np.arange(tree.spans.height))
    found = [
        {"name": name, "time": part * own_ns[row], "reach": reach * own_ns[row]}
        for row in np.flatnonzero(between).tolist()
        for name, part, reach in functions.get(row, ())
    ]
    schema = {"name": pl.String, "time": pl.Float64, "reach": pl.Float64}
    frame = pl.DataFrame(found, schema=schema).filter(~pl.col("name").str.contains(_IMPORTS))
    if not frame.height:
        return
    time = float(frame["time"].sum())
    yield Finding(
        "program's own code",
        "Make the program's own code between calls of models quicker.",
        f"functions outside of models take {duration(time)}, {percent(time / case.whole_ns)}: "
        f"{named(frame)}",
        min(time, case.idle_ns),
        float(np.linalg.norm(frame["reach"].to_numpy())),
        "at most: as if these functions took no time",
        "xsp.span around parts of them, profiled the same way",
    )


def _waited_ns(tree: Tree) -> Floats:
    """Return how long other threads ran something right inside each span, while its own waited."""
    thread = tree.spans["thread"].fill_null(-1).to_numpy()
    beside = np.flatnonzero((tree.parent >= 0) & (thread != thread[tree.parent]))
    busy_ns = tree.attribute("busy_ns", pl.Float64).to_numpy()  # of several at once
    time_ns = np.where(np.isnan(busy_ns), tree.latency_ns(), busy_ns)[beside]
    return np.bincount(tree.parent[beside], np.nan_to_num(time_ns), len(thread)).astype(np.float64)


def first_calls(case: Case) -> Iterator[Finding]:
    """Find what first calls took beyond the later ones."""
    first = case.is_of(Kind.PIPELINE) & case.is_named(_FIRST)
    rows = np.flatnonzero(first)
    if not len(rows):
        return
    time, reach = case.latency(rows)
    yield Finding(
        "first calls",
        "Call each model once before it counts, and keep what was compiled.",
        f"{counted(len(rows), 'first call')} took {duration(time)} longer than later ones, "
        f"{percent(time / case.whole_ns)}",
        time,
        reach,
        "as much as later calls are quicker; in a longer run it is a smaller share",
        "a call with inputs of the same shape before the loop, profiled the same way",
    )


def fighting_threads(case: Case) -> Iterator[Finding]:
    """Find operators that use more threads than the process has cores."""
    environment = case.trace.metadata.get("environment") or {}
    cores, threads = environment.get("usable_cores"), environment.get("threads") or {}
    each = threads.get("operators") if isinstance(threads, Mapping) else None
    if not cores or not each:
        return
    at_once = _at_once(case)
    used = each * at_once
    if used <= 1.2 * cores:  # a thread that waits now and then is no fight
        return
    kind = Kind.CALL if case.is_of(Kind.CALL).any() else Kind.OP
    time, reach = case.own(case.rows(kind), kind)
    several = f", {at_once:.1f} operators at once on average" if at_once > 1 else ""
    yield Finding(
        "threads that fight",
        "Use no more threads than there are cores.",
        f"operators use {counted(each, 'thread')} each{several}, on {cores:g} cores; "
        f"what they compute takes {duration(time)}, {percent(time / case.whole_ns)}",
        time * (1 - cores / used),
        reach,
        "at most: as if threads beyond the cores only did harm",
        f"xsp sweep TARGET --threads {max(int(cores / at_once), 1)},{each}",
    )


def _at_once(case: Case) -> float:
    """Return how many outermost operators ran at once on average, while any did."""
    tree = case.tree
    operators = case.is_of(Kind.OP) & tree.spans["device"].is_null().to_numpy()
    outermost = np.flatnonzero(operators & (case.above(Kind.OP) < 0))
    spans = tree.spans.select("start_ns", "end_ns", "thread")[outermost]
    if spans["thread"].n_unique() <= 1:
        return 1.0
    ended = pl.col("end_ns").cum_max().shift(1, fill_value=0)
    parts = spans.sort("start_ns").select(
        length=pl.col("end_ns") - pl.col("start_ns"),
        new=(pl.col("end_ns") - pl.max_horizontal("start_ns", ended)).clip(lower_bound=0),
    )
    return int(parts["length"].sum()) / max(int(parts["new"].sum()), 1)
