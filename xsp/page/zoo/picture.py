"""Pictures of a zoo: the frame of results in, plots as the page embeds them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.page.picture import embedded


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture on the page.

    Attributes:
        name: What the script knows it by.
        question: Its heading.
        note: How to read it.
    """

    name: str
    question: str
    note: str


_NOTES = {
    "accuracy": "A bubble is a model. Up and to the left is better.",
    "roofline": "Left of a roof's ridge memory limits a model, right of it arithmetic does.",
    "throughput": "A line that has become flat has its best batch at the left end of that part.",
    "layer-types": "The darker, the more of the latency; shares from a tenth on are written out.",
    "primitives": "The darker, the more of the latency; shares from a tenth on are written out.",
    "thirds": "The first, middle and last third of the layers, in the order of execution.",
}


def pictures_of_zoo(results: pl.DataFrame) -> tuple[list[Shown], dict[str, Any]]:
    """Return the pictures for which the results have numbers, and their plots by name."""
    from xsp import plot  # noqa: PLC0415  # bokeh is an extra, and slow to import

    drawn = {
        "roofline": plot.zoo_roofline(results),
        "accuracy": plot.zoo_accuracy(results),
        "throughput": plot.zoo_throughput(results),
        "thirds": plot.zoo_thirds(results),
        "layer-types": plot.zoo_layer_types(results),
        "primitives": plot.zoo_primitives(results),
    }
    known = {name: plot for name, plot in drawn.items() if plot.has_marks}
    shown = [Shown(name, picture.title, _NOTES[name]) for name, picture in known.items()]
    return shown, {name: embedded(picture.figure) for name, picture in known.items()}
