"""Operators and events of a detail run in; columns of shapes and memory out.

The profiler tells the shapes that went into an operator of a graph, and memory as it is
allocated, with the shape that it is for. oneDNN's allocator tells of no less than 256 KiB at a
time; of smaller outputs the shape is known where the graph states it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl

from xsp.text import element_type
from xsp_levels.framework.memory import memory_columns, sorted_allocations
from xsp_levels.framework.tensorflow.profiler.run import innermost

_ALLOCATED, _FREED = "MemoryAllocation", "MemoryDeallocation"
_MEMORY = ("attr.allocated_bytes", "attr.freed_bytes", "attr.peak_bytes")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_SHAPES, _TYPES = pl.List(pl.List(pl.Int64)), pl.List(pl.String)
# TensorFlow's numbers of element types, as PyTorch spells these.
_ELEMENTS = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16",
    22: "uint32", 23: "uint64",
}  # fmt: skip


def detail_columns(
    table: pl.DataFrame, events: pl.DataFrame, stated: Mapping[str, Mapping[str, str]]
) -> dict[str, pl.Series]:
    """Return columns of shapes, element types and memory for a table of operators.

    Args:
        table: Operators (`operator_table`, `with_instructions`).
        events: Events of the same recording.
        stated: Arrays that nodes make as the graphs state them, by function and node.
    """
    given = table["shape"].to_list()
    changes = events.filter(
        pl.col("name").is_in([_ALLOCATED, _FREED]), pl.col("requested_bytes") > 0
    )
    texts = zip(_made(table, changes), table["function"], table["node"], strict=True)
    made = [_arrays(text or stated.get(function, {}).get(node)) for text, function, node in texts]
    told = [_arrays(text) for text in given]
    return {
        "attr.input_shapes": _each(told, lambda each: [sizes for sizes, _ in each], _SHAPES),
        "attr.input_dtypes": _each(told, lambda each: [name for _, name in each], _TYPES),
        "attr.output_shapes": _each(made, lambda each: [sizes for sizes, _ in each], _SHAPES),
        "attr.output_dtypes": _each(made, lambda each: [name for _, name in each], _TYPES),
        **_memory(table, changes),
    }


def _arrays(text: str | None) -> list[tuple[list[int], str]] | None:
    """Return sizes and element type of each array in a text; None if there is none.

    >>> _arrays("(float[2,8];int32[])"), _arrays("()")
    ([([2, 8], 'float32'), ([], 'int32')], None)
    """
    found = _ARRAY.findall(text or "")
    return [
        ([int(size) for size in sizes.split(",") if size], element_type(name))
        for name, sizes in found
    ] or None


def _made(table: pl.DataFrame, changes: pl.DataFrame) -> list[str | None]:
    """Return the arrays that memory was allocated for as outputs, as a text for each operator."""
    outputs = changes.filter(pl.col("region_type") == "output", pl.col("shape").is_not_null())
    texts: list[str | None] = table["made"].to_list()
    around = innermost(table, outputs).tolist()
    for at, number, sizes in zip(around, outputs["data_type"], outputs["shape"], strict=True):
        element = _ELEMENTS.get(number)
        if at >= 0 and element is not None and table["sort"][at] != "xla":
            texts[at] = (texts[at] or "") + element + sizes
    return texts


def _memory(table: pl.DataFrame, changes: pl.DataFrame) -> dict[str, pl.Series]:
    """Return columns of memory; null where nothing was told, for not all is."""
    sign = np.where((changes["name"] == _ALLOCATED).to_numpy(), 1, -1)
    memory = sorted_allocations(
        changes["start_ns"].to_numpy(),
        changes["requested_bytes"].to_numpy() * sign,
        thread=changes["thread"].to_numpy(),
        threads=frozenset(changes["thread"].to_list()),
    )
    start, end, thread = (table[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    columns = memory_columns(memory, start, end, thread)
    if not columns:
        return {}
    silent = (columns[_MEMORY[0]] == 0) & (columns[_MEMORY[1]] == 0)
    return {
        name: column.set(silent.fill_null(value=True), None) for name, column in columns.items()
    }


def _each(values: list[Any], form: Callable[[Any], Any], dtype: Any) -> pl.Series:
    return pl.Series([None if value is None else form(value) for value in values], dtype=dtype)
