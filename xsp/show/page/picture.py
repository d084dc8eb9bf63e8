"""Draws the tables of analyses as plots that BokehJS embeds.

Each mark of a plot that stands for a span knows its row in `trace.spans`, so that the page's
script can tie a plot to the other views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from xsp.show.page.place import Places
from xsp.show.page.table import Answer, most_important

_MOST_MARKS = 2_000


def pictures_of(answers: Sequence[Answer], places: Places) -> dict[str, dict[str, Any]]:
    """Return the plot of each answer that has one, by the name of the analysis.

    Args:
        answers: Analyses and their frames.
        places: Where the trace's spans are.
    """
    from xsp.show.plot import picture_of  # noqa: PLC0415  # bokeh is an extra, and slow to import

    found = {}
    for answer in answers:
        picture = picture_of(answer.analysis)
        if picture is not None:
            drawn = picture.of(most_important(answer.frame, _MOST_MARKS)).figure
            found[answer.analysis.name] = _item(drawn, places)
    return found


def picture_of_differences(frame: pl.DataFrame, places: Places) -> dict[str, Any]:
    """Return the plot of what differs between traces, if there is one, by the table's name.

    Args:
        frame: The table of `xsp.compare`.
        places: Where the spans of the first trace are.
    """
    from xsp.show.plot import comparison  # noqa: PLC0415

    if not frame.height:
        return {}
    return {"differences": _item(comparison(frame).figure, places)}


def _item(drawn: Any, places: Places) -> Any:
    """Return a plot as BokehJS embeds it, its marks tied to spans."""
    # The sources whose marks have a path the rows of these spans.
    models = drawn.references()
    from bokeh.models import ColumnDataSource  # noqa: PLC0415

    for source in models:
        if isinstance(source, ColumnDataSource) and "path" in source.data:
            named = pl.DataFrame({"path": pl.Series(list(source.data["path"]), dtype=pl.String)})
            source.data["span"] = places.rows_of(named)
    return embedded(drawn)


def embedded(drawn: Any) -> Any:
    """Return a plot as BokehJS embeds it, as `bokeh.embed.json_item` does.

    That makes a second document of the plot, and needs half as long again.
    """
    from bokeh import __version__  # noqa: PLC0415
    from bokeh.document import Document  # noqa: PLC0415

    document = Document(title="")
    document.add_root(drawn)
    doc = document.to_json(deferred=False)
    return {"target_id": None, "root_id": drawn.id, "doc": doc, "version": __version__}
