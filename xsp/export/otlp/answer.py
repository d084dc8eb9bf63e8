"""Answers: the bytes of a server's response in; whether and why a request was accepted out.

The bytes, which may hold anything, should be an ExportTraceServiceResponse
(opentelemetry/proto/collector/trace/v1/trace_service.proto) or, of a refused request, a
google.rpc.Status (https://github.com/googleapis/googleapis, google/rpc/status.proto and
error_details.proto). Four fields are read here without the packages of these messages.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from xsp.export.otlp import wire
from xsp.text import printable, shorten

_LONGEST = 300
_RETRY_INFO = b"google.rpc.RetryInfo"
# The longest google.protobuf.Duration: ten thousand years.
_LONGEST_S = 315_576_000_000

CREDENTIALS = (
    "give credentials, or other credentials, in OTEL_EXPORTER_OTLP_HEADERS "
    "(authorization=Bearer%20TOKEN)"
)
NO_SERVICE = (
    "check host, port (by default 4317 for gRPC, 4318 for HTTP) and, for HTTP, the path "
    "(/v1/traces)"
)
NOBODY = (
    "start it (`xsp jaeger` starts one here), or check host, port and scheme (by default 4317 "
    "speaks gRPC, otlp:// or OTEL_EXPORTER_OTLP_PROTOCOL=grpc, and 4318 HTTP, otlp+http:// or "
    "http/protobuf; TLS is otlps://, otlp+https:// or https://, with "
    "OTEL_EXPORTER_OTLP_CERTIFICATE for an issuer that the system does not know); "
    "if it is slow, raise OTEL_EXPORTER_OTLP_TIMEOUT (milliseconds)"
)
UNTRUSTED = "name the certificate of its issuer in OTEL_EXPORTER_OTLP_CERTIFICATE"
LATER = "send the spans later, or raise OTEL_EXPORTER_OTLP_TIMEOUT (milliseconds)"
SEE_SERVER = "see the server's log"


class Verdict(enum.Enum):
    """What a server decided about a request, and what that means for the requests after it."""

    ACCEPTED = "accepted, in whole or in part"
    REFUSED = "refused for its content: other requests may be accepted"
    TOO_LARGE = "refused for its size"
    FAILED = "the server failed: other requests may be accepted"
    RETRY = "not accepted now, perhaps later"
    CLOSED = "no request is accepted by this server"


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer to one request.

    Attributes:
        verdict: What the server decided.
        message: What happened, as the end of a sentence about the server; empty if all
            is well. Of an accepted request, the server's own words.
        remedy: What the user can do.
        rejected: How many spans of an accepted request were rejected.
        wait_s: Seconds that the server asks to wait before the request is repeated.
    """

    verdict: Verdict
    message: str = ""
    remedy: str = ""
    rejected: int = 0
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A google.rpc.Status: how a server describes an error.

    Attributes:
        message: The server's words.
        retry_s: Seconds after which the request may be repeated; None if not stated.
    """

    message: str = ""
    retry_s: float | None = None


def acceptance(response: bytes, censored: Callable[[str], str]) -> Answer:
    """Return the answer that an encoded ExportTraceServiceResponse is.

    Field 1 is `partial_success`, with `rejected_spans` 1 and `error_message` 2.

    Args:
        response: The encoded message.
        censored: Removes credentials from the server's words.
    """
    try:
        partial = dict(wire.fields(wire.content(dict(wire.fields(response)), 1)))
    except ValueError:
        return not_otlp("its answer is not OTLP")
    words = wire.content(partial, 2).decode(errors="replace")
    # A negative number, which no server should send, is in the upper half of unsigned numbers.
    rejected = wire.unsigned(partial, 1)
    return accepted(rejected if rejected < 1 << 63 else 0, censored(words))


def accepted(rejected: int, words: str) -> Answer:
    """Return the answer to a request accepted but for some spans; `words` are the server's."""
    return Answer(Verdict.ACCEPTED, plain(words), rejected=rejected)


def status(data: bytes) -> Status:
    """Return a decoded google.rpc.Status (message 2, details 3); an empty one for other bytes."""
    try:
        found = list(wire.fields(data))
        details = (value for number, value in found if number == 3 and isinstance(value, bytes))
        delays = [delay for detail in details if (delay := _retry_s(detail)) is not None]
    except ValueError:
        return Status()
    message = wire.content(dict(found), 2).decode(errors="replace")
    return Status(message, delays[-1] if delays else None)


def not_otlp(message: str) -> Answer:
    """Return the answer of a server that does not speak OTLP."""
    return Answer(Verdict.CLOSED, message, NO_SERVICE)


def unanswered(words: str) -> Answer:
    """Return the answer that stands for none; `words` are those of the error."""
    return Answer(Verdict.RETRY, f"does not answer{quoted(words)}", NOBODY)


def plain(text: str) -> str:
    """Return a server's words as one short printable line."""
    return shorten(printable(" ".join(text.split())), _LONGEST)


def quoted(text: str) -> str:
    """Return a server's words in brackets, to follow a statement; empty without words."""
    return f" ({plain(text)})" if text.strip() else ""


def _retry_s(detail: bytes) -> float | None:
    """Return the seconds in a detail (type_url 1, value 2) that is a RetryInfo, else None."""
    known = dict(wire.fields(detail))
    if wire.content(known, 1).rpartition(b"/")[2] != _RETRY_INFO:
        return None
    info = dict(wire.fields(wire.content(known, 2)))
    delay = dict(wire.fields(wire.content(info, 1)))
    seconds, nanoseconds = wire.unsigned(delay, 1), wire.unsigned(delay, 2)
    return None if seconds > _LONGEST_S else seconds + nanoseconds / 1e9
