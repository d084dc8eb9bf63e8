"""The spool: a trace and an endpoint in; spans delivered, or the trace kept for later, out.

A spooled trace is two files of one name: the trace as `trace.save` writes it, and a note in
JSON with the endpoint, without credentials, and the options of the export. The ids of
exported spans are made from the trace's content, so sending a spooled trace repeats the same
export, and stores that have these ids already keep one copy.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from xsp import __version__
from xsp.errors import ExportError, TraceFormatError
from xsp.export import otlp
from xsp.export.otlp import Delivery, Endpoint, deliver, failure
from xsp.export.parcel import Parcel
from xsp.export.picture import Picture
from xsp.machine import state_folder
from xsp.text import printable
from xsp.trace import load

_TRACE, _NOTE = ".xsp", ".json"


class _Note(msgspec.Struct, forbid_unknown_fields=True):
    """The note beside a spooled trace.

    Attributes:
        endpoint: URL of the endpoint, without credentials.
        path: For HTTP, the path of the request.
        max_spans: Most spans of a picture; None for no limit.
        typical_runs: Whether typical runs are exported as well.
        parent: W3C `traceparent` to hang the root under; None for the trace's own.
        xsp: Version of xsp that wrote the note.
    """

    endpoint: str
    path: Annotated[str, msgspec.Meta(pattern=r"^(/[!-~]*)?$")]
    max_spans: Annotated[int, msgspec.Meta(ge=1)] | None
    typical_runs: bool
    parent: (
        Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")]
        | None
    )
    xsp: str


def folder() -> Path:
    """Return the folder of the spool: `$XSP_SPOOL_DIR`, or `xsp/spool` in the user's state."""
    chosen = os.environ.get("XSP_SPOOL_DIR")
    return Path(chosen).expanduser() if chosen else state_folder() / "spool"


def spool_files() -> tuple[Path, ...]:
    """Return the files of spooled traces, the oldest first."""
    dated = []
    for path in folder().glob(f"*{_TRACE}"):
        with suppress(OSError):  # another process has just sent the trace
            dated.append((path.lstat().st_mtime_ns, path))
    return tuple(path for _, path in sorted(dated))


def send(parcel: Parcel, endpoint: Endpoint) -> Delivery:
    """Send a trace to an endpoint; where not all spans are accepted, spool the trace.

    After Ctrl-C nothing is spooled: the user still has the trace.

    Raises:
        ExportError: Not all spans were accepted; its `delivery` has the numbers.
        ValueError: A variable makes no sense.
    """
    pictures = parcel.pictures()
    result = _deliver(pictures, endpoint)
    if result.accepted == result.sent:
        return result
    try:
        path = _keep(parcel, endpoint, pictures[0])
    except (ExportError, OSError) as error:
        lost = (
            f"The trace is not kept: {error}. Make {folder()} writable, or name another folder in "
            f"XSP_SPOOL_DIR, and export the trace again: xsp export FILE --to {endpoint}."
        )
        raise failure(result, result.message, lost) from error
    kept = (
        f"The trace is kept in {path}: `xsp export --spool` sends it again, whole and under the "
        "same ids, with --to to another place."
    )
    raise failure(replace(result, spool=path), result.message, kept)


def send_spool(path: Path, endpoint: Endpoint | None = None) -> Delivery:
    """Send a spooled trace again, and delete its files once all spans are accepted.

    Args:
        path: The trace's file.
        endpoint: Receives the trace; None for the endpoint in the note. That endpoint gets
            the headers of the `OTEL_*` variables only if these variables name it: a file
            does not decide who gets credentials.

    Raises:
        ExportError: Not all spans were accepted, or a file is damaged, missing, or
            belongs to another user.
        ValueError: A variable makes no sense.
    """
    note = _read_note(path)
    target, withheld = _noted_endpoint(note, path) if endpoint is None else (endpoint, False)
    try:
        trace = load(path)
    except TraceFormatError as error:
        raise ExportError(f"{path} was kept and is damaged since: {error}") from error
    parcel = Parcel(trace, note.max_spans, note.typical_runs, note.parent)
    result = _deliver(parcel.pictures(), target)
    if result.accepted == result.sent:
        _remove(path)
        return result
    headers = (
        f"The headers of OTEL_EXPORTER_OTLP_HEADERS were not sent, for the variables name another "
        f"endpoint: --to {target} sends these headers."
    )
    staying = f"The trace stays in {path}: `xsp export --spool` sends it again, "
    staying += "with --to to another place"
    staying += "; delete it if the server will never take it." if result.rejected else "."
    raise failure(replace(result, spool=path), result.message, headers * withheld, staying)


def _deliver(pictures: list[Picture], endpoint: Endpoint) -> Delivery:
    return deliver(
        lambda most_bytes: chain.from_iterable(otlp.chunks(p, most_bytes) for p in pictures),
        endpoint,
        trace_id=pictures[0].trace_id.hex(),
        total=sum(picture.height for picture in pictures),
    )


def _keep(parcel: Parcel, endpoint: Endpoint, picture: Picture) -> Path:
    """Write a trace and its note, readable by this user alone, and return the trace's file.

    Raises:
        ExportError: The trace cannot be written.
        OSError: The note or the folder cannot be written.
    """
    note = _Note(
        endpoint.url,
        endpoint.path,
        parcel.most,
        parcel.typical_runs,
        parcel.parent,
        xsp=__version__,
    )
    home = folder()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    packed = msgspec.json.encode(note)
    path = home / _file_name(picture, packed)
    with TemporaryDirectory(prefix=".", dir=home) as room:  # which only this user can enter
        trace = parcel.trace.save(Path(room, path.name))
        beside = Path(room, path.with_suffix(_NOTE).name)
        beside.write_bytes(msgspec.json.format(packed))
        # The note is moved first: every trace in the spool has its note.
        for file in (beside, trace):
            file.chmod(0o600)
            os.replace(file, home / file.name)
    return path


def _file_name(picture: Picture, note: bytes) -> str:
    """Return a file name with the root's name; a trace that is kept again has the same one."""
    root = re.sub(r"[^A-Za-z0-9_-]+", "-", picture.name)[:40].strip("-") or "trace"
    return f"{root}-{picture.trace_id.hex()}-{blake2b(note, digest_size=4).hexdigest()}{_TRACE}"


def _read_note(path: Path) -> _Note:
    """Return the note beside a trace.

    Raises:
        ExportError: The note is missing, damaged, or belongs to another user.
    """
    _check_owner(path)
    beside = path.with_suffix(_NOTE)
    if not beside.exists():
        raise ExportError(
            f"{path} does not wait in the spool, for there is no {beside.name} beside it: "
            f"export it without --spool (xsp export {path} --to ...)"
        )
    _check_owner(beside)
    try:
        return msgspec.json.decode(beside.read_bytes(), type=_Note)
    except (msgspec.MsgspecError, RecursionError, OSError) as error:
        raise _damaged(beside, error, path) from error


def _check_owner(path: Path) -> None:
    try:
        found = path.lstat()
    except OSError as error:
        raise ExportError(
            f"{path} cannot be opened: {error.strerror}; perhaps it has been sent already"
        ) from error
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        raise ExportError(
            f"{path} is no file of yours and is not sent: whoever put it there could have your "
            "spans, or theirs, go anywhere; delete it, or copy it if you trust it"
        )


def _noted_endpoint(note: _Note, path: Path) -> tuple[Endpoint, bool]:
    """Return the endpoint in a note, and whether headers of the variables are withheld from it.

    Raises:
        ExportError: The note names no endpoint.
        ValueError: A variable makes no sense.
    """
    own = otlp.endpoint(None)
    if own.url == note.endpoint:
        return own, False
    if note.endpoint.partition("://")[0] not in otlp.SCHEMES:
        error = ValueError(f"{note.endpoint!r} is no destination for spans")
        raise _damaged(path.with_suffix(_NOTE), error, path)
    # The path is set apart: a URL without a path gets OTLP's default path.
    first = replace(otlp.endpoint(note.endpoint), path=note.path)
    return replace(first, headers=()), bool(first.headers)


def _damaged(beside: Path, error: Exception, path: Path) -> ExportError:
    return ExportError(
        f"{beside} is damaged, and nothing was sent: {printable(str(error))}; the trace beside it "
        f"is not: export it (xsp export {path} --to ...), then delete both"
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)  # another process may have sent the trace meanwhile
    except OSError as error:
        raise ExportError(
            f"all that is in {path} was accepted, but it cannot be removed: {error.strerror}; "
            "remove it"
        ) from error
    with suppress(OSError):  # a note without its trace is ignored
        path.with_suffix(_NOTE).unlink()
