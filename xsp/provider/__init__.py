"""The provider contract: all that a level of the stack is written against."""

from xsp.clock import Clock
from xsp.errors import ProviderError, TraceFormatError
from xsp.level import Kind, Level
from xsp.provider.contract import (
    Evaluations,
    Keeping,
    ModelCall,
    Provider,
    Records,
    Remarking,
    Request,
    Watcher,
)
from xsp.provider.packing import pack, unpack
from xsp.provider.row import (
    ATTRIBUTE,
    DOUBTFUL,
    ENDED_BY_LAUNCH,
    KIND,
    ROW_SCHEMA,
    SpanRows,
    concat_rows,
    is_doubtful,
    mark_doubtful,
    no_rows,
    orders,
    span_rows,
)

__all__ = [
    "ATTRIBUTE",
    "DOUBTFUL",
    "ENDED_BY_LAUNCH",
    "KIND",
    "ROW_SCHEMA",
    "Clock",
    "Evaluations",
    "Keeping",
    "Kind",
    "Level",
    "ModelCall",
    "Provider",
    "ProviderError",
    "Records",
    "Remarking",
    "Request",
    "SpanRows",
    "TraceFormatError",
    "Watcher",
    "concat_rows",
    "is_doubtful",
    "mark_doubtful",
    "no_rows",
    "orders",
    "pack",
    "span_rows",
    "unpack",
]
