"""The spool: the files that wait, and how they are sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from xsp.errors import ExportError
from xsp.export import spool_file
from xsp.export.client import connect
from xsp.export.delivery import Delivery, failure, outcome, why
from xsp.export.endpoint import Endpoint
from xsp.export.endpoint import endpoint as endpoint_of
from xsp.export.sender import Sender
from xsp.quantity import counted


def spool_files() -> tuple[Path, ...]:
    """Return the files that wait to be sent, the oldest first."""
    return tuple(sorted(spool_file.folder().glob(f"*{spool_file.SUFFIX}")))


def send_spool(path: Path, endpoint: Endpoint | None = None) -> Delivery:
    """Send what is pending in a spool file, and delete the file when all was accepted.

    What has been accepted is noted in the file before the next is sent, so that each
    request is sent once; only one under way when the machine stops is sent again, under
    the same ids. Here `sent` counts the spans that were pending or are missing.

    Args:
        path: The file.
        endpoint: Where to; None: where it was to go at first, with the headers,
            certificates and timeout of the `OTEL_*` variables.

    Raises:
        ExportError: Not all spans were accepted, some are missing because the file is
            damaged, or another process is sending it.
    """
    with spool_file.opened(path) as stored:
        target = _first_endpoint(stored.header) if endpoint is None else endpoint
        with connect(target) as client:
            sender = Sender(client, target)
            intact, pending, left = _send_frames(stored, sender)
        missing = max(0, stored.header["spans"] - intact)
        remains = _conclude(stored, left=left, missing=missing)
    result = outcome(
        sender,
        target,
        sent=pending + missing,
        trace_id=stored.header["trace_id"],
        path=remains,
    )
    if not left and not missing:
        return result
    raise failure(
        result,
        why(result, sender) if left else "",
        _missing(missing, remains) if missing else "",
        _staying(remains, all_rejected=result.undelivered == missing) if left else "",
    )


def _send_frames(stored: spool_file.Spool, sender: Sender) -> tuple[int, int, int]:
    """Return how many spans are intact, were pending, and are pending still."""
    intact = pending = left = 0
    for frame in stored.frames():
        spans = frame.chunk.spans
        intact += spans
        if not frame.pending:
            continue
        pending += spans
        if sender.send(frame.chunk):
            left += spans
        else:
            stored.accept(frame)
    return intact, pending, left


def _first_endpoint(header: dict[str, Any]) -> Endpoint:
    # The path by itself: a URL with none would get that of OTLP.
    return replace(endpoint_of(header["endpoint"]), path=header["path"])


def _conclude(stored: spool_file.Spool, *, left: int, missing: int) -> Path | None:
    """Return where the file is now, if it still is."""
    try:
        if left:
            return stored.path
        if missing:
            return stored.set_aside()
        stored.remove()
    except OSError as error:
        raise ExportError(
            f"all that is in {stored.path} was accepted, but it cannot be removed: "
            f"{error.strerror}; remove it"
        ) from error
    return None


def _staying(remains: Path | None, *, all_rejected: bool) -> str:
    text = f"What is pending stays in {remains}: `xsp export --spool` sends it again"
    return text + ("; delete the file if the server will never take them." if all_rejected else ".")


def _missing(missing: int, remains: Path | None) -> str:
    return (
        f"{counted(missing, 'span')} are missing, for the spool file {remains} is damaged or was "
        "cut short; all that is intact was read. Remedy: export the saved trace again "
        "(xsp export FILE --to ...)."
    )
