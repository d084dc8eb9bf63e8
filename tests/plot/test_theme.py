from __future__ import annotations

import polars as pl
from bokeh.document import Document
from drawn import source

from xsp.plot import KINDS, PAIRS, SERIES, themed
from xsp.plot.bar import by_position
from xsp.plot.theme import INK

TABLE = pl.DataFrame({"index": [1, 2], "type": ["a", "b"], "own_ns": [1.0, 2.0]})


def test_light_and_dark_colours_are_pairs_both_ways() -> None:
    assert len(set(PAIRS.values())) == len(PAIRS)
    assert {colour.light for colour in (*KINDS.values(), *SERIES)} <= PAIRS.keys()


def test_a_figure_changes_all_its_colours_and_back() -> None:
    drawn = by_position(TABLE, "own_ns", position="index", group="type", shown=())
    document = Document()
    document.add_root(drawn)
    themed(drawn, "dark")
    assert drawn.yaxis.axis_label_text_color == INK.dark
    assert source(drawn, "top")["colour"] == [SERIES[1].dark, SERIES[0].dark]
    themed(drawn, "dark")
    assert drawn.legend[0].label_text_color == INK.dark
    themed(drawn, "light")
    after = str(document.to_json())
    assert drawn.yaxis.axis_label_text_color == INK.light
    assert not any(dark in after for dark in PAIRS.values() if dark not in PAIRS)
