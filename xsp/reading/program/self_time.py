"""Self time: the lines of the program that ran while no row below was running."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp.matching import innermost
from xsp.reading.program.forest import Forest
from xsp.reading.runs import calls, in_common
from xsp.record.program import LineSamples, ProgramRecord, Records

Ints = NDArray[np.int64]


def self_time(forest: Forest, record: ProgramRecord, of_item: Ints) -> dict[int, dict[str, Any]]:
    """Return the attributes `self_functions`, `self_lines`, `self_shares`, `self_samples` of rows.

    Args:
        forest: The items.
        record: What was recorded.
        of_item: The row of each item.
    """
    # The samples but for those of stretches without hooks: what ran then has no row.
    out = np.zeros(len(record.lines.time_ns), bool)
    for window in record.windows:
        if window.records is Records.OUT:
            end = window.end_ns if window.end_ns is not None else record.end_ns
            out |= (record.lines.time_ns >= window.begin_ns) & (record.lines.time_ns < end)
    out |= record.lines.time_ns > record.end_ns
    lines = LineSamples(
        record.lines.time_ns[~out],
        record.lines.lasts_ns[~out],
        record.lines.stack[~out],
        record.lines.stacks,
    )
    if not len(lines.time_ns):
        return {}
    items = forest.items
    mine = np.flatnonzero(~forest.alone)
    threads = np.array([*(thread for thread, _ in record.log.threads), record.thread])
    thread = threads[np.minimum(items.thread[mine], len(threads) - 1)]
    place = np.full(len(items), -1)
    place[mine] = np.arange(len(mine))
    above = forest.parent[mine]
    parent = np.where(above >= 0, place[np.maximum(above, 0)], -1)
    on = np.full(len(lines.time_ns), record.thread)
    found = innermost(items.begin[mine], items.end[mine], thread, parent, lines.time_ns, on)
    # A thread's self time beyond all of its items is the block's.
    row = np.where(found >= 0, of_item[mine[np.maximum(found, 0)]], 0)
    around = in_common([lines.stacks[n] for n in np.unique(lines.stack).tolist()])
    members: defaultdict[int, list[int]] = defaultdict(list)
    for at, number in enumerate(row.tolist()):
        members[number].append(at)
    result = {}
    for number, ats in members.items():
        stacks = [lines.stacks[int(lines.stack[at])] for at in ats]
        kept = [at for at, stack in zip(ats, stacks, strict=True) if stack]
        if not kept:
            continue
        lasts = [max(int(lines.lasts_ns[at]), 1) for at in kept]
        stacks = [lines.stacks[int(lines.stack[at])] for at in kept]
        result[number] = calls(stacks, lasts, len(kept), around=around)
    return result
