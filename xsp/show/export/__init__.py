"""Takes a trace to Jaeger, to any OTLP endpoint, or into files of other tools.

`destination` tells by the destination's name which of them the user wants. `reduction` cuts the
trace to a span budget, and a `picture` gives its spans services, ids and wall-clock times, with
the names and attributes of `label`. Pictures become OTLP messages (`otlp`), which `delivery`
sends, or spans for an exporter of the user's (`sdk`). `timeline` and `flame` write files for
viewers.
"""

from xsp.delivery import Delivery
from xsp.show.export.delivery import endpoint
from xsp.show.export.destination import check, export, looks_like_destination

__all__ = ["Delivery", "check", "endpoint", "export", "looks_like_destination"]
