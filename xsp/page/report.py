"""Report: one or more traces in, one HTML page that needs nothing else out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from xsp.atomic_file import replacing
from xsp.errors import ExportError
from xsp.page.overview import Overview, overview_of
from xsp.page.packing import pack
from xsp.page.spans import packed_attributes, packed_spans
from xsp.page.table import Table, answers, paths_of, table_of
from xsp.plot import KINDS, SERIES
from xsp.trace import Trace

_INSTALL = "a report needs bokeh and jinja2: pip install 'xsp[report]'"
# Analyses whose tables stand on the first screen.
_FIRST = ("verdict", "advice")
_AREAS = {
    "model": "Model",
    "layer": "Layers",
    "kernel": "Kernels and library calls",
    "work": "Work and rooflines",
    "structure": "Structure",
    "device": "Devices",
    "memory": "Memory",
    "advice": "Advice",
}


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the page shows of one trace."""

    number: int
    overview: Overview
    first: Mapping[str, Table]
    areas: Mapping[str, list[Table]]
    spans: str
    attributes: str
    tables: str
    plots: Mapping[str, Any]


def report(traces: Trace | Sequence[Trace], path: str | PathLike[str]) -> Path:
    """Write a page on one or more traces: one HTML file that needs no network.

    The page has what was measured and how exactly, an icicle and a timeline of the spans, and a
    table for each analysis that the traces can answer.

    Args:
        traces: A trace, or several to look at side by side.
        path: Where to write the page; an older file of that name is replaced.

    Returns:
        The path.

    Raises:
        ExportError: bokeh or jinja2 is not installed, which `xsp[report]` brings; or the file
            could not be written, and no part of it is left behind.
        ValueError: There is no trace.
    """
    several = [traces] if isinstance(traces, Trace) else list(traces)
    if not several:
        raise ValueError("a report needs a trace, and there is none: report(trace, path)")
    text = page_of(several)
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def page_of(traces: Sequence[Trace]) -> str:
    """Return the text of the page on some traces.

    Raises:
        ExportError: bokeh or jinja2 is not installed.
    """
    try:
        import bokeh.resources  # noqa: PLC0415
        import jinja2  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ExportError(f"{_INSTALL} ({error})") from error
    from xsp.page import figure, html, script  # noqa: PLC0415

    chapters = [_chapter(number, trace) for number, trace in enumerate(traces)]
    library = bokeh.resources.Resources(mode="inline", components=["bokeh"]).js_raw
    return html.page(
        [*library, script.bundle()],
        title=_title(chapters),
        chapters=chapters,
        colours=KINDS,
        series=SERIES,
        views=figure.view_items(),
    )


def _chapter(number: int, trace: Trace) -> Chapter:
    paths = paths_of(trace)
    tables = [table_of(answer, paths) for answer in answers([trace])]
    return Chapter(
        number=number,
        overview=overview_of(trace),
        first={table.name: table for table in tables if table.name in _FIRST},
        areas=_by_area([table for table in tables if table.name not in _FIRST]),
        spans=packed_spans(trace),
        attributes=packed_attributes(trace),
        tables=pack({"tables": {table.name: table.payload for table in tables}}, {}),
        plots={},
    )


def _by_area(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """Return the tables by what they are about, in the order in which they came."""
    areas: dict[str, list[Table]] = {}
    for table in tables:
        areas.setdefault(_AREAS.get(table.area, table.area.capitalize()), []).append(table)
    return areas


def _title(chapters: Sequence[Chapter]) -> str:
    return ", ".join(dict.fromkeys(chapter.overview.name for chapter in chapters))
