"""Own time: samples of what Python ran outside of evaluations in; the calls of each part out.

What recurs between evaluations that are alike is sampled where they are, on the rung `stack`. What
happens once is seen in lulls. Lulls speak for as much of a part's own time as they last, samples
for the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.composition.journal import Lull, Pause
from xsp.composition.nested import Part
from xsp.evaluation import united
from xsp.measurement import MOST_CALLS, calls, in_common, innermost, named_time
from xsp.provider import ATTRIBUTE, SAMPLE_SCHEMA, Samples

_COVERED = 0.5  # of own time that lulls must cover to speak for all of it, where samples are few
_FEW = 10  # samples: fewer say nothing beside lulls


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was seen of what a program ran.

    Attributes:
        samples: Samples of the rung `stack` (`xsp.provider.SAMPLE_SCHEMA`).
        lulls: What the thread of the block ran in lulls.
        pauses: Times that xsp took: what ran then is not the program's.
    """

    samples: Samples
    lulls: Sequence[Lull]
    pauses: Sequence[Pause]


def own_time(
    sampled: Sampled, parts: Sequence[Part], of: Sequence[int], own_ns: Sequence[float]
) -> dict[int, dict[str, Any]]:
    """Return the attributes `own_functions`, `own_lines`, `own_shares`, `own_samples` of rows.

    Evaluations have none: what runs in them is in the traces of their groups.

    Args:
        sampled: What was seen.
        parts: The parts of the program, the block first, parents before children.
        of: For each part the number of its row.
        own_ns: Own time of each row.
    """
    lulls = pl.DataFrame(
        [(each.time_ns, parts[0].thread) for each in sampled.lulls],
        schema={name: SAMPLE_SCHEMA[name] for name in ("time_ns", "thread")},
        orient="row",
    )
    row = np.array(_rows(parts, of, sampled.samples, sampled.pauses), dtype=np.int64)
    known = sampled.samples.filter(row >= 0)
    named = named_time(known, row[row >= 0], pl.repeat(True, known.height, eager=True))
    result = {
        each.pop("row"): {name.removeprefix(ATTRIBUTE): value for name, value in each.items()}
        for each in named.to_dicts()
    }
    seen: defaultdict[int, list[Lull]] = defaultdict(list)
    waited_ns: defaultdict[int, int] = defaultdict(int)
    waiting = _during_others(parts, lulls["time_ns"].to_numpy())
    rows = _rows(parts, of, lulls, sampled.pauses)
    for number, lull, waits in zip(rows, sampled.lulls, waiting.tolist(), strict=True):
        if waits:
            waited_ns[number] += lull.lasts_ns
        elif number >= 0:
            seen[number].append(lull)
    around = in_common([each.stack for each in sampled.lulls])
    for number, members in seen.items():
        lasts = [each.lasts_ns for each in members]
        covered = min(sum(lasts) / max(own_ns[number] - waited_ns[number], 1.0), 1.0)
        looks = sum(each.looks for each in members)
        told = calls([each.stack for each in members], lasts, looks, around=around)
        if number in result and result[number]["own_samples"] >= _FEW:
            result[number] = _together(told, covered, result[number])
        elif covered >= _COVERED:
            result[number] = told
    return result


def _together(
    told: Mapping[str, Any], covered: float, sampled: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what two sources tell of own time, of which the first one speaks for a part."""
    shares: Counter[tuple[str, str]] = Counter()
    for source, part in ((told, covered), (sampled, 1.0 - covered)):
        names = zip(source["own_functions"], source["own_lines"], strict=True)
        for name, share in zip(names, source["own_shares"], strict=True):
            shares[name] += part * share
    most = [each for each in shares.most_common(MOST_CALLS) if each[1] > 0]
    return {
        "own_functions": [function for (function, _), _ in most],
        "own_lines": [line for (_, line), _ in most],
        "own_shares": [share for _, share in most],
        "own_samples": told["own_samples"] + sampled["own_samples"],
    }


def _during_others(parts: Sequence[Part], time_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell at which times a part of another thread ran, which has a row beside the block's own."""
    here = parts[0].thread
    others = [(part.start_ns, part.end_ns) for part in parts if part.thread != here]
    if not others:
        return np.zeros(len(time_ns), bool)
    begin, end = np.array(united(others), dtype=np.int64).T
    at = np.searchsorted(begin, time_ns, "right") - 1
    return (at >= 0) & (time_ns < end[at])


def _rows(
    parts: Sequence[Part], of: Sequence[int], samples: Samples, pauses: Sequence[Pause]
) -> list[int]:
    """Return for each sample the row of the innermost part around; -1: none is to be explained.

    That is so in evaluations, and where xsp was at work.
    """
    columns = [(part.start_ns, part.end_ns, part.thread, part.parent) for part in parts]
    start, end, thread, parent = np.array(columns, dtype=np.int64).T
    found = innermost(start, end, thread, parent, samples).tolist()
    return [
        of[part] if part >= 0 and parts[part].evaluation < 0 and not at_work else -1
        for part, at_work in zip(found, _paused(samples, pauses).tolist(), strict=True)
    ]


def _paused(samples: Samples, pauses: Sequence[Pause]) -> NDArray[np.bool_]:
    """Tell which samples were taken while xsp was at work on their thread."""
    time_ns, on = samples["time_ns"].to_numpy(), samples["thread"].to_numpy()
    paused = np.zeros(samples.height, bool)
    for thread in {pause.thread for pause in pauses}:
        mine = [pause for pause in pauses if pause.thread == thread]
        begun = np.searchsorted(np.sort([pause.begin_ns for pause in mine]), time_ns, "right")
        ended = np.searchsorted(np.sort([pause.end_ns for pause in mine]), time_ns, "right")
        paused |= (begun > ended) & (on == thread)
    return paused
