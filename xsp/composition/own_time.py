"""Own time: samples of what Python ran outside of evaluations in; the functions of each part out.

What recurs between evaluations that are alike is sampled where they are, on the rung `stack`, and
named as in evaluations: by the function that ran. What happens once is seen in lulls, by the stacks
of all calls under way. There the innermost function says little (a thousand files are read by the
same one), and the outermost nothing. So these are named by where the ways from the outermost call
part:

    <module>:3  import_module  get_data            <module>:3   67 %
    <module>:3  import_module  find_spec           <module>:9   33 %
    <module>:9  build_model    normal_
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.composition.journal import Lull, Pause, Place
from xsp.composition.part import Part
from xsp.measurement import MOST_FUNCTIONS, functions, innermost
from xsp.provider import ATTRIBUTE, SAMPLE_SCHEMA, Samples

_ALONE = 0.8  # of the time: where less of it goes on together, ways part
_COVERED = 0.5  # of own time that lulls must cover to speak for it


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
    rows_of_samples = _rows(parts, of, sampled.samples, sampled.pauses)
    known = sampled.samples.with_columns(row=pl.Series(rows_of_samples, dtype=pl.Int64))
    named = functions(known.filter(pl.col("row") >= 0))
    result = {
        each.pop("row"): {name.removeprefix(ATTRIBUTE): value for name, value in each.items()}
        for each in named.to_dicts()
    }
    seen: defaultdict[int, list[Lull]] = defaultdict(list)
    for row, lull in zip(_rows(parts, of, lulls, sampled.pauses), sampled.lulls, strict=True):
        if row >= 0:
            seen[row].append(lull)
    for row, members in seen.items():
        if sum(each.lasts_ns for each in members) >= _COVERED * own_ns[row]:
            result[row] = _named(members)
    return result


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


def _named(lulls: Sequence[Lull]) -> dict[str, Any]:
    """Return the attributes by the places where the ways of calls part."""
    lasts: Counter[Place] = Counter()
    seen: defaultdict[Place, list[Lull]] = defaultdict(list)
    ways = partings([each.stack for each in lulls], [each.lasts_ns for each in lulls])
    for lull, place in zip(lulls, ways, strict=True):
        lasts[place] += lull.lasts_ns
        seen[place].append(lull)
    most, whole = lasts.most_common(MOST_FUNCTIONS), lasts.total() or 1
    return {
        "own_functions": [_function(place, seen[place]) for place, _ in most],
        "own_lines": [f"{place.file}:{place.line}" for place, _ in most],
        "own_shares": [ns / whole for _, ns in most],
        "own_samples": sum(each.looks for each in lulls),
    }


def _function(place: Place, lulls: Sequence[Lull]) -> str:
    """Return the function that a place is in; of a line that imports, what the line imports.

    A line may import several modules, one after the other: those of a package, at least.
    """
    imports = [each for each in lulls if each.stack[-2:-1] == (place,) and _imports(each.stack[-1])]
    if sum(each.lasts_ns for each in imports) < _ALONE * sum(each.lasts_ns for each in lulls):
        return place.function
    packages = {each.stack[-1].function.partition(".")[0] for each in imports}
    return packages.pop() if len(packages) == 1 else "imports"


def _imports(place: Place) -> bool:
    return place.function.startswith("import ")


def partings(stacks: Sequence[tuple[Place, ...]], lasts_ns: Sequence[int]) -> list[Place]:
    """Return for each stack of calls the call at which it parts from those of most of the time.

    A call is a function with the line that it was at: two lines of a script are two ways.

    Args:
        stacks: Calls under way, the outermost first, at least one of each.
        lasts_ns: How long each stack stands for.

    >>> a, b, c = (Place(name, "train.py", 1) for name in "abc")
    >>> [place.function for place in partings([(a, b), (a, b, c), (a, c)], [1, 1, 1])]
    ['b', 'b', 'c']
    """
    result = [stack[-1] for stack in stacks]
    together, whole = list(range(len(stacks))), sum(lasts_ns)
    for depth in range(max(map(len, stacks), default=0)):
        at = {number: stacks[number][depth] for number in together if depth < len(stacks[number])}
        lasts: Counter[Place] = Counter()
        for number, place in at.items():
            result[number] = place
            lasts[place] += lasts_ns[number]
        most, length = lasts.most_common(1)[0] if lasts else (None, 0)
        if length < _ALONE * whole:
            return result
        together = [number for number, place in at.items() if place == most]
    return result
