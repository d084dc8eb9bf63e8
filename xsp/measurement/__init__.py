"""Measurement: a callable or a `with` block in, its trace out. The front door."""

from xsp.measurement.block import profile
from xsp.measurement.build import build_trace
from xsp.measurement.callable import collected_by, measure, rung_names, visit_all
from xsp.measurement.collection import Collected
from xsp.measurement.progress import Enough, Progress, progress_bar
from xsp.measurement.recording import Recording, load, record, remarks
from xsp.measurement.repeat import check_function

__all__ = [
    "Collected",
    "Enough",
    "Progress",
    "Recording",
    "build_trace",
    "check_function",
    "collected_by",
    "load",
    "measure",
    "profile",
    "progress_bar",
    "record",
    "remarks",
    "rung_names",
    "visit_all",
]
