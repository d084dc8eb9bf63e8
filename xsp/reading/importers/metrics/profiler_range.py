"""Gives counters of profiler ranges in a file of Kineto to the launches of its recordings.

PyTorch's profiler can have CUPTI count events of the hardware, kernel by kernel. CUPTI records no
times of kernels then: the ranges share out the time of the whole profile evenly, so that their
times say nothing. But there is one range for each launch, in the order of launches, and it tells
the kernel's name. Hence counters are attributes of launches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.reading.importers.metrics.joining import attached
from xsp.reading.importers.ncu import (
    METRIC_SCHEMA,
    NO_TENSOR_CORES,
    attributes,
    counts_tensor_cores,
    named,
)
from xsp.reading.importers.reading import content
from xsp.reading.importers.recording import Recording
from xsp.reading.importers.source import Source
from xsp.text import counted, full_name
from xsp.warning import TraceWarning

CATEGORY = "cuda_profiler_range"

_LAUNCHES = r"^(cuda|cu|hip)(ModuleLaunch|Launch|LaunchCooperative|ExtLaunch)Kernel"
_MISSING = "__missing__"  # what Kineto calls a kernel whose name it does not know
# Units of counters, by words of their names; CUPTI scales none.
_UNITS = (("pct", "%"), ("time_duration", "ns"), ("bytes", "byte"))
_US = 1_000  # ns


class _Range(NamedTuple):
    name: str
    start: float  # µs
    end: float
    counters: dict[str, Any]


def with_profiler_ranges(
    recordings: Sequence[Recording], source: Source, count: int
) -> tuple[Recording, ...]:
    """Return the recordings of a file with the counters of its profiler ranges.

    The counters are of the process with as many launches as there are ranges.

    Args:
        recordings: One per process, from that file.
        source: The file.
        count: How many ranges it has; those among them that are damaged are left out.
    """
    ranges = sorted(_ranges(source), key=lambda each: each.start)
    for number, recording in enumerate(recordings):
        launches = _launches(recording, ranges) if len(ranges) == count else []
        if len(launches) == count:
            found = _with_counters(recording, launches, ranges)
            return (*recordings[:number], found, *recordings[number + 1 :])
    warning = TraceWarning(
        "unmatched-metrics",
        f"counters of {counted(count, 'kernel')} are left out, because no process launched as many "
        "kernels, or a counter cannot be read",
    )
    first, *others = recordings
    return (replace(first, warnings=(*first.warnings, warning)), *others)


def _ranges(source: Source) -> Iterator[_Range]:
    """Yield the ranges of a file, those of a damaged one too."""
    text = content(source)[0].decode("utf-8", errors="replace")
    decoder = json.JSONDecoder()
    for found in re.finditer(f'"{CATEGORY}"', text):
        try:
            event, _ = decoder.raw_decode(text, text.rfind("{", 0, found.start()))
            start = float(event["ts"])
            counters = {str(name): value for name, value in event["args"].items()}
            yield _Range(str(event["name"]), start, start + float(event["dur"]), counters)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # cut short, or another event that has the word in it


def _launches(recording: Recording, ranges: Sequence[_Range]) -> list[int]:
    """Return the rows of the calls that launched kernels while CUPTI counted, in their order."""
    rows = recording.rows.with_row_index("row")
    launches = rows.filter(pl.col("name").str.contains(_LAUNCHES), kind=Kind.LAUNCH.value)
    launches = launches.sort("start_ns", "row")
    if launches.height != len(ranges):
        begin, end = min(one.start for one in ranges), max(one.end for one in ranges)
        counted_ns = pl.col("start_ns").is_between(int(begin * _US), int(end * _US))
        launches = launches.filter(counted_ns)
    return launches["row"].to_list()


def _with_counters(
    recording: Recording, launches: Sequence[int], ranges: Sequence[_Range]
) -> Recording:
    metrics = named(_metrics(ranges))
    names = [None if each.name == _MISSING else full_name(each.name) for each in ranges]
    columns = attributes(metrics, len(ranges)).with_columns(
        pl.Series("attr.launched_kernel", names, dtype=pl.String)
    )
    rows = attached(recording.rows, np.array(launches), np.arange(len(ranges)), columns)
    warnings = [
        TraceWarning(
            "no-kernel-times",
            f"CUPTI counted events of {counted(len(ranges), 'kernel')} without their times. "
            "Counters "
            "and names stand at the launches, which wait for the kernel and take longer.",
        )
    ]
    if "attr.flops" in columns.columns and not counts_tensor_cores(columns.columns):
        warnings.append(NO_TENSOR_CORES)
    return replace(recording, rows=rows, warnings=(*recording.warnings, *warnings))


def _metrics(ranges: Sequence[_Range]) -> pl.DataFrame:
    """Return counters as a page of Nsight Compute has them."""
    told = [
        (number, name, next((unit for word, unit in _UNITS if word in name), ""), str(value))
        for number, each in enumerate(ranges)
        for name, value in each.counters.items()
    ]
    return pl.DataFrame(told, schema=METRIC_SCHEMA, orient="row")
