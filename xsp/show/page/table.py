"""Prepares for the page the table of each analysis that the traces can answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses import ALL, Analysis, ends_of, estimate_of, heading_of
from xsp.errors import AnalysisError
from xsp.show.page.place import Places, leading
from xsp.text import printable, shorten
from xsp.trace import Trace

SHOWN = 50  # rows on the page at first
_EMBEDDED = 1_000  # rows that the page has at all
_LONGEST = 200  # characters of a cell
_MAY_SAY_NOTHING = "phase"  # a column that is left out where all rows say the same
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
        return "path" if self.name.startswith("path") else "text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table on the page.

    Attributes:
        name: Name of the analysis, such as `layer-latency`.
        question: Its question, the heading of the table.
        columns: Its columns.
        texts: The cells, row by row, as people read them.
        values: The same to sort by: numbers, None for texts.
        spans: Row of `trace.spans` that each row is about, -1 where it is about none or several.
        height: How many rows the whole table has.
        unknown: Headings of the columns that are left out, for they have no value.
        same: Heading and text of the columns that are left out, for they say the same in every row.
        link: Position of the column whose cells lead to the spans.
        paper: Number of the analysis in the paper, None where it has none.
        area: Folder of the analysis: what it is about.
    """

    name: str
    question: str
    columns: tuple[Column, ...]
    texts: list[list[str]]
    values: list[list[float | None]]
    spans: list[int]
    height: int
    unknown: tuple[str, ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    link: int = 0
    paper: str | None = None
    area: str = ""

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
    """Yield the answer of each analysis that the traces can give, in the order of the gallery.

    Of several traces these are the analyses that take several.
    """
    for analysis in ALL:
        if len(traces) > 1 and not analysis.several:
            continue
        try:
            frame = analysis(*traces)
        except AnalysisError:  # the trace lacks what it needs; xsp analyze says what
            continue
        if frame.height:
            yield Answer(analysis, frame)


def table_of(answer: Answer, places: Places) -> Table:
    """Return an answer as the page shows it, its rows tied to the spans of a trace."""
    analysis = answer.analysis
    made = tabulated(
        analysis.name, analysis.question, answer.frame, analysis.columns, places=places
    )
    return replace(made, paper=analysis.paper, area=analysis.__module__.split(".")[3])


def tabulated(
    name: str,
    question: str,
    frame: pl.DataFrame,
    meanings: Mapping[str, str],
    *,
    places: Places | None = None,
) -> Table:
    """Return a frame as the page shows it, without the columns that have no value or say nothing.

    Args:
        name: Name of the table.
        question: Its heading.
        frame: Its rows.
        meanings: What each of its columns means.
        places: Where the trace's spans are, if rows are to be tied to spans.
    """
    kept = most_important(frame, _EMBEDDED)
    tied = places.rows_of(kept) if places else [-1] * kept.height
    ends = ends_of(kept.columns)
    told = [name for name in meanings if not any(name in pair for pair in ends.values())]
    same = [name for name in told if name == _MAY_SAY_NOTHING and _is_constant(frame[name])]
    known = [name for name in told if frame[name].count()]
    shown = [name for name in known if name not in same]
    columns = tuple(
        Column(
            name,
            heading_of(name),
            _meaning(meanings[name], name in ends),
            kept[name].dtype.is_numeric(),
        )
        for name in shown
    )
    cells = [texts_of(name, kept) for name in shown]
    return Table(
        name=name,
        question=question,
        columns=columns,
        texts=[list(row) for row in zip(*cells, strict=True)],
        values=[_values(kept[column]) for column in shown],
        spans=tied,
        height=frame.height,
        unknown=tuple(heading_of(name) for name in told if name not in known),
        same=tuple((heading_of(name), texts_of(name, kept)[0]) for name in same),
        link=shown.index(link) if (link := leading(kept)) in shown and places else 0,
    )


def _is_constant(column: pl.Series) -> bool:
    return column.len() > 1 and not column.null_count() and column.n_unique() == 1


def texts_of(name: str, frame: pl.DataFrame) -> list[str]:
    """Return the cells of a column, with the reach of their intervals where these are known."""
    columns = (name, *ends_of(frame.columns).get(name, ()))
    cells = list(zip(*(frame[column].to_list() for column in columns), strict=True))
    if frame[name].dtype.is_nested():
        return [_text(name, cell) for cell in cells]
    known = {cell: _text(name, cell) for cell in set(cells)}
    return [known[cell] for cell in cells]


def _text(name: str, cell: tuple[Any, ...]) -> str:
    return shorten(printable(estimate_of(name, *cell)), _LONGEST)


def _meaning(said: str, has_interval: bool) -> str:
    return f"{said} With the reach of its 95 % interval." if has_interval else said


def most_important(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the rows that weigh most, in the frame's order."""
    if frame.height <= most:
        return frame
    weight = next((name for name in _WEIGHTS if name in frame.columns), None)
    if weight is None:
        return frame.head(most)
    heaviest = frame[weight].arg_sort(descending=True, nulls_last=True)[:most]
    return frame[np.sort(heaviest.to_numpy())]


def _values(column: pl.Series) -> list[float | None]:
    """List the numbers that a column is sorted by; empty if its texts sort themselves."""
    if not column.dtype.is_numeric():
        return []
    numbers = column.cast(pl.Float64).to_list()
    return [value if value is not None and np.isfinite(value) else None for value in numbers]
