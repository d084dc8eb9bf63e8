"""Export: traces handed to Jaeger and other OpenTelemetry back ends, or written for other tools.

`Trace.export` is the way in. This package says what came of it, and sends what
could not be delivered.
"""

from xsp.export.destination import check, export
from xsp.export.otlp import Delivery, endpoint
from xsp.export.spool import send_spool, spool_files

__all__ = [
    "Delivery",
    "check",
    "endpoint",
    "export",
    "send_spool",
    "spool_files",
]
