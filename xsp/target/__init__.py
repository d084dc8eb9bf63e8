"""Targets: what a command line names in, its trace, recording or exit code out.

`measure_isolated` (isolation.py) measures a target with a process for each rung; a process is
a `Worker` (worker.py), which resolves the target (resolution.py) and builds models with random
weights (`source`). `examine` says beforehand whether a target takes its settings, and `find` which
targets there are (examination.py). record.py records a target in this process, script.py runs a
script.
"""

from xsp.target.examination import Found, examine, find
from xsp.target.isolation import measure_here, measure_isolated
from xsp.target.record import record_target
from xsp.target.script import Ending, end_by_signal, run_script
from xsp.target.spec import FRAMEWORKS, PRECISIONS, SOURCES, Spec, Subject, Value, known_frameworks
from xsp.target.worker import end_process, ending_of

__all__ = [
    "FRAMEWORKS",
    "PRECISIONS",
    "SOURCES",
    "Ending",
    "Found",
    "Spec",
    "Subject",
    "Value",
    "end_by_signal",
    "end_process",
    "ending_of",
    "examine",
    "find",
    "known_frameworks",
    "measure_here",
    "measure_isolated",
    "record_target",
    "run_script",
]
