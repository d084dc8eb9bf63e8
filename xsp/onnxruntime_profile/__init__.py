"""A profile of ONNX Runtime in; its events, and rows of the nodes among them, out.

What the importer of such files and the provider, which has ONNX Runtime write them, both need.
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
