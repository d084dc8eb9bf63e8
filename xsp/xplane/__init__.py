"""Reads XPlane files of TensorFlow's and JAX's profiler as frames of events.

The file is an XSpace: planes (a host, a device) of lines (a thread, a stream) of events.
`space` finds planes, `plane` their lines, `kind` and `stat` what numbers mean, and `event` makes
frames of events. `hlo` decodes programs of XLA that a file holds, and `dataflow` finds whose
outputs an operator takes.

    space = read_space(path.read_bytes())
    host = space.plane("/host:CPU")
    frame = host.events({"hlo_op": pl.String}).frame
"""

from __future__ import annotations

from xsp.protobuf import fields
from xsp.xplane.dataflow import Graph, inputs_of, inputs_that_ran
from xsp.xplane.event import Events
from xsp.xplane.hlo import (
    BYTES,
    Frame,
    Instruction,
    Module,
    Shape,
    modules,
    operands_of,
    read_module,
)
from xsp.xplane.plane import Metadata, Plane
from xsp.xplane.space import Space, plane_name, read_space

__all__ = [
    "BYTES", "Events", "Frame", "Graph", "Instruction", "Metadata", "Module", "Plane", "Shape",
    "Space", "fields", "inputs_of", "inputs_that_ran", "modules", "operands_of", "plane_name",
    "read_module", "read_space",
]  # fmt: skip
