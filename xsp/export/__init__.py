"""Export: a trace in; its spans in Jaeger, at an OTLP endpoint, or in files of other tools out.

`destination` takes a trace to the place that the user names. A `parcel` is the trace with
its options; `reduction` cuts it to a span budget, and a `picture` gives the spans names
(`label`), services (`resource`), ids and wall-clock times. Pictures become OTLP requests
(`otlp`, by way of `spool`, which keeps undelivered traces), OTLP files (`otlp_json`) or
spans for an exporter of the user's (`sdk`); `perfetto` draws timelines, and `flame` stacks, of
reduced spans, which lie on tracks (`track`).
"""

from xsp.export.destination import check, export, looks_like_destination
from xsp.export.otlp import Delivery, endpoint
from xsp.export.spool import send_spool, spool_files

__all__ = [
    "Delivery",
    "check",
    "endpoint",
    "export",
    "looks_like_destination",
    "send_spool",
    "spool_files",
]
