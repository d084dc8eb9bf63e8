"""Delivery: encoded requests and an endpoint in; the number of spans accepted and rejected out.

Requests are repeated as the OTLP specification says.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from xsp.errors import ExportError
from xsp.export.otlp import answer
from xsp.export.otlp.answer import SEE_SERVER, Answer, Verdict
from xsp.export.otlp.encoding import MOST_BYTES, Chunk
from xsp.export.otlp.endpoint import GRPC, Endpoint
from xsp.text import counted

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_JITTER = 0.25
_MOST_REASONS = 3
# Every server takes requests of this size, so no smaller ones are made.
_LEAST_BYTES = 8 * 1024

_log = logging.getLogger("xsp.export")


class Client(Protocol):
    """A client of one protocol: connects for the first request, and again after a cut."""

    def send(self, body: bytes, timeout_s: float) -> Answer:
        """Send an encoded ExportTraceServiceRequest once, within `timeout_s` seconds."""
        ...

    def close(self) -> None:
        """End the connection, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """The spans of an export, counted: sent = accepted + rejected + undelivered.

    Attributes:
        sent: Spans that were to be delivered.
        accepted: Spans that the server said it took.
        rejected: Spans that the server rejected: the number in `partial_success`, and
            all spans of a request refused for its content or its size.
        destination: URL without credentials, file, or name of the exporter.
        trace_id: In hexadecimal; empty where the destination has no trace ids.
        spool: File that keeps the trace because not all spans were accepted; None if all
            were, or if the trace could not be kept.
        message: What happened, in a sentence or more.
    """

    sent: int
    accepted: int
    rejected: int
    destination: str
    trace_id: str
    spool: Path | None = None
    message: str = ""

    @property
    def undelivered(self) -> int:
        """Spans that the server neither accepted nor rejected."""
        return self.sent - self.accepted - self.rejected


def failure(result: Delivery, *sentences: str) -> ExportError:
    """Return the error for an export with these counts; empty sentences are left out."""
    message = " ".join(filter(None, sentences))
    return ExportError(message, replace(result, message=message))


def deliver(
    chunks: Callable[[int], Iterable[Chunk]], endpoint: Endpoint, *, trace_id: str, total: int
) -> Delivery:
    """Send chunks to an endpoint and count their spans.

    The endpoint's timeout holds for all attempts and waits of a chunk together. Once an
    answer says that the endpoint accepts no request, no more chunks are made. Where the
    first chunk is too large for the server, all chunks are made anew at half the size.

    Args:
        chunks: Makes chunks of at most so many bytes, one at a time.
        endpoint: Receives the chunks.
        trace_id: In hexadecimal.
        total: Number of spans in all chunks.

    Raises:
        ValueError: The variable of a proxy makes no sense.
    """
    if endpoint.exposed:
        _log.warning(
            "%s is sent to %s without TLS, where everybody on the way can read it: "
            "use otlps:// or otlp+https://, or https:// in OTEL_EXPORTER_OTLP_ENDPOINT",
            " and ".join(endpoint.exposed),
            endpoint,
        )
    with closing(_client(endpoint)) as client:
        sender = _sent(client, endpoint, chunks, MOST_BYTES)
    if not sender.closed and sender.sent != total:
        lost = f"was sent {sender.sent:,} of {total:,} spans by xsp"
        sender.note(lost, "report it to xsp's authors")
    sent = max(sender.sent, total)
    result = Delivery(sent, sender.accepted, sender.rejected, str(endpoint), trace_id)
    told = _success if result.accepted == sent else _why
    return replace(result, message=told(result, sender))


class Sender:
    """Sends chunks through a client and counts their spans.

    Attributes:
        sent: Spans in chunks that were sent, whatever became of them.
        accepted: Spans that the server took.
        rejected: Spans that the server rejected.
        reasons: What the server said, each with its remedy.
        closed: Whether the server has shown that it accepts no request.
    """

    def __init__(self, client: Client, endpoint: Endpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self.sent = 0
        self.accepted = 0
        self.rejected = 0
        self.reasons: dict[str, str] = {}
        self.closed = False

    def send(self, chunk: Chunk) -> Verdict:
        """Send a chunk, count its spans, and return the last answer's verdict."""
        found = self._ask(chunk.body)
        rejected = 0
        if found.verdict is Verdict.ACCEPTED:
            rejected = min(found.rejected, chunk.spans)
            self.accepted += chunk.spans - rejected
        elif found.verdict in (Verdict.REFUSED, Verdict.TOO_LARGE):
            rejected = chunk.spans
        self.sent += chunk.spans
        self.rejected += rejected
        self.closed = found.verdict is Verdict.CLOSED
        self._note_answer(found, rejected)
        return found.verdict

    def note(self, message: str, remedy: str) -> None:
        """Note a reason and its remedy; of many reasons the first two and the last are kept."""
        self.reasons.setdefault(message, remedy)
        if len(self.reasons) > _MOST_REASONS:
            del self.reasons[list(self.reasons)[-2]]

    def _note_answer(self, found: Answer, rejected: int) -> None:
        if found.verdict is not Verdict.ACCEPTED:
            self.note(found.message, found.remedy)
        elif rejected:
            words = f": {found.message}" if found.message else " and does not say why"
            self.note(f"rejected some spans of a request{words}", SEE_SERVER)
        elif found.message:
            self.note(f"says: {found.message}", "")

    def _ask(self, body: bytes) -> Answer:
        """Return the last answer to a request, repeated until the timeout where that may help."""
        deadline = time.monotonic() + self._endpoint.timeout_s
        pauses = _pauses()
        while True:
            found = self._once(body, max(deadline - time.monotonic(), 0.001))
            if found.verdict is not Verdict.RETRY:
                return found
            wait_s = found.wait_s or next(pauses)
            left_s = deadline - time.monotonic()
            if wait_s >= left_s:
                return self._given_up(found, left_s)
            time.sleep(wait_s)

    def _once(self, body: bytes, timeout_s: float) -> Answer:
        """Return the answer to a request sent once; an exception counts as an answer too."""
        try:
            return self._client.send(body, timeout_s)
        # Libraries that parse a server's answer raise many exceptions, and spans must be counted.
        except Exception as error:  # noqa: BLE001
            words = answer.quoted(self._endpoint.censored(f"{type(error).__name__}: {error}"))
            return Answer(Verdict.FAILED, f"gave an answer that makes no sense{words}", SEE_SERVER)

    def _given_up(self, found: Answer, left_s: float) -> Answer:
        limit = f"timeout of {self._endpoint.timeout_s:g} s"
        rest = f" (tried until the {limit})"
        if found.wait_s:
            rest = (
                f", and asks to wait {found.wait_s:.3g} s, "
                f"but {max(0.0, left_s):.2g} s are left of the {limit}"
            )
        return replace(found, verdict=Verdict.CLOSED, message=found.message + rest)


def _client(endpoint: Endpoint) -> Client:
    # Each protocol's library takes a tenth of a second to import.
    if endpoint.protocol == GRPC:
        from xsp.export.otlp.grpc import GrpcClient  # noqa: PLC0415

        return GrpcClient(endpoint)
    from xsp.export.otlp.http import HttpClient  # noqa: PLC0415

    return HttpClient(endpoint)


def _sent(
    client: Client,
    endpoint: Endpoint,
    chunks: Callable[[int], Iterable[Chunk]],
    most_bytes: int,
) -> Sender:
    """Send all chunks, at half the size if the server finds them too large; return the sender."""
    sender = Sender(client, endpoint)
    for chunk in chunks(most_bytes):
        too_large = sender.send(chunk) is Verdict.TOO_LARGE
        half = most_bytes // 2
        if too_large and chunk.spans > 1 and not sender.accepted and half >= _LEAST_BYTES:
            return _sent(client, endpoint, chunks, half)
        if sender.closed:
            break
    return sender


def _success(result: Delivery, sender: Sender) -> str:
    said = "; it ".join(sender.reasons)
    accepted = f"{result.destination} accepted {counted(result.accepted, 'span')}"
    return f"{accepted}; it {said}" if said else accepted


def _why(result: Delivery, sender: Sender) -> str:
    """Return the numbers, the reasons and the remedies."""
    remedies = dict.fromkeys(remedy for remedy in sender.reasons.values() if remedy)
    return (
        f"{result.sent - result.accepted:,} of {counted(result.sent, 'span')} not accepted "
        f"({result.accepted:,} accepted, {result.rejected:,} rejected, "
        f"{result.undelivered:,} not delivered): {result.destination} "
        f"{'; '.join(sender.reasons)}." + (f" Remedy: {'; '.join(remedies)}." if remedies else "")
    )


def _pauses() -> Iterator[float]:
    """Yield seconds to wait before each repetition: doubling up to a limit, with jitter."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
