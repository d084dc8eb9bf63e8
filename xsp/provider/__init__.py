"""The provider contract: all that a level of the stack is written against."""

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
    is_doubtful,
    mark_doubtful,
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
    "is_doubtful",
    "mark_doubtful",
    "no_rows",
    "on_device",
    "orders",
    "pack",
    "rung_orders",
    "span_rows",
    "unpack",
]
