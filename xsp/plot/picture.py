"""Pictures: an analysis and how its table is drawn in, the plot of a trace out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
from bokeh.models import LayoutDOM

from xsp import analyses
from xsp.plot.document import Plot
from xsp.trace import Trace

# From a table and the trace that it is of, where that is at hand, to a figure or several.
Draw = Callable[[pl.DataFrame, Trace | None], LayoutDOM]


class Picture:
    """The picture of an analysis: called with what the analysis takes, it returns the plot.

    Attributes:
        name: Name of the analysis, as on the command line.
        question: The question that table and picture answer.
    """

    def __init__(self, name: str, draw: Draw) -> None:
        self.name = name
        self._draw = draw

    @property
    def question(self) -> str:
        """The question that table and picture answer."""
        return self._analysis().question

    def __call__(self, *traces: Trace, **settings: Any) -> Plot:
        """Return the plot of a trace, or of several, as the analysis takes them.

        Raises:
            AnalysisError: A trace lacks what the analysis needs; the message says what to do.
        """
        table = self._analysis()(*traces, **settings)
        return self.of(table, traces[0] if traces else None)

    def of(self, table: pl.DataFrame, trace: Trace | None = None) -> Plot:
        """Return the plot of a table that the analysis made.

        Args:
            table: The table, or some of its rows.
            trace: The trace that it is of, which rooflines ask for the roof of its device.
        """
        return Plot(self._draw(table, trace), self.question)

    def _analysis(self) -> analyses.Analysis[Any]:
        return next(one for one in analyses.ALL if one.name == self.name)

    def __repr__(self) -> str:
        return f"<picture of {self.name}>"
