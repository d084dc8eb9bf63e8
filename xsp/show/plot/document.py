"""Makes a figure a page of its own for a notebook or a file, which loads nothing.

A `Plot` is such a page. A `Picture` makes one of a trace: an analysis, and how its table is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl
from bokeh.embed import file_html
from bokeh.models import LayoutDOM
from bokeh.resources import INLINE
from markupsafe import Markup

from xsp.answer import analyses
from xsp.machine import replacing
from xsp.show.plot.canvas import nothing
from xsp.show.plot.theme import INK, PAPER, Theme, themed
from xsp.trace import Trace

Draw = Callable[[pl.DataFrame], LayoutDOM]

_TEMPLATE = """{%% block inner_head %%}{{ super() }}
<style>
html, body { margin: 0; background: %s; color: %s; }
h1 { font: 600 15px system-ui, sans-serif; margin: 8px 12px 4px; }
</style>{%% endblock %%}
{%% block contents %%}<h1>{{ title | e }}</h1>{{ super() }}{%% endblock %%}"""
_FRAME = Markup(
    '<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts allow-downloads" '
    'style="width:100%;height:{height}px;border:0"></iframe>'
)
_HEADING_PX = 48


class Plot:
    """A picture of a table: it shows itself in notebooks, and can be saved.

    Attributes:
        figure: Bokeh's figure, or a layout of several, for whoever wants to change it.
        title: The question that the picture answers.
    """

    def __init__(self, figure: LayoutDOM, title: str) -> None:
        self.figure = figure
        self.title = title

    @property
    def height_px(self) -> int:
        """Height of the plot's page in pixels; its width is that of the window."""
        children = getattr(self.figure, "children", None) or [self.figure]
        return sum(child.height for child in children) + _HEADING_PX

    @property
    def has_marks(self) -> bool:
        """Whether the plot shows anything but that there is nothing to draw."""
        return "nothing" not in self.figure.tags

    def themed(self, theme: Theme) -> Plot:
        """Give the plot the colors of a light or a dark page, and return the plot."""
        themed(self.figure, theme)
        return self

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the plot as one HTML page that needs no network, and return its path.

        Args:
            path: File, which must end in `.html`.

        Raises:
            ValueError: The path ends otherwise.
            OSError: The file could not be written.
        """
        to = Path(path)
        if to.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"a plot is saved as HTML, and {to} does not end in .html")
        with replacing(to) as file:
            file.write(self.html().encode("utf-8", "replace"))
        return to

    def html(self) -> str:
        """Return the plot as one HTML page that needs no network."""
        theme = "dark" if "dark" in self.figure.tags else "light"
        template = _TEMPLATE % (getattr(PAPER, theme), getattr(INK, theme))
        return file_html(self.figure, INLINE, title=self.title, template=template)

    def _repr_html_(self) -> str:
        # A frame, for the page's scripts and styles must not meet those of the notebook.
        return str(_FRAME.format(title=self.title, page=self.html(), height=self.height_px))

    def __repr__(self) -> str:
        return f"<plot: {self.title} Show it in a notebook, or .save('plot.html')>"


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
        return self.of(self._analysis()(*traces, **settings))

    def of(self, table: pl.DataFrame) -> Plot:
        """Return the plot of a table that the analysis made.

        Args:
            table: The table, or some of its rows.
        """
        drawn = self._draw(table) if table.height else nothing()
        return Plot(drawn, self.question)

    def _analysis(self) -> analyses.Analysis[Any]:
        return next(one for one in analyses.ALL if one.name == self.name)

    def __repr__(self) -> str:
        return f"<picture of {self.name}>"
