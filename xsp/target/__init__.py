"""Targets: what a command line names in, found, built and measured in processes, out."""

from xsp.target.record import record_target
from xsp.target.source import SOURCES
from xsp.target.spec import Spec

__all__ = [
    "SOURCES",
    "Spec",
    "record_target",
]
