"""Targets: what a command line names in, found, built and measured in processes, out."""

from xsp.target.isolation import measure_here, measure_isolated
from xsp.target.record import record_target
from xsp.target.script import Ending, end_by_interrupt, run_script
from xsp.target.source import SOURCES
from xsp.target.spec import Spec

__all__ = [
    "SOURCES",
    "Ending",
    "Spec",
    "end_by_interrupt",
    "measure_here",
    "measure_isolated",
    "record_target",
    "run_script",
]
