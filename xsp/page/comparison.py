"""Comparison: several traces in, what the page says of how they differ out."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from xsp.errors import AnalysisError
from xsp.page.place import Places
from xsp.page.table import Answer, Table, answers, table_of, tabulated
from xsp.quantity import printable
from xsp.trace import Trace


@dataclass(frozen=True, slots=True)
class Differences:
    """What the page says of several traces beside each other.

    Attributes:
        tables: What differs, and the tables of the analyses that take several traces.
        answers: What the latter are of.
        notes: What to know before trusting a difference.
    """

    tables: tuple[Table, ...]
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]


def differences_of(traces: Sequence[Trace]) -> Differences:
    """Return how traces differ from the first of them."""
    several = tuple(answers(traces))
    places = Places(traces[0])
    tables = [table_of(answer, places) for answer in several]
    compared, notes = _compared(traces, places)
    return Differences((*compared, *tables), several, notes)


def _compared(traces: Sequence[Trace], places: Places) -> tuple[list[Table], tuple[str, ...]]:
    if find_spec("xsp.comparison") is None:  # this version cannot compare
        return [], ()
    try:
        compared = importlib.import_module("xsp.comparison").compare(*traces)
    except AnalysisError as error:
        return [], (printable(str(error)),)
    tables = [
        tabulated("whole", "What differs as a whole?", compared.summary, compared.summary_columns),
        tabulated(
            "settings",
            "What was measured differently?",
            compared.settings,
            dict.fromkeys(compared.settings.columns, ""),
        ),
        tabulated(
            "differences", "Which spans differ?", compared.table, compared.columns, places=places
        ),
    ]
    return [table for table in tables if table.height], tuple(map(printable, compared.notes))
