"""The spool file: keeps spans that no server took, safely, until one does.

It is

    magic | length of the header | CRC-32 of the header | header | frames

with the header in JSON, filled up with spaces, and each frame

    mark | state | spans | length | CRC-32 of spans, length and body | body

All numbers are unsigned, 4 bytes, little-endian. The body is an encoded
ExportTraceServiceRequest. The state, `P` for pending or `A` for accepted, is changed
in place. The mark is there to find the next frame behind a damaged one.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from xsp import __version__
from xsp.errors import ExportError
from xsp.export.endpoint import Endpoint
from xsp.export.protobuf import Chunk

SUFFIX = ".spool"
DAMAGED = ".damaged"

_MAGIC = b"XSPSPOOL\x00\x00\x00\x01"
_PREFIX = struct.Struct("<12sII")
_MARK = b"\xf5XSP"
_FRAME = struct.Struct("<4scIII")
_SIZES = struct.Struct("<II")
_PENDING, _ACCEPTED = b"P", b"A"
_STATE_OFFSET = len(_MARK)
_DAY_S = 24 * 3600
# For the numbers that are known only at the end.
_ROOM = 24


@dataclass(frozen=True, slots=True)
class Frame:
    """One request in a file.

    Attributes:
        chunk: The request.
        pending: Whether it still has to be sent.
        offset: Where it begins, in bytes.
    """

    chunk: Chunk
    pending: bool
    offset: int


def folder() -> Path:
    """Return where spool files are: `$XSP_SPOOL_DIR`, or `xsp/spool` among the user's state."""
    chosen = os.environ.get("XSP_SPOOL_DIR")
    if chosen:
        return Path(os.path.expanduser(chosen))
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification has relative paths ignored.
    root = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    return root / "xsp" / "spool"


class Writer:
    """Keeps chunks in a new file, which appears under its name when it is complete.

    There is no file without a chunk. What the disk refuses is no exception: `problem`
    tells it, and nothing is kept.

    Attributes:
        spans: How many spans have been kept.
        problem: Why nothing can be kept; None: all is well.
    """

    def __init__(self, endpoint: Endpoint, *, name: str, trace_id: bytes) -> None:
        self._header = {
            "endpoint": endpoint.url,
            "path": endpoint.path,
            "name": name,
            "trace_id": trace_id.hex(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "xsp": __version__,
        }
        self._path = folder() / _file_name(name, trace_id)
        self._file: IO[bytes] | None = None
        self.spans = 0
        self.problem: OSError | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After `finish` there is nothing left to discard.
        self._discard()

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        if self.problem is not None:
            return
        try:
            if self._file is None:
                self._file = self._begin()
            self._file.write(_frame(chunk))
        except OSError as error:
            self._give_up(error)
            return
        self.spans += chunk.spans

    def finish(self) -> Path | None:
        """Return the complete file, safely on the disk; None if there is none."""
        if self._file is None:
            return None
        try:
            self._file.seek(0)
            self._file.write(self._encoded_header())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._partial, self._path)
        except OSError as error:
            self._give_up(error)
            return None
        self._file = None
        # The file is there; some file systems cannot do more for it.
        with suppress(OSError):
            _sync_folder(self._path.parent)
        return self._path

    @property
    def _partial(self) -> Path:
        return self._path.with_name(f".{self._path.name}.part")

    def _begin(self) -> IO[bytes]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(self._path.parent)
        descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        file = os.fdopen(descriptor, "wb")
        file.write(self._encoded_header())
        return file

    def _encoded_header(self) -> bytes:
        width = len(json.dumps(self._header | {"spans": 0})) + _ROOM
        header = json.dumps(self._header | {"spans": self.spans}).ljust(width).encode("ascii")
        return _PREFIX.pack(_MAGIC, len(header), zlib.crc32(header)) + header

    def _give_up(self, error: OSError) -> None:
        self.problem = error
        self.spans = 0
        self._discard()

    def _discard(self) -> None:
        if self._file is not None:
            # What it still holds back may find no room either.
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._partial.unlink()
            self._file = None


class Spool:
    """An open spool file that nobody else sends at the same time.

    Attributes:
        path: The file.
        header: `endpoint`, `path`, `name`, `trace_id`, `spans`, `created`, `xsp`.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._descriptor = file.fileno()
        size = os.fstat(self._descriptor).st_size
        self._data = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if size else b""
        try:
            self.header, self._start = self._read_header()
        except ExportError:
            self.close()
            raise

    def frames(self) -> Iterator[Frame]:
        """Yield the intact frames; what is damaged is passed over."""
        at = self._start
        while (at := self._data.find(_MARK, at)) >= 0:
            frame = self._frame_at(at)
            if frame is None:
                at += 1
            else:
                yield frame
                at += _FRAME.size + len(frame.chunk.body)

    def accept(self, frame: Frame) -> None:
        """Note that a frame has been accepted, safely on the disk.

        Raises:
            ExportError: It cannot be noted.
        """
        try:
            os.pwrite(self._descriptor, _ACCEPTED, frame.offset + _STATE_OFFSET)
            os.fsync(self._descriptor)
        except OSError as error:
            raise ExportError(
                f"{self.path}: that {frame.chunk.spans:,} spans were accepted cannot be noted "
                f"({error.strerror}); they would be sent again, under the same ids: check the disk"
            ) from error

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink()

    def set_aside(self) -> Path:
        """Return the file under a name that is not sent again."""
        aside = self.path.with_name(self.path.name + DAMAGED)
        self.path.rename(aside)
        return aside

    def close(self) -> None:
        """Let go of the file's content."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    def _frame_at(self, at: int) -> Frame | None:
        head = self._data[at : at + _FRAME.size]
        if len(head) < _FRAME.size:
            return None
        _, state, spans, length, checksum = _FRAME.unpack(head)
        start = at + _FRAME.size
        if start + length > len(self._data) or state not in (_PENDING, _ACCEPTED):
            return None
        body = self._data[start : start + length]
        if _checksum(spans, body) != checksum:
            return None
        return Frame(Chunk(body, spans), state == _PENDING, at)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        prefix = self._data[: _PREFIX.size]
        if len(prefix) == _PREFIX.size:
            magic, length, checksum = _PREFIX.unpack(prefix)
            header = self._data[_PREFIX.size : _PREFIX.size + length]
            if magic == _MAGIC and zlib.crc32(header) == checksum:
                return json.loads(header), _PREFIX.size + length
        # A saved trace given by mistake is nothing to delete.
        then = " and delete this file" if self.path.suffix == SUFFIX else ", without --spool"
        raise ExportError(
            f"{self.path} is no spool file, or its beginning is damaged: nothing of it was sent; "
            f"export the saved trace (xsp export FILE --to ...){then}"
        )


@contextmanager
def opened(path: Path) -> Iterator[Spool]:
    """Open a spool file, for this process alone.

    Raises:
        ExportError: It is not there, in use, or no spool file.
    """
    try:
        file = path.open("r+b")
    except OSError as error:
        raise ExportError(
            f"{path} cannot be opened: {error.strerror}; perhaps it has been sent already"
        ) from error
    with file:
        _lock(path, file)
        spool = Spool(path, file)
        try:
            yield spool
        finally:
            spool.close()


def _lock(path: Path, file: IO[bytes]) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ExportError(f"{path} is being sent by another process: let it finish") from error
    # Between opening and locking another process may have sent and deleted it.
    if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
        raise ExportError(f"{path} has just been sent by another process")


def _frame(chunk: Chunk) -> bytes:
    checksum = _checksum(chunk.spans, chunk.body)
    head = _FRAME.pack(_MARK, _PENDING, chunk.spans, len(chunk.body), checksum)
    return head + chunk.body


def _checksum(spans: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_SIZES.pack(spans, len(body))))


def _file_name(name: str, trace_id: bytes) -> str:
    """Return a name that sorts by time and says what it is."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    speaking = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40].strip("-") or "trace"
    return f"{stamp}-{speaking}-{trace_id.hex()[:8]}-{secrets.token_hex(2)}{SUFFIX}"


def _sweep(folder: Path) -> None:
    """Remove the incomplete files of processes that were killed, a day after that."""
    for stale in folder.glob(f".*{SUFFIX}.part"):
        with suppress(OSError):
            if stale.stat().st_mtime < time.time() - _DAY_S:
                stale.unlink()


def _sync_folder(path: Path) -> None:
    """Make a new name in a folder outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
