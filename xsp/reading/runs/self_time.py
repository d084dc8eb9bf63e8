"""Names the Python functions that ran in the self time of spans, from samples.

A sample belongs to the innermost span around it on its thread. Of layers the functions are kept
that ran, of region spans, in which much more code may run, the calls where its ways part
(`calls`):

    layer 0-9, op 2-5; samples at 1 (f), 3 (g), 6 (f), 8 (h)     layer: f 67 %, h 33 %
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import innermost
from xsp.provider import ATTRIBUTE, Samples

Ints = NDArray[np.int64]

MOST_FUNCTIONS = 5  # of a span
MOST_CALLS = 20
_PYTHON = (Kind.REGION.value, Kind.LAYER.value)
_ALONE = 0.8  # of the time: where less of it goes on together, ways part
_LARGE = 0.5  # of the time: ways with so much of it are parted again,
_SAME = 0.9  # unless so much of a way goes on together, of which the first call says most
_LEAST = 0.1  # of the time: unless a piece has so much, ways are not parted
_SMALL = 0.02  # of the time: a piece with less is told with others
_IMPORT, _LOCAL = "import ", ".<locals>."
_TORCH_DECORATORS = "torch/utils/_contextlib.py"  # no_grad and others
_LIBRARY = re.compile(r"^<|[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
_STRUCTURE = ("kind", "name", "parent")


def with_self_time(
    frames: Sequence[pl.DataFrame], samples: Samples
) -> list[tuple[int, pl.DataFrame]]:
    """Return one tree for all steps of one structure, with what ran in its spans' self time.

    Args:
        frames: The correlated rows of each step, with the column `parent`.
        samples: Samples of any step, in any order (`xsp.provider.SAMPLE_SCHEMA`).

    Returns:
        The index of the first step of each structure, and its rows with the attributes
        `self_functions`, `self_lines`, `self_shares` and `self_samples`.
    """
    if not frames:
        return []
    rows = pl.concat(frames)
    first = np.cumsum([0, *(frame.height for frame in frames)])
    alike = _alike(rows, first)
    parent = rows["parent"].to_numpy()
    parent = np.where(parent < 0, -1, parent + np.repeat(first[:-1], np.diff(first)))
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    thread = rows["thread"].fill_null(-1).to_numpy()
    times, on = samples["time_ns"].to_numpy(), samples["thread"].to_numpy()
    at = innermost(start, end, thread, parent, times, on)
    python = rows["kind"].is_in(_PYTHON).to_numpy()
    owned = (at >= 0) & python[at]
    model = np.searchsorted(first, at[owned], "right") - 1  # the step of each sample
    place = at[owned] - first[model] + first[alike[model]]
    regions = rows["kind"].gather(place) == Kind.REGION.value
    table = named_time(samples.filter(pl.Series(owned)), place, regions)
    named = rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    named = named.join(table, on="row", how="left", maintain_order="left").drop("row")
    return [
        (int(i), named.slice(int(first[i]), frames[i].height)) for i in np.unique(alike).tolist()
    ]


def _alike(rows: pl.DataFrame, first: Ints) -> Ints:
    """Return for each step the first one with the same spans below one another."""
    hashes = rows.select(_STRUCTURE).hash_rows().to_numpy()
    known: dict[bytes, int] = {}
    return np.array(
        [
            known.setdefault(hashes[begin:end].tobytes(), i)
            for i, (begin, end) in enumerate(pairwise(first))
        ]
    )


def named_time(samples: Samples, row: Ints, by_calls: pl.Series) -> pl.DataFrame:
    """Return for each row what ran, that which ran most first.

    Args:
        samples: Samples of the self time of rows.
        row: The number of the row that each of them belongs to.
        by_calls: Of which of them the calls where ways part are wanted, if the calls are known.

    Returns:
        `row`, and the attributes `self_functions`, `self_lines`, `self_shares` and `self_samples`.
    """
    known = samples.with_columns(row=pl.Series(row, dtype=pl.Int64), by_calls=by_calls)
    told = pl.col("callers").is_not_null().all().over("row") & pl.col("by_calls")
    found = [_functions(known.filter(~told))]
    alike = known.filter(told).group_by("row", *_STACK, maintain_order=True).len()
    stacks_of = {
        at: [_stack(*each) for each in mine.select(*_STACK).iter_rows()]
        for (at,), mine in alike.group_by("row", maintain_order=True)
    }
    around = in_common([stack for stacks in stacks_of.values() for stack in stacks])
    for (at,), mine in alike.group_by("row", maintain_order=True):
        ways = calls(stacks_of[at], mine["len"].to_list(), around=around)
        columns = {"row": [at]} | {ATTRIBUTE + name: [value] for name, value in ways.items()}
        found.append(pl.DataFrame(columns, schema=found[0].schema))
    return pl.concat(found)


_STACK = "callers", "function", "file", "line"
Call = tuple[str, str, int]  # the function, its file, and the line it was at


def _stack(callers: str, *innermost: Any) -> tuple[Call, ...]:
    return *map(tuple, json.loads(callers)), innermost


def in_common(stacks: Sequence[tuple[Call, ...]]) -> int:
    """Return how many calls all stacks have in common, whatever the lines they were at."""
    named = [tuple(call[:2] for call in stack) for stack in stacks]
    return sum(1 for _ in takewhile(lambda calls: len(set(calls)) == 1, zip(*named, strict=False)))


def _functions(samples: pl.DataFrame) -> pl.DataFrame:
    """Return `named_time` of samples with the number of their row, by the functions that ran."""
    line = pl.col("line").value_counts(sort=True).first().struct.field("line")
    counted = (
        samples.group_by("row", "function", "file", maintain_order=True)
        .agg(line, count=pl.len())
        .sort("count", descending=True, maintain_order=True)
    )
    whole = pl.col("count").sum()
    shown: dict[str, Any] = {
        "self_functions": pl.col("function").head(MOST_FUNCTIONS),
        "self_lines": pl.format("{}:{}", "file", "line").head(MOST_FUNCTIONS),
        "self_shares": (pl.col("count") / whole).head(MOST_FUNCTIONS),
        "self_samples": whole.cast(pl.Int64),
    }
    named = (value.alias(ATTRIBUTE + name) for name, value in shown.items())
    return counted.group_by("row", maintain_order=True).agg(*named)


def calls(
    stacks: Sequence[tuple[Call, ...]],
    lasts: Sequence[int] = (),
    samples: int = 0,
    *,
    around: int = 0,
) -> dict[str, Any]:
    """Return which calls the time of stacks went to, as attributes of self time.

    The innermost function says little where many run (a thousand files are read by the same one),
    and the outermost nothing. So time is told by the calls where its ways part, each by what is
    called and the line that calls it; a way that all go by its end.

        train:3  forward  matmul           forward (train:3)   67 %
        train:3  forward  softmax          Optimizer.step (train:5)   33 %
        train:5  Optimizer.step  sqrt

    Args:
        stacks: Calls under way, the outermost first, at least one of each.
        lasts: How long each stack stands for; one of them as long as the other if none are given.
        samples: How many samples they are; 0: as many as they last.
        around: How many calls lie around what is told, the outermost ones.
    """
    lasts = lasts or [1] * len(stacks)
    samples = samples or sum(lasts)
    ways: defaultdict[Call, list[int]] = defaultdict(list)
    depths = partings(stacks, lasts, around)
    for number, depth in enumerate(depths):
        ways[stacks[number][depth]].append(number)
    length = {place: sum(lasts[number] for number in way) for place, way in ways.items()}
    most, whole = sorted(ways, key=length.__getitem__, reverse=True)[:MOST_CALLS], sum(lasts) or 1
    inside = {
        place: [(stacks[n][depths[n] + 1 :], lasts[n]) for n in ways[place]] for place in most
    }
    return {
        "self_functions": [_called(place, inside[place]) for place in most],
        "self_lines": [f"{file}:{line}" for _, file, line in most],
        "self_shares": [length[place] / whole for place in most],
        "self_samples": samples,
    }


def partings(
    stacks: Sequence[tuple[Call, ...]], lasts: Sequence[int], around: int = 0
) -> list[int]:
    """Return for each stack of calls the depth at which it parts from those of most of the time.

    A call is a function with the line that it was at: two lines of a script are two ways. Where
    ways part into small pieces alone, they are told by the call before. Where all go one way, and
    a library calls the user's code on it, the way is told by the last such call, if it is none of
    those around.

    >>> a, b, c = ((name, "train.py", line) for line, name in enumerate("abc"))
    >>> partings([(a, b), (a, b, c), (a, c)], [1, 1, 1])
    [1, 2, 1]
    """
    result, whole = [0] * len(stacks), sum(lasts)
    waiting = [(0, list(range(len(stacks))))]
    while waiting:
        depth, together = waiting.pop()
        for way in _ways(stacks, together, depth):
            length = sum(lasts[number] for number in way)
            if depth and length < _SMALL * whole:  # told by the call before, together
                continue
            inside = _ways(stacks, way, depth + 1) if length >= _LARGE * whole else []
            most = max((sum(lasts[number] for number in each) for each in inside), default=0)
            parted = length >= _ALONE * whole or most < _SAME * length
            goes_on = most >= _LEAST * whole and parted
            if goes_on:
                waiting.append((depth + 1, way))
            alone = length >= _ALONE * whole and not goes_on
            told = _users(stacks[way[0]], around, depth) if alone else depth
            for number in way:
                result[number] = told
    return result


def _ways(
    stacks: Sequence[tuple[Call, ...]], together: Iterable[int], depth: int
) -> list[list[int]]:
    """Return the numbers of those stacks that are as deep, those with the same call together.

    A function without source is no way of its own: it is on the line that calls it.
    """
    found: defaultdict[Call, list[int]] = defaultdict(list)
    for number in together:
        stack = stacks[number]
        if depth < len(stack) - (len(stack) > 1 and stack[-1][1:] == stack[-2][1:]):
            found[stack[depth]].append(number)
    return list(found.values())


def _users(stack: Sequence[Call], around: int, depth: int) -> int:
    """Return how deep the user's code is that a library calls last until a depth; else that."""
    own = [_LIBRARY.search(file) is None for _, file, _ in stack[: depth + 1]]
    called = (at for at in range(max(around, 1), depth + 1) if own[at] and not own[at - 1])
    return max(called, default=depth)


def _called(place: Call, inside: Iterable[tuple[tuple[Call, ...], int]]) -> str:
    """Name the function that a line calls for most of its time, else the function it is in.

    A line may import several modules, one after the other, mostly those of a package, which then
    has the name. What a function imports when it is first called is told as what is imported.

    Args:
        place: The line.
        inside: The calls that it had made, the outermost first, and how long that lasted.
    """
    length: Counter[str] = Counter()
    for made, lasts in inside:
        imported = next((name for name, _, _ in made if name.startswith(_IMPORT)), "")
        function = _decorated(made, place[1]) if made else ""
        length[imported or function] += lasts
    packages: Counter[str] = Counter()
    for name, lasts in length.items():
        packages[name.partition(".")[0] if name.startswith(_IMPORT) else name] += lasts
    least = _ALONE * length.total()
    for counted in (length, packages):
        function, most = counted.most_common(1)[0]
        if most >= least:
            return function or place[0]
    imports = sum(lasts for name, lasts in length.items() if name.startswith(_IMPORT))
    return "imports" if imports >= least else place[0]


def _decorated(made: Sequence[Call], file: str) -> str:
    """Return the first function of some calls; of a decorator from another file, what that calls.

    >>> _decorated([("no_grad.<locals>.wrapper", "a.py", 1), ("SGD.step", "b.py", 2)], "train.py")
    'SGD.step'
    """
    for name, where, _ in made:
        wraps = _LOCAL in name and (where != file or "wrap" in name.rpartition(".")[2])
        if not (wraps or where.endswith(_TORCH_DECORATORS)):
            return name
    return made[0][0]
