"""Opens a file for importers, and unpacks a file that gzip compressed.

What is read is counted on the way: for a progress bar, and so that a file which is larger than
the machine's memory is refused before it fills that memory.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from xsp.errors import TraceFormatError

_GZIP = b"\x1f\x8b"
_HEAD = 64 * 1024  # bytes by which the format of a file is told
_PIECE = 1 << 20  # bytes that are read at once where all is read
_SPACE = 5  # times the content: so much memory its spans take, as Kineto's do


def _told_nobody(count: int) -> None:
    """Take no notice of how many bytes were read."""


@dataclass(frozen=True)
class Source:
    """A file that is to be read.

    Attributes:
        path: The file.
        told: Called with a number of bytes whenever as many more of the file, as it lies on the
            disk, have been read.
    """

    path: Path
    told: Callable[[int], None] = _told_nobody

    @cached_property
    def packed(self) -> bool:
        """Whether the file is compressed by gzip."""
        with self.path.open("rb") as file:
            return file.read(len(_GZIP)) == _GZIP

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the content, unpacked, as many as a format is told by.

        Of a file whose end is missing or damaged, those that are whole.
        """
        with self.path.open("rb") as file:
            content = gzip.GzipFile(fileobj=file) if self.packed else file
            return _beginning(content)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Yield the content, unpacked, as a file to be read from its beginning.

        Raises:
            TraceFormatError: The content is too large for the memory that is available: at once,
                or for a compressed file when so much of it has been read.
        """
        most = _available_memory() // _SPACE
        if not self.packed and self.path.stat().st_size > most:
            raise self._too_large(most)
        with self.path.open("rb") as file:
            counted = _Counted(file, self.told)
            if not self.packed:
                yield io.BufferedReader(counted, _PIECE)
                return
            with gzip.GzipFile(fileobj=cast("BinaryIO", io.BufferedReader(counted))) as unpacked:
                yield io.BufferedReader(_Counted(unpacked, self._limit(most)), _PIECE)

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the path of a file with the content, for readers that need one (SQLite)."""
        if not self.packed:
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix="xsp-") as copy, self.path.open("rb") as file:
            counted = io.BufferedReader(_Counted(file, self.told))
            with gzip.GzipFile(fileobj=cast("BinaryIO", counted)) as content:
                shutil.copyfileobj(content, copy, _PIECE)
            copy.flush()
            yield Path(copy.name)

    def _limit(self, most: int) -> Callable[[int], None]:
        """Return a function that counts bytes, and refuses the file where they become too many."""
        left = most

        def take(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise self._too_large(most)

        return take

    def _too_large(self, most: int) -> TraceFormatError:
        unpacked = "unpacked, " if self.packed else ""
        return TraceFormatError(
            f"{self.path} is too large for this machine: {unpacked}it holds more than the "
            f"{most / 1e9:.1f} GB that can be read in the memory which is available now; read it "
            "on a machine with more memory, or record fewer steps"
        )


class _Counted(io.RawIOBase):
    """A file of which is told how many bytes are read."""

    def __init__(
        self, file: io.BufferedReader | gzip.GzipFile, told: Callable[[int], None]
    ) -> None:
        self._file, self._told = file, told

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read up to as many bytes as the buffer has room for."""
        part = self._file.read1(len(buffer))
        buffer[: len(part)] = part
        self._told(len(part))
        return len(part)

    def readall(self) -> bytes:
        """Read to the end, in pieces."""
        parts = []
        while part := self.read(_PIECE):
            parts.append(part)
        return b"".join(parts)


def _beginning(content: io.BufferedReader | gzip.GzipFile) -> bytes:
    """Return the first bytes of a file, or those before the place where it is damaged."""
    head = b""
    while len(head) < _HEAD:
        try:
            part = content.read1(_HEAD - len(head))
        except (EOFError, OSError, zlib.error):
            break
        if not part:
            break
        head += part
    return head


def _available_memory() -> int:
    """Return how many bytes of memory programs may still take."""
    import psutil  # noqa: PLC0415  # needed only where a file is read whole

    return int(psutil.virtual_memory().available)
