"""What AMD's two recorders have in common: ranges of roctx in, rows out; texts of counts.

PyTorch marks its operators by roctx, as `aten::mm` or `aten::mm, seq = 12`, and its profiler's
steps as `ProfilerStep#3`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows

_STEP = r"^ProfilerStep#\d+$"
_SEQUENCE = re.compile(r", seq ?= ?(\d{1,18})")
_OPERATOR = re.compile(r"^[\w.]+(::[\w.]+)+")
_MOST_NAMED = 8


def range_columns(texts: Sequence[str]) -> dict[str, pl.Series]:
    """Return kind, name and autograd sequence number of ranges, by the texts given to roctx.

    >>> [each.to_list() for each in range_columns(["aten::mm, seq = 12", "my step"]).values()]
    [['op', 'pipeline'], ['aten::mm', 'my step'], [12, None]]
    """
    known = {text: _described(text) for text in set(texts)}
    kinds, names, sequences = (
        zip(*(known[text] for text in texts), strict=True) if texts else ((),) * 3
    )
    return {
        "kind": pl.Series(kinds, dtype=pl.String),
        "name": pl.Series(names, dtype=pl.String),
        "sequence": pl.Series(sequences, dtype=pl.Int64),
    }


def part_steps(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return the rows without the steps of PyTorch's profiler, and the steps.

    Steps that are not one after the other in time stay among the rows.
    """
    is_step = (pl.col("kind") == Kind.PIPELINE.value) & pl.col("name").str.contains(_STEP)
    steps = rows.filter(is_step).sort("start_ns")
    if not steps.height or (steps["start_ns"][1:] < steps["end_ns"][:-1]).any():
        return rows, no_rows()
    return rows.filter(~is_step), steps.with_columns(name=pl.lit("ProfilerStep"))


def listed(counts: Counter[str]) -> str:
    """Return the most frequent names with their numbers, and how many there are of others.

    >>> listed(Counter(a=2, b=1))
    '2 a, 1 b'
    """
    most = counts.most_common(_MOST_NAMED)
    rest = counts.total() - sum(count for _, count in most)
    parts = [f"{count:,} {name or 'without a name'}" for name, count in most]
    return ", ".join(parts + ([f"{rest:,} others"] if rest else []))


def _described(text: str) -> tuple[str, str, int | None]:
    sequence = _SEQUENCE.search(text)
    if sequence is None and not _OPERATOR.match(text):
        return Kind.PIPELINE.value, text, None
    name = text[: sequence.start()] if sequence else text
    return Kind.OP.value, name, int(sequence[1]) if sequence else None
