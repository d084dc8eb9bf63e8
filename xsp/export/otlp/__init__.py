"""OTLP (https://opentelemetry.io/docs/specs/otlp/): pictures in, spans at an endpoint out.

`endpoint` reads destinations and `variable` the standard variables. `encoding` makes requests
of pictures, in protobuf's `wire` format. `delivery` sends the requests by `http` or `grpc`,
repeats them as each `answer` allows, and counts spans.
"""

from xsp.export.otlp.delivery import Delivery, deliver, failure
from xsp.export.otlp.encoding import Chunk, chunks
from xsp.export.otlp.endpoint import FORMS, SCHEMES, Endpoint, endpoint, without_credentials

__all__ = [
    "FORMS",
    "SCHEMES",
    "Chunk",
    "Delivery",
    "Endpoint",
    "chunks",
    "deliver",
    "endpoint",
    "failure",
    "without_credentials",
]
