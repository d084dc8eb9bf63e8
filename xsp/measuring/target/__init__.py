"""Measures, records or runs the target that a command line names.

`measure_isolated` (isolation.py) measures a target in several processes that take turns. Each is a
`Worker` (worker.py), whose process (part.py) resolves the target (resolution.py) and builds models
with random weights (`source`). here.py measures or records a target in this process,
layer_energy.py measures the energy of its step and layers, script.py runs a script, single_step.py
one step under a tool that watches the process. `examine` says
beforehand whether a target takes its settings, and `find` which targets there are (examination.py).
"""

from xsp.measuring.target.examination import Found, examine, find
from xsp.measuring.target.here import measure_here, record_target
from xsp.measuring.target.isolation import measure_isolated
from xsp.measuring.target.layer_energy import measure_energy
from xsp.measuring.target.script import Ending, end_by_signal, run_script
from xsp.measuring.target.single_step import program as single_step_program
from xsp.measuring.target.spec import (
    FRAMEWORKS,
    PRECISIONS,
    SOURCES,
    Spec,
    Subject,
    Value,
    known_frameworks,
)
from xsp.measuring.target.worker import end_process, ending_of

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
    "measure_energy",
    "measure_here",
    "measure_isolated",
    "record_target",
    "run_script",
    "single_step_program",
]
