"""Checks, saves, loads and draws traces: tables of spans with metadata.

`Trace` (document.py) checks what it is given (integrity.py), and `load` reads what `Trace.save`
wrote (file.py). A tree is drawn as text or HTML (text.py, html.py) from an outline (outline.py)
whose rows (row.py) are folded spans (folding.py), below a headline (heading.py, coverage.py).
attribute.py lists the fields of `attributes`.
"""

from xsp.trace.attribute import (
    EARLY_ENDS,
    EXPORTED,
    SCHEMA_URL,
    USER,
    attribute_column,
    find_attribute,
    inexact_column,
)
from xsp.trace.coverage import gathering_spans, self_functions
from xsp.trace.document import FORMAT, SPAN_SCHEMA, Trace, load
from xsp.trace.file import DAMAGE, is_own
from xsp.trace.folding import Folding, agreed, alike, fold, occurrences, parent_rows, sums, total
from xsp.trace.heading import (
    footer_lines,
    headline,
    headline_parts,
    made_of,
    warning_lines,
)
from xsp.trace.integrity import RUN_SCHEMA

__all__ = [
    "DAMAGE",
    "EARLY_ENDS",
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
    "footer_lines",
    "gathering_spans",
    "headline",
    "headline_parts",
    "inexact_column",
    "is_own",
    "load",
    "made_of",
    "occurrences",
    "parent_rows",
    "self_functions",
    "sums",
    "total",
    "warning_lines",
]
