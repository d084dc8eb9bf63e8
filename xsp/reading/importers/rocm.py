"""Reads kinds, names and steps of roctx ranges, and ways of copies, for AMD's recorders.

PyTorch marks its operators by roctx, as `aten::mm` or `aten::mm, seq = 12`, and its profiler's
steps as `ProfilerStep#3`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows

_STEP = r"^ProfilerStep#\d+$"
_SEQUENCE = re.compile(r", seq ?= ?(\d{1,18})")
_COPY = "MEMORY_COPY_"
_WORDS = {"HOST": "H", "DEVICE": "D"}
_OPERATOR = re.compile(r"^[\w.]+(::[\w.]+)+")


def range_columns(texts: Sequence[str]) -> dict[str, pl.Series]:
    """Return kind, name and autograd sequence number of ranges, by the texts given to roctx.

    >>> [each.to_list() for each in range_columns(["aten::mm, seq = 12", "my step"]).values()]
    [['op', 'region'], ['aten::mm', 'my step'], [12, None]]
    """
    known = {text: _described(text) for text in set(texts)}
    described = [known[text] for text in texts]
    return {
        "kind": pl.Series([kind for kind, _, _ in described], dtype=pl.String),
        "name": pl.Series([name for _, name, _ in described], dtype=pl.String),
        "sequence": pl.Series([number for _, _, number in described], dtype=pl.Int64),
    }


def part_steps(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return the rows without the steps of PyTorch's profiler, and the steps."""
    regions = pl.col("kind") == Kind.REGION.value
    is_step = regions & pl.col("name").str.contains(_STEP)
    return rows.filter(~is_step), rows.filter(is_step)


def _described(text: str) -> tuple[str, str, int | None]:
    sequence = _SEQUENCE.search(text)
    if sequence is None and not _OPERATOR.match(text):
        return Kind.REGION.value, text, None
    name = text[: sequence.start()] if sequence else text
    return Kind.OP.value, name, int(sequence[1]) if sequence else None


def copy_direction(operation: str) -> str:
    """Return from where to where a copy goes.

    >>> copy_direction("MEMORY_COPY_HOST_TO_DEVICE"), copy_direction("MEMORY_COPY_NONE")
    ('HtoD', 'unknown')
    """
    ends = [_WORDS.get(word) for word in operation.removeprefix(_COPY).split("_TO_")]
    return "to".join(str(end) for end in ends) if len(ends) == 2 and all(ends) else "unknown"
