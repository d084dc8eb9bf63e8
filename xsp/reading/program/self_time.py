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
    watched = ~unwatched(record, record.lines.time_ns)
    lines = LineSamples(
        record.lines.time_ns[watched],
        record.lines.lasts_ns[watched],
        record.lines.stack[watched],
        record.lines.stacks,
    )
    if not len(lines.time_ns):
        return {}
    row = rows_at(forest, record, of_item, lines.time_ns)
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


def unwatched(record: ProgramRecord, time_ns: Ints) -> NDArray[np.bool_]:
    """Return which moments lie in stretches without hooks, or after the program.

    What ran then has no row.
    """
    out = time_ns > record.end_ns
    for window in record.windows:
        if window.records is Records.OUT:
            end = window.end_ns if window.end_ns is not None else record.end_ns
            out |= (time_ns >= window.begin_ns) & (time_ns < end)
    return out


def rows_at(forest: Forest, record: ProgramRecord, of_item: Ints, time_ns: Ints) -> Ints:
    """Return the row of the innermost item around each moment on the block's thread.

    Args:
        forest: The items.
        record: What was recorded.
        of_item: The row of each item.
        time_ns: The moments.
    """
    items = forest.items
    mine = np.flatnonzero(~forest.alone)
    threads = np.array([*(thread for thread, _ in record.log.threads), record.thread])
    thread = threads[np.minimum(items.thread[mine], len(threads) - 1)]
    place = np.full(len(items), -1)
    place[mine] = np.arange(len(mine))
    above = forest.parent[mine]
    parent = np.where(above >= 0, place[np.maximum(above, 0)], -1)
    on = np.full(len(time_ns), record.thread)
    found = innermost(items.begin[mine], items.end[mine], thread, parent, time_ns, on)
    # A thread's self time beyond all of its items is the block's.
    return np.where(found >= 0, of_item[mine[np.maximum(found, 0)]], 0)
