"""Thirds: the frame of results in, in how many models which third of the layers is heaviest out."""

from __future__ import annotations

import polars as pl

from xsp.plot.bar import Part
from xsp.plot.canvas import nothing
from xsp.plot.colour import SERIES
from xsp.plot.document import Plot
from xsp.plot.lying import by_name
from xsp.zoo import THIRDS, thirds_by_quantity


def zoo_thirds(results: pl.DataFrame) -> Plot:
    """Return in how many models the first, middle and last third of the layers need most.

    Args:
        results: The frame of a zoo's results.
    """
    counts = thirds_by_quantity(results)
    names = [f"{third}_models" for third in THIRDS]
    known = counts.filter(pl.sum_horizontal(names) > 0)
    parts = [
        Part(name, third, SERIES[at])
        for at, (name, third) in enumerate(zip(names, THIRDS, strict=True))
    ]
    shown = ("quantity", *names, "unknown_models")
    drawn = by_name(known, parts, name="quantity", unit="models", shown=shown)
    return Plot(drawn if known.height else nothing(), thirds_by_quantity.question)
