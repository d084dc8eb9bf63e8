"""Providers: the contract that a level of the stack is written against; records in, rows out.

`contract` says what a provider does (`Provider`, and `Watcher` for one that finds evaluations),
`row` what it hands back (`span_rows` makes a frame of columns), and `packing` how its records are
kept in a file. Beside this package a level may
import `xsp.tracer`, `xsp.level`, `xsp.clock` and `xsp.errors`.
"""

from xsp.clock import Clock
from xsp.errors import ProviderError, TraceFormatError
from xsp.level import Kind, Level
from xsp.provider.contract import (
    Evaluations,
    ModelCall,
    Provider,
    Records,
    Request,
    SelfDiagnosing,
    Watcher,
)
from xsp.provider.packing import pack, unpack
from xsp.provider.row import (
    ATTRIBUTE,
    ON_DEVICE,
    PROVENANCE,
    ROW_SCHEMA,
    RUNG,
    Provenance,
    SpanRows,
    concat_rows,
    has_provenance,
    is_ambiguous,
    mark_ambiguous,
    no_rows,
    on_device,
    orders,
    rung_orders,
    span_rows,
)

__all__ = [
    "ATTRIBUTE",
    "ON_DEVICE",
    "PROVENANCE",
    "ROW_SCHEMA",
    "RUNG",
    "Clock",
    "Evaluations",
    "Kind",
    "Level",
    "ModelCall",
    "Provenance",
    "Provider",
    "ProviderError",
    "Records",
    "Request",
    "SelfDiagnosing",
    "SpanRows",
    "TraceFormatError",
    "Watcher",
    "concat_rows",
    "has_provenance",
    "is_ambiguous",
    "mark_ambiguous",
    "no_rows",
    "on_device",
    "orders",
    "pack",
    "rung_orders",
    "span_rows",
    "unpack",
]
