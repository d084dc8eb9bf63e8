"""Export: traces handed to Jaeger and other OpenTelemetry back ends, or written for other tools.

`Trace.export` is the way in. This package says what came of it, and sends what
could not be delivered.
"""

from xsp.export.delivery import Delivery
from xsp.export.destination import check, export
from xsp.export.endpoint import endpoint, is_loopback
from xsp.export.spool import send_spool, spool_files

__all__ = [
    "Delivery",
    "check",
    "endpoint",
    "export",
    "is_loopback",
    "send_spool",
    "spool_files",
]
