"""Answers: what a server made of one request, whatever protocol it was asked in."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from xsp.export import wire
from xsp.quantity import printable, shorten

_LONGEST = 300

CREDENTIALS = (
    "give credentials in OTEL_EXPORTER_OTLP_HEADERS (authorization=Bearer%20TOKEN), "
    "or other ones, if there are some"
)
NO_SERVICE = (
    "check host and port (OTLP has 4317 for gRPC and 4318 for HTTP) and, for HTTP, the path "
    "(/v1/traces)"
)
NOT_THERE = "start it (`xsp jaeger` starts one), or check host and port"
LATER = "send the spans later, or raise OTEL_EXPORTER_OTLP_TIMEOUT (milliseconds)"
SEE_SERVER = "see the server's log"


class Verdict(enum.Enum):
    """What becomes of a request, and of those after it."""

    ACCEPTED = "accepted, in whole or in part"
    REFUSED = "refused for what it holds: others may be accepted"
    TOO_LARGE = "refused for its size"
    FAILED = "the server failed at it: others may be accepted"
    RETRY = "not accepted now, maybe later"
    CLOSED = "no request is accepted there"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server made of one request.

    Attributes:
        verdict: What becomes of the request.
        message: What happened, as the end of a sentence about the server; empty if all
            is well. Of an accepted request, the server's own words.
        remedy: What to do about it.
        rejected: How many spans of an accepted request were rejected.
        wait_s: Seconds that the server asks to wait before the request is repeated.
        answered: Whether the server spoke at all.
    """

    verdict: Verdict
    message: str = ""
    remedy: str = ""
    rejected: int = 0
    wait_s: float | None = None
    answered: bool = True


def acceptance(response: bytes, censored: Callable[[str], str]) -> Answer:
    """Return what an encoded ExportTraceServiceResponse says.

    Its field 1 is `partial_success`, with `rejected_spans` 1 and `error_message` 2.

    Args:
        response: What the server answered.
        censored: Takes credentials out of the server's words.
    """
    try:
        partial = dict(wire.fields(wire.content(dict(wire.fields(response)), 1)))
    except ValueError:
        return not_otlp("its answer is not OTLP")
    rejected = wire.unsigned(partial, 1)
    words = wire.content(partial, 2).decode(errors="replace")
    # A number below 0, which there should not be, is in the upper half here.
    return Answer(
        Verdict.ACCEPTED, plain(censored(words)), rejected=rejected if rejected < 1 << 63 else 0
    )


def not_otlp(message: str) -> Answer:
    """Return that something else than an OTLP server answered."""
    return Answer(Verdict.CLOSED, message, NO_SERVICE)


def plain(text: str) -> str:
    """Return a server's words as one short line."""
    return shorten(printable(" ".join(text.split())), _LONGEST)


def quoted(text: str) -> str:
    """Return a server's words to be put behind a statement; nothing if there are none."""
    return f" ({plain(text)})" if text.strip() else ""
