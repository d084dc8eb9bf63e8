"""Providers: the contract that a level of the stack is written against; records in, rows out.

`contract` says what a provider does (`Provider`), `watching` what one does that finds evaluations
(`Watcher`), `state` how a call's changes are noticed and undone (`Keeper`), `row` what a provider
hands back (`span_rows` makes a frame of columns), `size` how many of these memory holds, and
`packing` how its records are kept in a file.
Beside this package a level may import `xsp.tracer`, `xsp.level`, `xsp.clock` and `xsp.errors`.
"""

from xsp.clock import Clock
from xsp.errors import ProviderError, TraceFormatError
from xsp.level import Kind, Level
from xsp.provider.contract import (
    Calibrating,
    EmptySpan,
    Packable,
    Provider,
    Records,
    Request,
    Sampler,
    SelfDiagnosing,
)
from xsp.provider.packing import pack, unpack
from xsp.provider.row import (
    ATTRIBUTE,
    KIND,
    PROVENANCE,
    ROW_SCHEMA,
    SAMPLE_SCHEMA,
    Provenance,
    Samples,
    SpanRows,
    checked,
    concat_rows,
    list_column,
    no_rows,
    span_rows,
)
from xsp.provider.size import MOST_SPANS, within_memory
from xsp.provider.state import Keeper, Kept, Role
from xsp.provider.watching import (
    NO_BACKWARD,
    Awaiting,
    Begun,
    Evaluations,
    Inputs,
    Likeness,
    ModelCall,
    StepWatcher,
    Waiting,
    Watcher,
    Work,
)

__all__ = [
    "ATTRIBUTE",
    "KIND",
    "MOST_SPANS",
    "NO_BACKWARD",
    "PROVENANCE",
    "ROW_SCHEMA",
    "SAMPLE_SCHEMA",
    "Awaiting",
    "Begun",
    "Calibrating",
    "Clock",
    "EmptySpan",
    "Evaluations",
    "Inputs",
    "Keeper",
    "Kept",
    "Kind",
    "Level",
    "Likeness",
    "ModelCall",
    "Packable",
    "Provenance",
    "Provider",
    "ProviderError",
    "Records",
    "Request",
    "Role",
    "Sampler",
    "Samples",
    "SelfDiagnosing",
    "SpanRows",
    "StepWatcher",
    "TraceFormatError",
    "Waiting",
    "Watcher",
    "Work",
    "checked",
    "concat_rows",
    "list_column",
    "no_rows",
    "pack",
    "span_rows",
    "unpack",
    "within_memory",
]
