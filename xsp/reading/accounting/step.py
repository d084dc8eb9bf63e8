"""Charges the accounts of a pass to the spans of its steps, and makes one run of steps alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import innermost
from xsp.provider import ATTRIBUTE, Accounts, SpanRows
from xsp.reading.accounting.charge import NAMES, THREADS, charges, thread_charges
from xsp.reading.accounting.system_call import CALLS, fold_calls, of_workers
from xsp.reading.accounting.timeline import TIMELINE, thread_timeline

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_TRIMMED = 0.2  # of the steps at either end, as of latencies
_STRUCTURE = ("kind", "name", "parent")


def with_accounts(
    frames: Sequence[pl.DataFrame],
    kind: Kind,
    accounts: Accounts,
    calls: SpanRows,
    *,
    with_calls: bool = True,
) -> list[tuple[int, pl.DataFrame]]:
    """Return one tree for all steps of one structure, with what its spans were charged.

    Args:
        frames: The correlated rows of each step, with the column `parent`, without system calls.
        kind: The deepest kind of span among them, the one that is charged: recording spans that
            lie deeper makes calls and faults of its own.
        accounts: Accounts of any step, in any order.
        calls: System calls of any step, in any order.
        with_calls: Whether calls, and the states of threads over time, are told of these steps.

    Returns:
        The index of the first step of each structure, and its rows with the attributes of
        `charge.NAMES`, `blocked_in`, `woken_by`, `system_calls` and, of the root, `thread_states`;
        below them the system calls of that step.
    """
    if not frames:
        return []
    calls = calls if with_calls else calls.clear()
    rows = pl.concat(frames, how="diagonal_relaxed")
    first = np.cumsum([0, *(frame.height for frame in frames)])
    alike: dict[bytes, list[int]] = {}
    hashes = rows.select(_STRUCTURE).hash_rows().to_numpy()
    for number, (begin, end) in enumerate(pairwise(first.tolist())):
        alike.setdefault(hashes[begin:end].tobytes(), []).append(number)
    start, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    thread = rows["thread"].fill_null(-1).to_numpy()
    steps = first[:-1]
    charged = charges(accounts, start, ends, thread, steps=steps)
    placed = _placed(calls, rows, first)
    result = []
    for members in alike.values():
        head, height = members[0], frames[members[0]].height
        place = steps[members][:, None] + np.arange(height)
        kept = _middle((ends - start)[place])
        shown = (frames[head]["kind"] == kind.value).to_numpy()
        means = {
            name: np.where(
                shown, _mean(np.where(kept, charged.amounts[name][place], np.nan)), np.nan
            )
            for name in (*NAMES.values(), "running_ns")
        }
        most = {
            "blocked_in": _usual(charged.blocked_in, place, kept),
            "woken_by": _usual(charged.woken_by, place, kept),
        }
        middle = np.array(members)[kept[:, 0]]
        folded = placed.of(middle.tolist())
        threads = thread_charges(accounts, start[steps[middle]], ends[steps[middle]])
        # Of the step whose calls are kept one by one.
        drawn = thread_timeline(accounts, int(start[steps[head]]), int(ends[steps[head]]))
        frame = frames[head].with_columns(
            *(pl.Series(ATTRIBUTE + name, v).fill_nan(None) for name, v in means.items()),
            *(pl.Series(ATTRIBUTE + n, v, dtype=pl.String) for n, v in most.items()),
            pl.Series(f"{ATTRIBUTE}system_calls", [folded.get(i) for i in range(height)], CALLS),
            pl.Series(f"{ATTRIBUTE}thread_states", [threads, *[None] * (height - 1)], THREADS),
            pl.Series(
                f"{ATTRIBUTE}thread_timeline",
                [drawn if with_calls else None, *[None] * (height - 1)],
                TIMELINE,
            ),
        )
        result.append((head, pl.concat([frame, placed.rows_of(head)], how="diagonal_relaxed")))
    return result


@dataclass(frozen=True, slots=True)
class _Placed:
    """System calls, and where in the steps they lie.

    Attributes:
        calls: The calls that lie in a step, in the column `parent` the row of that step around.
        step: Number of the step of each.
        told: Whether the thread of that row made it, or a process that works for it; calls of
            other threads of the process are no part of what the row's thread waits for.
        end: When each ended, at most with its step.
    """

    calls: SpanRows
    step: Ints
    told: NDArray[np.bool_]
    end: Ints

    def of(self, steps: Sequence[int]) -> dict[int, list[dict[str, object]]]:
        """Return the calls of these steps, folded for each row that they lie in."""
        mine = np.isin(self.step, steps) & self.told
        calls = self.calls.filter(pl.Series(mine))
        below = calls["parent"].to_numpy()
        return fold_calls(calls, below, self.end[mine], self.step[mine], len(steps))

    def rows_of(self, step: int) -> pl.DataFrame:
        """Return the calls of one step."""
        return self.calls.filter(pl.Series(self.step == step))


def _placed(calls: SpanRows, rows: pl.DataFrame, first: Ints) -> _Placed:
    """Place calls in the innermost rows of their threads, or else in the step at their time."""
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    thread, parent = rows["thread"].fill_null(-1).to_numpy(), rows["parent"].to_numpy()
    parent = np.where(parent < 0, -1, parent + np.repeat(first[:-1], np.diff(first)))
    called = calls["start_ns"].to_numpy()
    at = innermost(start, end, thread, parent, called, calls["thread"].fill_null(-1).to_numpy())
    roots = first[:-1]
    step = np.searchsorted(start[roots], called, "right") - 1
    inside = (step >= 0) & (called < end[roots][step])
    row = np.where(at < 0, 0, at - roots[step])[inside]
    within = np.minimum(calls["end_ns"].to_numpy(), end[roots][step])[inside]
    known = calls.filter(pl.Series("inside", inside, dtype=pl.Boolean))
    parents = pl.Series("parent", row, dtype=rows.schema["parent"])
    told = (at[inside] >= 0) | of_workers(known)
    return _Placed(known.with_columns(parents), step[inside], told, within)


def _middle(took: Ints) -> NDArray[np.bool_]:
    """Return the steps, shape `[steps, spans]`, of the middle 60 % of each span's times.

    A step in which another program had the processor would say too much of waiting.
    """
    count = len(took)
    rank = np.argsort(np.argsort(took, axis=0, kind="stable"), axis=0)
    cut = int(_TRIMMED * count)
    return np.asarray((rank >= cut) & (rank < count - cut))


def _mean(values: Floats) -> Floats:
    """Return the mean over steps, shape `[steps, spans]`, of those in which a value is known."""
    known = ~np.isnan(values)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), np.nan)


def _usual(causes: Sequence[str | None], place: Ints, kept: NDArray[np.bool_]) -> list[str | None]:
    """Return for each span the cause that most of the kept steps have, or None."""
    named = np.array(causes, object)
    result: list[str | None] = []
    for column, told in zip(place.T, kept.T, strict=True):
        known = [cause for cause in named[column[told]].tolist() if cause is not None]
        result.append(max(dict.fromkeys(known), key=known.count) if known else None)
    return result
