"""Traces: the table of spans, its file, and the tree as text and HTML."""

from xsp.trace.attribute import EXPORTED, SCHEMA_URL, USER, attribute_column, find_attribute
from xsp.trace.document import FORMAT, SPAN_SCHEMA, Trace, load
from xsp.trace.file import DAMAGE
from xsp.trace.folding import Folding, agreed, alike, fold, parent_rows, sums, total
from xsp.trace.heading import headline, remarks
from xsp.trace.integrity import RUN_SCHEMA

__all__ = [
    "DAMAGE",
    "EXPORTED",
    "FORMAT",
    "RUN_SCHEMA",
    "SCHEMA_URL",
    "SPAN_SCHEMA",
    "USER",
    "Folding",
    "Trace",
    "agreed",
    "alike",
    "attribute_column",
    "find_attribute",
    "fold",
    "headline",
    "load",
    "parent_rows",
    "remarks",
    "sums",
    "total",
]
