"""Traces: the table of spans, its file, and the tree as text and HTML."""

from xsp.trace.attribute import EXPORTED, SCHEMA_URL, USER, attribute
from xsp.trace.document import FORMAT, SPAN_SCHEMA, Trace, load
from xsp.trace.heading import headline, remarks
from xsp.trace.typical_runs import RUN_SCHEMA

__all__ = [
    "EXPORTED",
    "FORMAT",
    "RUN_SCHEMA",
    "SCHEMA_URL",
    "SPAN_SCHEMA",
    "USER",
    "Trace",
    "attribute",
    "headline",
    "load",
    "remarks",
]
