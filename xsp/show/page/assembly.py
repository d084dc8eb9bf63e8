"""Assembles one HTML page about one or more traces, which needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from xsp.answer.comparison import names_of
from xsp.errors import AnalysisError
from xsp.machine import replacing
from xsp.show.page.comparison import differences_of
from xsp.show.page.overview import Finding, Limit, Overview, findings_of, limits_of, overview_of
from xsp.show.page.packing import pack
from xsp.show.page.picture import pictures_of
from xsp.show.page.place import Places
from xsp.show.page.script import bundle, check_installed, library
from xsp.show.page.spans import packed_attributes, packed_spans
from xsp.show.page.table import Table, answers, table_of
from xsp.show.plot import KINDS, SERIES
from xsp.text import printable
from xsp.trace import Trace

# Analyses that the first screen is made from.
_LEVELS, _VERDICT, _ADVICE = "level-latency", "verdict", "advice"
_AREAS = {
    "model": "Model",
    "layer": "Layers",
    "kernel": "Kernels and library calls",
    "work": "Work and rooflines",
    "structure": "Structure",
    "device": "Devices",
    "memory": "Memory",
    "monitor": "Energy and utilization",
    "advice": "Advice",
}


@dataclass(frozen=True, slots=True)
class Chapter:
    """The part of the page about one trace.

    Attributes:
        number: Position among the traces, from 0.
        overview: What its first screen says.
        limits: What may limit the latency, first what does most.
        verdict: The same with all that is known of it, as a table.
        advice: What to look at next.
        areas: The other tables, by what they are about.
        payload: What the page's script needs of the trace, as JSON.
    """

    number: int
    overview: Overview
    limits: tuple[Limit, ...]
    verdict: Table | None
    advice: tuple[Finding, ...]
    areas: Mapping[str, list[Table]]
    payload: Mapping[str, Any]


def report(
    traces: Trace | Sequence[Trace],
    path: str | PathLike[str],
    *,
    names: Sequence[str] | None = None,
) -> Path:
    """Write a page on one or more traces: one HTML file that needs no network.

    The page has what was measured and how exactly, an icicle and a timeline of the spans, and a
    table for each analysis that the traces can answer.

    Args:
        traces: A trace, or several to look at side by side.
        path: Where to write the page; an older file of that name is replaced.
        names: What to call several traces, as in `compare`; None: the traces' own names, numbered
            where they are equal.

    Returns:
        The path.

    Raises:
        ExportError: bokeh or jinja2 is not installed, which `xsp[report]` brings; or the file
            could not be written, and no part of it is left behind.
        AnalysisError: A trace has no spans.
        ValueError: There is no trace, or there are not as many names as traces.
    """
    several = [traces] if isinstance(traces, Trace) else list(traces)
    if not several:
        raise ValueError("a report needs a trace, and there is none: report(trace, path)")
    for trace in several:
        if not len(trace):
            raise AnalysisError(f"the trace {trace.name} has no spans: there is nothing to report")
    text = page_of(several, names)
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def page_of(traces: Sequence[Trace], names: Sequence[str] | None = None) -> str:
    """Return the text of the page on some traces, that are called by names if there are several.

    Raises:
        ExportError: bokeh or jinja2 is not installed.
    """
    check_installed()
    from xsp.show.page import figure, html  # noqa: PLC0415
    from xsp.show.plot import PAIRS, SCRIPT  # noqa: PLC0415

    chapters = [_chapter(number, trace) for number, trace in enumerate(traces)]
    called = names_of(traces, names if len(traces) > 1 else None)
    shown_names = tuple(map(printable, called))
    differences = differences_of(traces, called) if len(traces) > 1 else None
    shown = {f"trace-{chapter.number}": chapter.payload for chapter in chapters}
    if differences:
        shown["comparison-data"] = _payload(differences.tables, differences.plots)
    shown["pairs"] = PAIRS
    return html.page(
        [*library(shown), SCRIPT, bundle()],
        "page.html",
        title=", ".join(shown_names),
        names=shown_names,
        chapters=chapters,
        differences=differences,
        colors=KINDS,
        series=SERIES,
        data={"views": figure.view_items(), **shown},
    )


def _chapter(number: int, trace: Trace) -> Chapter:
    answered = list(answers([trace]))
    places = Places(trace)
    tables = [table_of(answer, places) for answer in answered]
    frames = {answer.analysis.name: answer.frame for answer in answered}
    spans = {"spans": packed_spans(trace), "attributes": packed_attributes(trace)}
    return Chapter(
        number=number,
        overview=overview_of(trace, frames[_LEVELS]),
        limits=limits_of(frames[_VERDICT]) if _VERDICT in frames else (),
        verdict=next((table for table in tables if table.name == _VERDICT), None),
        advice=findings_of(frames[_ADVICE]) if _ADVICE in frames else (),
        areas=_by_area([table for table in tables if table.name not in (_VERDICT, _ADVICE)]),
        payload={**spans, **_payload(tables, pictures_of(answered, places))},
    )


def _payload(tables: Sequence[Table], plots: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables and plots as the page's script reads them."""
    packed = pack({"tables": {table.name: table.payload for table in tables}}, {})
    return {"tables": packed, "plots": plots}


def _by_area(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """Return the tables by what they are about, in the order in which they came."""
    areas: dict[str, list[Table]] = {}
    for table in tables:
        areas.setdefault(_AREAS.get(table.area, table.area.capitalize()), []).append(table)
    return areas
