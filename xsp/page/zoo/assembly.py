"""Assembly of a page on a zoo: the frame of results in, one HTML page out."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import polars as pl

from xsp.machine import replacing
from xsp.page.script import ZOO_FILES, bundle, check_installed, library
from xsp.page.zoo.grid import grid_of
from xsp.page.zoo.heading import heading_of_zoo
from xsp.page.zoo.picture import pictures_of_zoo
from xsp.plot import KINDS, SERIES
from xsp.zoo import TABLES, entry_rows

# Rows of tables: a page of 100,000 measurements, of however many models, has at most 15 MB.
_MOST_MODELS, _MOST_ROWS, _FEW_ROWS = 100_000, 100_000, 25_000
_GRIDS = ("throughput", "batch", "variants", "thirds")


def zoo_report(results: pl.DataFrame, path: str | PathLike[str], *, name: str) -> Path:
    """Write a page on the results of a zoo: one HTML file that needs no network.

    Args:
        results: The frame of results, of any number of rows.
        path: Where to write the page; an older file of that name is replaced.
        name: What to call the zoo.

    Returns:
        The path.

    Raises:
        ExportError: bokeh or jinja2 is not installed, which `xsp[report]` brings; or the file
            could not be written, and no part of it is left behind.
    """
    text = page_of_zoo(results, name)
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def page_of_zoo(results: pl.DataFrame, name: str) -> str:
    """Return the text of the page on some results.

    Raises:
        ExportError: bokeh or jinja2 is not installed.
    """
    check_installed()
    from xsp.page import html  # noqa: PLC0415
    from xsp.plot import PAIRS, SCRIPT  # noqa: PLC0415

    results = entry_rows(results)
    heading = heading_of_zoo(results, name)
    models = grid_of(TABLES["models"], results, _MOST_MODELS)
    most = _MOST_ROWS if models.height <= _FEW_ROWS else _FEW_ROWS
    others = [grid_of(TABLES[one], results, most) for one in _GRIDS]
    grids = [models, *(grid for grid in others if grid.says_more)] if results.height else []
    shown, plots = pictures_of_zoo(results)
    return html.page(
        [*library(plots), SCRIPT, bundle(ZOO_FILES)],
        "zoo.html",
        title=heading.name,
        heading=heading,
        grids=grids,
        pictures=shown,
        colours=KINDS,
        series=SERIES,
        data={"zoo": {"plots": plots, "grids": {g.name: g.packed for g in grids}}, "pairs": PAIRS},
    )
