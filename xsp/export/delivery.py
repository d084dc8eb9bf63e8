"""Delivery: chunks handed to an endpoint, every span accounted for, the rest spooled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from xsp.errors import ExportError
from xsp.export import spool_file
from xsp.export.client import connect
from xsp.export.endpoint import Endpoint
from xsp.export.protobuf import Chunk
from xsp.export.sender import Sender
from xsp.quantity import counted


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the spans: sent = accepted + rejected + undelivered.

    Attributes:
        sent: Spans that were to be delivered.
        accepted: Spans that the server said it took.
        rejected: Spans that the server said no to: as many as a `partial_success` says,
            all of a request that it refused for its content, one that by itself is too
            large.
        destination: Where to, without credentials.
        trace_id: Of the trace, in hexadecimal; empty where there is none.
        spool: File with all spans that were not accepted; None if there are none, or if
            they could not be kept. Of a request that was accepted in part it has all
            spans, for the server does not say which it rejected.
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
        """Spans that the server said nothing about, or only that it cannot take them now."""
        return self.sent - self.accepted - self.rejected


def deliver(
    chunks: Iterable[Chunk], endpoint: Endpoint, *, name: str, trace_id: bytes, total: int
) -> Delivery:
    """Send chunks to an endpoint; what it does not accept goes into a spool file.

    Each chunk has the endpoint's timeout, all attempts and waits together. When one
    shows that the endpoint accepts none, those after it are spooled as they come.
    Ctrl-C ends it without a spool file: the saved trace can be exported again.

    Args:
        chunks: What is sent; one at a time is held in memory.
        endpoint: Where to.
        name: Of the trace, for the spool file.
        trace_id: 16 bytes.
        total: How many spans the chunks hold together.

    Raises:
        ExportError: Not all spans were accepted; its `delivery` has the numbers.
    """
    seen = 0
    with (
        connect(endpoint) as client,
        spool_file.Writer(endpoint, name=name, trace_id=trace_id) as kept,
    ):
        sender = Sender(client, endpoint)
        for chunk in chunks:
            seen += chunk.spans
            for left in sender.send(chunk):
                kept.add(left)
        path = kept.finish()
    if seen != total:
        sender.note(f"was sent {seen:,} of {total:,} spans by xsp", "report it to xsp's authors")
    result = outcome(sender, endpoint, sent=max(seen, total), trace_id=trace_id.hex(), path=path)
    if result.accepted == result.sent:
        return result
    raise failure(result, why(result, sender), _kept(kept, path, endpoint, sender))


def outcome(
    sender: Sender, endpoint: Endpoint, *, sent: int, trace_id: str, path: Path | None
) -> Delivery:
    """Return what became of `sent` spans; what is not accepted is in the file `path`."""
    said = "; ".join(sender.reasons)
    message = f"{endpoint} accepted {counted(sender.accepted, 'span')}"
    if said:
        message += f"; it {said}"
    return Delivery(
        sent, sender.accepted, sender.rejected, str(endpoint), trace_id, spool=path, message=message
    )


def why(result: Delivery, sender: Sender) -> str:
    """Return the numbers, the reasons and the remedies."""
    remedies = dict.fromkeys(remedy for remedy in sender.reasons.values() if remedy)
    return (
        f"{result.sent - result.accepted:,} of {counted(result.sent, 'span')} not accepted "
        f"({result.accepted:,} accepted, {result.rejected:,} rejected, "
        f"{result.undelivered:,} not delivered): {result.destination} "
        f"{'; '.join(sender.reasons)}." + (f" Remedy: {'; '.join(remedies)}." if remedies else "")
    )


def _kept(kept: spool_file.Writer, path: Path | None, endpoint: Endpoint, sender: Sender) -> str:
    """Return where what was not accepted is, and how to send it."""
    if kept.problem is not None:
        return (
            f"The spans are not kept: {spool_file.folder()} cannot be written "
            f"({kept.problem.strerror or kept.problem}). Once it can (or XSP_SPOOL_DIR names "
            f"another folder), export the saved trace again: xsp export FILE --to {endpoint}."
        )
    if path is None:
        return ""
    text = (
        f"Kept in {path}: {counted(kept.spans, 'span')}. `xsp export --spool` sends what is kept, "
        "with --to to another place."
    )
    if sender.ambiguous:
        text += (
            " Which spans were rejected is not known, so the whole requests that they were in are "
            "kept; their ids stay the same, and stores that know them keep one copy."
        )
    return text


def failure(result: Delivery, *sentences: str) -> ExportError:
    """Return the error that says, in sentences of which some may be empty, what is amiss."""
    message = " ".join(filter(None, sentences))
    return ExportError(message, replace(result, message=message))
