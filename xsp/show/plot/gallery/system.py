"""Draws analyses of the system level: lanes of threads over time, and stacked bars of states."""

from __future__ import annotations

import polars as pl
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from xsp.show.plot.axis import scale_of
from xsp.show.plot.bar import Part
from xsp.show.plot.canvas import canvas, hover, legend_of, source_of
from xsp.show.plot.color import SERIES
from xsp.show.plot.document import Picture
from xsp.show.plot.lying import MOST_NAMED, by_name

_STATES = {"running": SERIES[2], "runnable": SERIES[1], "blocked": SERIES[5]}
_PARTS = tuple(Part(f"{state}_ns", state, color) for state, color in _STATES.items())
_LANE_PX, _AXES_PX = 26, 90


def _thread_timeline(table: pl.DataFrame) -> figure:
    lanes = table["thread"].unique(maintain_order=True).to_list()
    scale = scale_of("start_ns", table["end_ns"])
    drawn = canvas(
        scale.label("start_ns"), "thread", y_range=list(reversed(lanes)),
        height=_LANE_PX * len(lanes) + _AXES_PX,
    )  # fmt: skip
    shown = ("thread", "state", "lasts_ns", "cause")
    for state, color in _STATES.items():
        part = table.filter(pl.col("state") == state)
        if part.height:
            source: ColumnDataSource = source_of(
                part, shown, left=scale.of(part["start_ns"]), right=scale.of(part["end_ns"]),
                lane=part["thread"].to_list(),
            )  # fmt: skip
            marks = drawn.hbar(
                y="lane", left="left", right="right", height=0.7, source=source,
                fill_color=color.light, line_color=None, legend_label=state,
            )  # fmt: skip
            hover(drawn, part, shown, marks)
    legend_of(drawn)
    return drawn


def _thread_states(table: pl.DataFrame) -> figure:
    shown = ("thread", "threads", "running_ns", "runnable_ns", "blocked_ns", "preempted")
    return by_name(table[:MOST_NAMED], _PARTS, name="thread", unit="latency_ns", shown=shown)


def _off_cpu(table: pl.DataFrame) -> figure:
    shown = ("name", "kind", "latency_ns", "running_ns", "runnable_ns", "blocked_ns", "path")
    return by_name(table[:MOST_NAMED], _PARTS, name="name", unit="latency_ns", shown=shown)


off_cpu = Picture("off-cpu", _off_cpu)
thread_states = Picture("thread-states", _thread_states)
thread_timeline = Picture("thread-timeline", _thread_timeline)
