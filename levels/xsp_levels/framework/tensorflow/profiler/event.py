"""An XSpace of TensorFlow's profiler in; its host's events, on the measurement's clock, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from xsp.errors import ProviderError
from xsp.xplane import read_space
from xsp_levels.native.alignment import PREFIX, AnchorEvents, AnchorReading, align

_HOST = "/host:CPU"
_INPUT = "tf_data_"  # names of the threads of tf.data, which load data beside the model

# What events say of themselves, besides name and times.
_STATS = {
    "eager_op": pl.String,  # type of an operator that Python asked for, or name of a function
    "is_func": pl.Int64,
    "id": pl.Int64,  # number of the graph run
    "step_id": pl.Int64,  # the same, of an operator that does not wait for its end
    "kernel_type": pl.String,
    "name": pl.String,  # of the node, which becomes the column `stat.name`
    "_p": pl.Int64,  # what ties two events: here of the event that comes first
    "_c": pl.Int64,  # and here of the one that follows
    "tf_function_call": pl.String,
    "tracing_count": pl.Int64,
    "hlo_op": pl.String,
    "hlo_module": pl.String,
    "program_id": pl.Int64,
    "requested_bytes": pl.Int64,
    "region_type": pl.String,
    "data_type": pl.Int64,
    "shape": pl.String,
}

_LOST = "TensorFlow's operators cannot be placed in time: its profiler recorded none of xsp's marks"


def read_events(space: bytes, readings: Sequence[AnchorReading]) -> pl.DataFrame:
    """Return the events of the host's threads, without those of tf.data.

    Returns:
        `name`, `start_ns` and `end_ns` on the measurement's clock, `thread` as rows bear it,
        `line`, a column for each stat, and `is_python`: whether Python runs on the thread. No
        columns where there are no events.

    Raises:
        ProviderError: There are events, but no anchors among them.
    """
    plane = read_space(space).plane(_HOST)
    if plane is None:
        return pl.DataFrame()
    found = plane.events(_STATS).frame
    is_anchor = found["name"].str.starts_with(PREFIX)
    seen = _anchors(found.filter(is_anchor))
    events = found.filter(~is_anchor & ~pl.col("line_name").str.starts_with(_INPUT))
    if not events.height:
        return pl.DataFrame()
    alignment = align(readings, seen)
    if alignment is None:
        raise ProviderError(_LOST)
    known = seen.threads()
    return events.with_columns(
        start_ns=pl.Series(alignment.convert(events["start_ns"].to_numpy())),
        end_ns=pl.Series(alignment.convert(events["end_ns"].to_numpy())),
        thread=_threads(events["line_id"], known),
        is_python=events["line_id"].is_in(list(known)),
    )


def _anchors(events: pl.DataFrame) -> AnchorEvents:
    """Return anchors by time."""
    events = events.sort("start_ns")
    named = events["name"].str.strip_prefix(PREFIX).cast(pl.Int64)
    return AnchorEvents(
        thread=named.to_numpy(),
        number=events["line_id"].to_numpy(),
        start=events["start_ns"].to_numpy(),
        end=events["end_ns"].to_numpy(),
    )


def _threads(lines: pl.Series, known: Mapping[int, int]) -> pl.Series:
    """Return the numbers that rows bear: the vendor's own, negated, where Python has none."""
    numbers = {line: known.get(line, -abs(line)) for line in lines.unique().to_list()}
    return lines.replace_strict(numbers, return_dtype=pl.Int64)
