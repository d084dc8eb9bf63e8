"""Measurement: a callable or a `with` block in, its trace out. The front door.

`measure` (callable.py) asks the plan for steps and repeats the call (repeat.py); `profile`
(block.py) hands the steps to calls that a program makes by itself (dispatcher.py). The visits
become runs (interpretation.py), the runs of a process are `ProcessRuns` (process_runs.py), and
`build_trace` (build.py) makes the trace of them. recording.py keeps raw records in a file.
"""

from xsp.measurement.block import profile
from xsp.measurement.build import build_trace
from xsp.measurement.callable import interpret_session, measure, rung_names, visit_all
from xsp.measurement.process_runs import ProcessRuns
from xsp.measurement.progress import Enough, Progress, progress_bar
from xsp.measurement.recording import Recording, load, problem_sentences, record
from xsp.measurement.repeat import check_function

__all__ = [
    "Enough",
    "ProcessRuns",
    "Progress",
    "Recording",
    "build_trace",
    "check_function",
    "interpret_session",
    "load",
    "measure",
    "problem_sentences",
    "profile",
    "progress_bar",
    "record",
    "rung_names",
    "visit_all",
]
