"""Worker time: what the processes that a program forked ran while the program waited for them.

What the workers of a `DataLoader` did counts in the waits for their batches, what other processes
did wherever the block's thread was in nothing but the program's own code:

    data loading 0-9; a worker: decode 1-6, waits 6-9       decode 56 %, waiting for work 33 %
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.reading.program.forest import Forest
from xsp.reading.program.self_time import rows_at, unwatched
from xsp.reading.program.tree import Rows
from xsp.reading.runs import calls
from xsp.record.program import BLOCKED, IN_LOCK, ProgramRecord, WorkerSamples

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Stack = tuple[tuple[str, str, int], ...]  # function, file and line of calls, the outermost first

_OFTEN = 0.1  # of its samples: a place in which a thread is blocked so often blocks
_FEW = 5  # samples, which say too little of the time in which a thread was active
_LOADER = re.compile(r"[/\\]torch[/\\]utils[/\\]data[/\\]")
# Where Python waits for another process or thread; `reduction.py` pickles, which is work.
_WAITS = re.compile(
    r"[/\\]python3\.\d+[/\\]((multiprocessing|concurrent)[/\\](?!reduction)|"
    r"(selectors|threading|queue|popen_fork)\.py$)|[/\\]torch[/\\]multiprocessing[/\\]queue\.py$"
)


def worker_time(forest: Forest, record: ProgramRecord, rows: Rows) -> dict[int, dict[str, Any]]:
    """Return the attributes of rows that tell of workers: `worker_functions`, `worker_waits`, ….

    Args:
        forest: The items.
        record: What was recorded.
        rows: The rows of the tree.
    """
    samples = _Samples(record)
    if not len(samples.time):
        return {}
    row = np.where(samples.loads, _loading(forest, rows, samples.time), -1)
    others = np.flatnonzero(~samples.loads & ~samples.waits)
    at = rows_at(forest, record, rows.of_item, samples.time[others])
    of_program = np.array(
        [each.kind is Kind.REGION and not each.attributes.get("workers") for each in rows.label]
    )
    row[others] = np.where(of_program[at], at, -1)
    row[unwatched(record, samples.time)] = -1
    result = {}
    for number in np.unique(row[row >= 0]).tolist():
        mine = row == number
        own_ns = float(rows.total_ns[number])
        # A process is seen in the time up to its sample; several are seen at once.
        seen_ns = min(_united(samples.time[mine] - samples.lasts[mine], samples.time[mine]), own_ns)
        if seen_ns > 0:
            result[number] = _told(samples, mine, seen_ns / own_ns)
    return result


class _Samples:
    """The samples of all workers, as arrays of one length.

    Attributes:
        time: When each was taken, in ns.
        lasts: The time in ns until each, since the one before.
        weight: The time in ns that each stands for.
        stacks: The calls under way in each.
        loads: Whether each is of a worker of a `DataLoader`.
        waits: Whether the process did nothing but wait for work.
    """

    def __init__(self, record: ProgramRecord) -> None:
        lines = [worker.lines for worker in record.workers]
        nothing = np.zeros(0, np.int64)
        self.time = np.concatenate([nothing, *(each.time_ns for each in lines)])
        self.lasts = np.concatenate([nothing, *(each.lasts_ns for each in lines)])
        self.weight = self.lasts.astype(np.float64)
        self.loads, self.waits = np.zeros((2, len(self.time)), bool)
        self.stacks: list[Stack] = []
        blocking = _blocking(record.workers)
        for worker in record.workers:
            stacks = worker.lines.stacks
            loader = any(_LOADER.search(file) for stack in stacks for _, file, _ in stack)
            mine = slice(len(self.stacks), len(self.stacks) + len(worker.lines.stack))
            found = [stacks[number] for number in worker.lines.stack.tolist()]
            self.loads[mine] = loader
            self.waits[mine] = [_is_idle(stack, loader) for stack in found]
            blocks = np.array([stack[-1] in blocking for stack in found], bool)
            self.weight[mine], before = _weights(worker, blocks, self.waits[mine])
            self.stacks += [
                stack[:-1] or stack if called else stack
                for stack, called in zip(found, before.tolist(), strict=True)
            ]


def _is_idle(stack: Stack, loader: bool) -> bool:
    """Return whether a process waits; that of a loader for work, not for what a data set calls."""
    if not _WAITS.search(stack[-1][1]):
        return False
    return not loader or all(_WAITS.search(file) or _LOADER.search(file) for _, file, _ in stack)


def _blocking(workers: Sequence[WorkerSamples]) -> set[tuple[str, str, int]]:
    """Return the places in which threads of workers are often blocked."""
    seen: Counter[tuple[str, str, int]] = Counter()
    blocked: Counter[tuple[str, str, int]] = Counter()
    for worker in workers:
        innermost = [worker.lines.stacks[number][-1] for number in worker.lines.stack.tolist()]
        for place, state in zip(innermost, worker.state.tolist(), strict=True):
            seen[place] += 1
            in_lock = state == IN_LOCK and _WAITS.search(place[1]) is not None
            blocked[place] += state == BLOCKED or in_lock
    return {place for place, often in blocked.items() if often >= _OFTEN * seen[place]}


def _weights(worker: WorkerSamples, blocks: Bools, waits: Bools) -> tuple[Floats, Bools]:
    """Return the time in ns that each sample of a process stands for, and which are of its caller.

    Python hands its lock to the sampling thread where it begins to wait for something, rarely
    while it computes: half computing and half asleep was seen as 10 % and 90 %. So the time in
    which the thread was active, known from the system, is shared out among the samples of places
    that do not block. Where there are none, it belongs to what calls the blocking places.

    Args:
        worker: The samples.
        blocks: Which of them are at a place that blocks.
        waits: In which of them the process waits for work.
    """
    lasts = worker.lines.lasts_ns.astype(np.float64)
    whole_ns, active_ns = float(lasts.sum()), float(worker.active_ns.sum())
    before = np.zeros(len(lasts), bool)
    if not active_ns:  # the system does not tell
        return lasts, before
    runs, sleeps = ~blocks, blocks & (worker.state == BLOCKED)
    if runs.sum() < _FEW:
        before = blocks & ~sleeps & ~waits
        runs = runs | before
    parts = lasts[runs].sum(), lasts[sleeps].sum()
    if not all(parts):
        return lasts, before
    active_ns = min(active_ns, whole_ns)
    weight = np.zeros(len(lasts))
    weight[runs] = lasts[runs] * active_ns / parts[0]
    weight[sleeps] = lasts[sleeps] * (whole_ns - active_ns) / parts[1]
    return weight, before


def _loading(forest: Forest, rows: Rows, time: Ints) -> Ints:
    """Return the row of the wait for a batch, on any thread, around each moment; else -1."""
    loading = np.array([bool(label.attributes.get("workers")) for label in rows.label])
    waits = np.flatnonzero(loading[rows.of_item])
    if not len(waits):
        return np.full(len(time), -1)
    waits = waits[np.argsort(forest.items.begin[waits], kind="stable")]
    at = waits[np.maximum(np.searchsorted(forest.items.begin[waits], time, "right") - 1, 0)]
    inside = (forest.items.begin[at] <= time) & (time <= forest.items.end[at])
    return np.where(inside, rows.of_item[at], -1)


def _united(begin: Ints, end: Ints) -> float:
    """Return the time in ns in which at least one of some intervals is."""
    order = np.argsort(begin, kind="stable")
    latest = np.maximum.accumulate(end[order])
    before = np.concatenate([begin[order][:1], latest[:-1]])
    return float(np.maximum(latest - np.maximum(begin[order], before), 0).sum())


def _told(samples: _Samples, mine: Bools, seen: float) -> dict[str, Any]:
    """Return the attributes of a row, in a share of whose time processes were seen."""
    busy = np.flatnonzero(mine & ~samples.waits & (samples.weight > 0)).tolist()
    works_ns, waits_ns = (
        float(samples.weight[mine & each].sum()) for each in (~samples.waits, samples.waits)
    )
    works, waits = (seen * each / max(works_ns + waits_ns, 1.0) for each in (works_ns, waits_ns))
    told: dict[str, Any] = {"worker_samples": int(mine.sum()), "worker_waits": waits}
    if busy:
        lasts = np.maximum(samples.weight[busy].round().astype(np.int64), 1).tolist()
        ways = calls([samples.stacks[at] for at in busy], lasts, len(busy))
        told |= {
            "worker_functions": ways["self_functions"],
            "worker_lines": ways["self_lines"],
            "worker_shares": [works * share for share in ways["self_shares"]],
        }
    return told
