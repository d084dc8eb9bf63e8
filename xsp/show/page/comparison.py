"""Gathers tables, plots and notes on how several traces differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from xsp.answer.analyses import estimate_of, heading_of
from xsp.answer.comparison import Comparison, compare
from xsp.errors import AnalysisError
from xsp.show.page.picture import picture_of_differences, pictures_of
from xsp.show.page.place import Places
from xsp.show.page.table import Table, answers, table_of, tabulated
from xsp.text import printable, shorten
from xsp.trace import Trace

# Of the differences; `xsp compare` has the rest.
_COLUMNS = (
    *("trace", "change", "path_a", "path_b", "type_a"),
    *("latency_a_ns", "latency_a_low_ns", "latency_a_high_ns"),
    *("latency_b_ns", "latency_b_low_ns", "latency_b_high_ns"),
    *("difference_ns", "difference_low_ns", "difference_high_ns"),
    *("ratio", "own_difference_ns", "corrected_p_value", "verdict"),
)
_LONGEST = 30  # characters of a name in a heading
_ENDS = ("_low", "_high")


@dataclass(frozen=True, slots=True)
class Differences:
    """The part of the page about several traces beside each other.

    Attributes:
        tables: What differs, and the tables of the analyses that take several traces.
        plots: Their plots, by the names of the tables.
        notes: What to know before trusting a difference.
    """

    tables: tuple[Table, ...]
    plots: Mapping[str, Any]
    notes: tuple[str, ...]


def differences_of(traces: Sequence[Trace], names: Sequence[str] | None = None) -> Differences:
    """Return how traces differ from the first of them.

    Args:
        traces: The traces, the first of which the others are compared with.
        names: What to call the traces; None: the traces' own names.
    """
    several = tuple(answers(traces))
    places = Places(traces[0])
    compared, plots, notes = _compared(traces, names, places)
    tables = [table_of(answer, places) for answer in several]
    return Differences((*compared, *tables), plots | pictures_of(several, places), notes)


def _compared(
    traces: Sequence[Trace], names: Sequence[str] | None, places: Places
) -> tuple[list[Table], dict[str, Any], tuple[str, ...]]:
    try:
        compared = compare(*traces, names=names)
    except AnalysisError as error:
        return [], {}, (printable(str(error)),)
    settings = dict.fromkeys(compared.settings.columns, "")
    columns = {name: compared.columns[name] for name in _COLUMNS if name in compared.columns}
    spans = compared.table.select(*columns)
    # The table of the whole, whose rows have units of their own.
    shown = {
        name: said for name, said in compared.summary_columns.items() if not name.endswith(_ENDS)
    }
    made = tabulated("whole", "What differs as a whole?", compared.summary, shown)
    rows = zip(compared.summary.iter_rows(named=True), made.texts, strict=True)
    texts = [
        [_cell(row, column.name, text) for column, text in zip(made.columns, cells, strict=True)]
        for row, cells in rows
    ]
    whole = replace(made, texts=texts)
    tables = [
        whole,
        tabulated("settings", "What was measured differently?", compared.settings, settings),
        *(_sums(compared) if compared.across else ()),
        *_device(compared),
        tabulated("differences", "Which spans differ?", spans, columns, places=places),
    ]
    plots = picture_of_differences(compared.table, places)
    notes = tuple(map(printable, compared.notes))
    told = [_headed(table, compared.names) for table in tables if table.height]
    return told, plots, notes


def _sums(compared: Comparison) -> Iterator[Table]:
    """Yield the times by layer type, and by primitive, of traces of several frameworks."""
    names = ("trace", "layer_type", "primitive", "calls_a", "calls_b", "ratio", "verdict")
    for name, question, rows, meanings in (
        (
            "by-layer-type-compared",
            "Which layer types differ?",
            compared.by_layer_type,
            compared.type_columns,
        ),
        (
            "by-primitive-compared",
            "Which primitives differ?",
            compared.by_primitive,
            compared.primitive_columns,
        ),
    ):
        columns = {
            column: said
            for column, said in meanings.items()
            if column in names or column.endswith("_ns")
        }
        yield tabulated(name, question, rows.select(*columns), columns)


def _device(compared: Comparison) -> Iterator[Table]:
    """Yield what devices did by kernel, by operator, and by operator and shapes."""
    names = ("trace", "count_a", "count_b", "ratio", "verdict")
    for by in compared.by_device["by"].unique(maintain_order=True).to_list():
        rows = compared.by_device.filter(pl.col("by") == by)
        columns = {
            column: said
            for column, said in compared.device_columns.items()
            if column in (*by.split(" and "), *names) or column.endswith("_ns")
        }
        name = f"device-time-by-{by.replace(' ', '-')}"
        what = by.replace("kernel", "kernels").replace("operator", "operators")
        question = f"Which {what} take devices longer or shorter?"
        yield tabulated(name, question, rows.select(*columns), columns)


def _headed(table: Table, names: Sequence[str]) -> Table:
    """Return a table whose headings have the names of the traces for the columns' `a` and `b`."""
    known = {"a": names[0], "b": names[1] if len(names) == 2 else "compared with it"}

    def heading(words: str) -> str:
        *what, side = words.split(" ")
        name = shorten(printable(known[side]), _LONGEST) if side in known else ""
        return ", ".join([*what, name]) if name else words

    columns = (replace(each, heading=heading(each.heading)) for each in table.columns)
    return replace(table, columns=tuple(columns), unknown=tuple(map(heading, table.unknown)))


def _cell(row: Mapping[str, Any], column: str, text: str) -> str:
    if column == "quantity":
        return heading_of(text)
    if f"{column}_low" not in row:
        return text
    return estimate_of(row["quantity"], *(row[f"{column}{end}"] for end in ("", *_ENDS)))
