"""Gives a figure the colors of a light or of a dark page.

Figures are drawn in colors of light pages, all of which have a counterpart for dark ones. So a
figure changes its theme by an exchange of values, in Python (`themed`) or, on a page, by the
script of `theme.js` with the pairs of `PAIRS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from bokeh.model import Model
from bokeh.models import ColumnDataSource

from xsp.show.plot.color import KINDS, SERIES, Color

Theme = Literal["light", "dark"]

PAPER = Color("#ffffff", "#14171c")
INK = Color("#24272d", "#e3e6ea")
FAINT = Color("#686f7b", "#7a828f")
GRID = Color("#e6e9ee", "#2b3038")

# Each light color and its counterpart.
PAIRS: Mapping[str, str] = {
    color.light: color.dark for color in (*KINDS.values(), *SERIES, PAPER, INK, FAINT, GRID)
}
_BACK: Mapping[str, str] = {dark: light for light, dark in PAIRS.items()}

# Script that defines `xspTheme(document, theme, pairs)` for the documents of BokehJS.
SCRIPT = (Path(__file__).parent / "theme.js").read_text(encoding="utf-8")


def themed(figure: Model, theme: Theme) -> None:
    """Give a figure, or a layout of figures, the colors of a light or of a dark page.

    Args:
        figure: A figure that this room drew; it is changed.
        theme: `light` or `dark`.
    """
    pairs = PAIRS if theme == "dark" else _BACK
    if (theme == "dark") == ("dark" in figure.tags):
        return
    for model in figure.references():
        _exchange(model, pairs)
    figure.tags = [tag for tag in figure.tags if tag != "dark"] + ["dark"] * (theme == "dark")


def _exchange(model: Model, pairs: Mapping[str, str]) -> None:
    if isinstance(model, ColumnDataSource):
        if "color" in model.data:
            model.data["color"] = [pairs.get(color, color) for color in model.data["color"]]
        return
    for name, value in model.properties_with_values().items():
        if "color" in name and (other := _exchanged(value, pairs)) != value:
            setattr(model, name, other)


def _exchanged(value: Any, pairs: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return pairs.get(value, value)
    if isinstance(found := getattr(value, "value", None), str):
        return pairs.get(found, found)
    return value
