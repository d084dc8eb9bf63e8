"""Tables: traces in, the table of each analysis that these can answer out, ready for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.analyses import ALL, Analysis, heading_of, text_of
from xsp.errors import AnalysisError
from xsp.quantity import printable, shorten
from xsp.trace import Trace

SHOWN = 50  # rows on the page at first
_EMBEDDED = 1_000  # rows that the page has at all
_LONGEST = 200  # characters of a cell
# By the first of these that a table has, its most important rows are known.
_WEIGHTS = ("own_ns", "latency_ns", "total_ns", "device_ns", "share_pct", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table on the page."""

    name: str
    heading: str
    meaning: str
    numeric: bool

    @property
    def style(self) -> str:
        """The column's class in the page's style sheet."""
        if self.numeric:
            return "number"
        return "path" if self.name == "path" else "text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table on the page.

    Attributes:
        name: Name of the analysis, such as `layer-latency`.
        question: Its question, the heading of the table.
        paper: Number of the analysis in the paper, None where it has none.
        area: Folder of the analysis: what it is about.
        columns: Its columns.
        texts: The cells, row by row, as people read them.
        values: The same to sort by: numbers, None for texts.
        spans: Row of `trace.spans` that each row is about, -1 where it is about none or several.
        height: How many rows the whole table has.
    """

    name: str
    question: str
    paper: str | None
    area: str
    columns: tuple[Column, ...]
    texts: list[list[str]]
    values: list[list[float | None]]
    spans: list[int]
    height: int

    @property
    def shown(self) -> list[list[str]]:
        """The rows that are on the page before anybody asks for more."""
        return self.texts[:SHOWN]

    @property
    def payload(self) -> dict[str, Any]:
        """What the page's script needs: cells, values and spans."""
        return {"texts": self.texts, "values": self.values, "spans": self.spans}


@dataclass(frozen=True, slots=True)
class Answer:
    """An analysis and the frame that it returned."""

    analysis: Analysis[Any]
    frame: pl.DataFrame


def answers(traces: Sequence[Trace]) -> Iterator[Answer]:
    """Yield the answer of each analysis that the traces can give, in the order of the gallery."""
    for analysis in ALL:
        if analysis.several != (len(traces) > 1) and not (analysis.several and len(traces) == 1):
            continue
        try:
            frame = analysis(*traces)
        except AnalysisError:  # the trace lacks what it needs; xsp analyze says what
            continue
        if frame.height:
            yield Answer(analysis, frame)


def table_of(answer: Answer, paths: pl.DataFrame) -> Table:
    """Return an answer as the page shows it.

    Args:
        answer: An analysis and its frame.
        paths: Columns `path` and `row` of the trace's spans.
    """
    analysis, frame = answer.analysis, answer.frame
    kept = _most_important(frame)
    columns = tuple(
        Column(name, heading_of(name), meaning, kept[name].dtype.is_numeric())
        for name, meaning in analysis.columns.items()
    )
    cells = [_texts(name, kept[name]) for name in kept.columns]
    return Table(
        name=analysis.name,
        question=analysis.question,
        paper=analysis.paper,
        area=_area(analysis),
        columns=columns,
        texts=[list(row) for row in zip(*cells, strict=True)],
        values=[_values(kept[column.name]) for column in columns],
        spans=span_rows(kept, paths),
        height=frame.height,
    )


def span_rows(frame: pl.DataFrame, paths: pl.DataFrame) -> list[int]:
    """Return the row of `trace.spans` that each row of a frame names by its path, else -1."""
    if "path" not in frame.columns or frame["path"].dtype != pl.String:
        return [-1] * frame.height
    joined = frame.select("path").join(paths, on="path", how="left", maintain_order="left")
    return joined["row"].fill_null(-1).to_list()


def paths_of(trace: Trace) -> pl.DataFrame:
    """Return the path and the row of each of a trace's spans."""
    spans = trace.spans.select("path", row=pl.int_range(pl.len(), dtype=pl.Int64))
    return spans.unique("path", keep="first")


def _most_important(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that weigh most, in the frame's order."""
    if frame.height <= _EMBEDDED:
        return frame
    weight = next((name for name in _WEIGHTS if name in frame.columns), None)
    if weight is None:
        return frame.head(_EMBEDDED)
    heaviest = frame[weight].arg_sort(descending=True, nulls_last=True)[:_EMBEDDED]
    return frame[np.sort(heaviest.to_numpy())]


def _texts(name: str, column: pl.Series) -> list[str]:
    return [shorten(printable(text_of(name, value)), _LONGEST) for value in column.to_list()]


def _values(column: pl.Series) -> list[float | None]:
    """Return what to sort by: the numbers, or nothing where texts sort themselves."""
    if not column.dtype.is_numeric():
        return []
    numbers = column.cast(pl.Float64).to_list()
    return [value if value is not None and np.isfinite(value) else None for value in numbers]


def _area(analysis: Analysis[Any]) -> str:
    """Return the folder of an analysis: `layer` of xsp.analyses.layer.layer_latency."""
    return analysis.__module__.split(".")[2]
