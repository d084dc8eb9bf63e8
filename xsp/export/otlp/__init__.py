"""OTLP: requests made of pictures, the endpoints that take them, and how they are delivered.

The protocol is that of https://opentelemetry.io/docs/specs/otlp/, over HTTP and gRPC.
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
