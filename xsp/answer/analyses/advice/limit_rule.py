"""Finds something to do about what limits the latency, whatever the verdict is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from xsp.answer.analyses.advice.finding import Case, Finding, named
from xsp.answer.analyses.device.activity import COMMUNICATING, Work
from xsp.answer.analyses.device.verdict import verdict
from xsp.level import Kind
from xsp.text import percent

_HALF = 0.5  # of what the verdict is on: findings that could save as much agree with it


class _Limit(NamedTuple):
    """What to do about a limit, how to check that, and the rules that say so in more detail."""

    advice: str
    verify: str
    rules: Sequence[str] | None = None  # None: any


_LIMITS: Mapping[str, _Limit] = {
    "copy-bound": _Limit(
        "Copy less, or while the device computes: keep data on the device, use smaller types.",
        "xsp analyze FILE copies; then x.to(device, non_blocking=True) of pinned memory",
        ("pageable copies",),
    ),
    "communication-bound": _Limit(
        "Hide communication behind computing: other bucket sizes, earlier prefetch, smaller types.",
        "xsp analyze FILE communication; xsp analyze FILE rank-imbalance tells who is late",
        (),
    ),
    "host-bound": _Limit(
        "Give the device work earlier: prepare data ahead, and wait for the device less.",
        "xsp analyze FILE critical-path",
        ("host-bound", "launch-bound", "data loading", "synchronization", "program's own code"),
    ),
    "launch-bound": _Limit(
        "Launch less often: CUDA graphs, torch.compile, or a larger batch.",
        "xsp analyze FILE launch-overhead",
        ("host-bound", "launch-bound", "element-wise operators to fuse"),
    ),
    "memory-bound": _Limit(
        "Move fewer bytes: fuse kernels, use smaller types, and keep intermediate results.",
        "xsp analyze FILE kernel-roofline",
    ),
    "compute-bound": _Limit(
        "Compute less, or faster: smaller types for tensor cores, and fewer operations.",
        "xsp analyze FILE kernel-roofline",
    ),
    "device-bound": _Limit(
        "Make the kernels that take most of the device's time faster, or call them less often.",
        "xsp analyze FILE kernel-by-name",
    ),
    "library-bound": _Limit(
        "Ask less of the libraries: smaller types, fewer operations, or another number of threads.",
        "xsp analyze FILE primitive-latency",
    ),
    "operator-bound": _Limit(
        "Look for faster forms of the operators that take most of the time.",
        "xsp analyze FILE operator-latency",
    ),
    "framework-bound": _Limit(
        "Do more in each operator: a larger batch, or torch.compile.",
        "xsp.compare(trace, xsp.measure(torch.compile(model), x, levels=3))",
    ),
    "program-bound": _Limit(
        "Look at the program's code outside of layers and operators.",
        "xsp analyze FILE critical-path",
    ),
    "unexplained": _Limit(
        "Record more: what the device waited for cannot be told from this recording.",
        "torch.profiler.profile(activities=[CPU, CUDA], schedule=…), or xsp import --whole",
    ),
}


# What a verdict alone says, where no rule knows more: too little for the lines below a tree.
GENERAL = frozenset(name for name, each in _LIMITS.items() if each.rules is None)


def limit(case: Case, found: Sequence[Finding]) -> Finding | None:
    """Advise on what the verdict says; None where other findings could save half of that.

    Args:
        case: The trace.
        found: What the other rules found in it.
    """
    chosen = verdict(case.trace).filter("verdict").row(0, named=True)
    name, time = chosen["candidate"], chosen["time_ns"]
    advice, verify, rules = _LIMITS[name]
    worth = [each for each in found if each.is_worth(case.whole_ns)]
    saved = [each.gain_ns for each in worth if rules is not None and each.rule in rules]
    if not time or (worth and rules is None) or max(saved, default=0.0) >= _HALF * time:
        return None
    whole, reach = case.latency(np.zeros(1, np.int64))
    more = _most(case, name)
    return Finding(
        name,
        advice,
        f"the verdict is {name}, {percent(time / case.whole_ns)} of the latency: "
        f"{chosen['evidence']}{more}",
        time,
        None if reach is None or not whole else time * reach / whole,
        "at most: as if none of that took time",
        verify,
    )


def _most(case: Case, name: str) -> str:
    """Name the copies, or the collectives, that take most of the time."""
    tree = case.tree
    if name == "copy-bound":
        rows = case.rows(Kind.MEMCPY)
        names = tree.spans["name"][rows]
    elif name == "communication-bound" and case.has_device:
        work = Work.of(tree)
        rows = work.column("row")[work.is_sort(COMMUNICATING)]
        told = pl.coalesce(tree.attribute("collective"), tree.spans["name"])
        names = pl.select(told).to_series()[rows]
    else:
        return ""
    time = np.nan_to_num(tree.latency_ns()[rows])
    return f"; most in {named(pl.DataFrame({'name': names, 'time': time}))}" if len(rows) else ""
