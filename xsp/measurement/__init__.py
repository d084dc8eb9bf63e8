"""Measurement: a callable in, its trace out.

`measure` (callable.py) asks the plan for steps and repeats the call (repeat.py). The visits
become runs (interpretation.py), the runs of a process are `ProcessRuns` (process_runs.py), and
`build_trace` (build.py) makes the trace of them. recording.py keeps raw records in a file.
"""

from xsp.measurement.build import build_trace, describe
from xsp.measurement.callable import interpret_session, measure, rung_names, visit_all
from xsp.measurement.interpretation import interpret
from xsp.measurement.own_time import MOST_CALLS, calls, in_common, innermost, named_time
from xsp.measurement.pause import with_pauses, without_pauses
from xsp.measurement.process_runs import ProcessRuns
from xsp.measurement.progress import Enough, Progress, progress_bar, status_line
from xsp.measurement.recording import Recording, load, problem_sentences, record
from xsp.measurement.repeat import (
    carry_out,
    check_function,
    check_no_generator,
    irreversible,
    iterator_type,
    name_of,
    read_arguments,
)

__all__ = [
    "MOST_CALLS",
    "Enough",
    "ProcessRuns",
    "Progress",
    "Recording",
    "build_trace",
    "calls",
    "carry_out",
    "check_function",
    "check_no_generator",
    "describe",
    "in_common",
    "innermost",
    "interpret",
    "interpret_session",
    "irreversible",
    "iterator_type",
    "load",
    "measure",
    "name_of",
    "named_time",
    "problem_sentences",
    "progress_bar",
    "read_arguments",
    "record",
    "rung_names",
    "status_line",
    "visit_all",
    "with_pauses",
    "without_pauses",
]
