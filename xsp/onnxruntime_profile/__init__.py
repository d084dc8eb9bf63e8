"""Reads events from a profile of ONNX Runtime, and makes rows of the nodes among these.

The importer of such profiles needs both, and so does the provider, which has ONNX Runtime write
a profile.
"""

from xsp.onnxruntime_profile.event import FENCES, NODE, RUN, Event
from xsp.onnxruntime_profile.reading import BOM, US, Profile, read_profile
from xsp.onnxruntime_profile.row import nodes, rows_of

__all__ = [
    "BOM",
    "FENCES",
    "NODE",
    "RUN",
    "US",
    "Event",
    "Profile",
    "nodes",
    "read_profile",
    "rows_of",
]
