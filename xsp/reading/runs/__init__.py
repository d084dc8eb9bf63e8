"""Reads what a session recorded of runs: its records become runs of rows, and runs a trace."""

from xsp.reading.runs.build import build_trace, describe
from xsp.reading.runs.interpretation import interpret, read_visit
from xsp.reading.runs.pause import with_pauses, without_pauses
from xsp.reading.runs.process_runs import ProcessRuns
from xsp.reading.runs.self_time import MOST_CALLS, calls, in_common, named_time

__all__ = [
    "MOST_CALLS",
    "ProcessRuns",
    "build_trace",
    "calls",
    "describe",
    "in_common",
    "interpret",
    "named_time",
    "read_visit",
    "with_pauses",
    "without_pauses",
]
