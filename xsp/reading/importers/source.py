"""Opens a file for importers, and unpacks it where gzip compressed it, or a zip archive holds it.

What is read is counted on the way: for a progress bar, and so that a file which is larger than
the machine's memory is refused before it fills that memory.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from xsp.errors import TraceFormatError
from xsp.text import counted

_GZIP, _ZIP = b"\x1f\x8b", b"PK\3\4"
_ASIDE = "__MACOSX/"  # what macOS puts beside the files of an archive
_LAYERS = 2  # of gzip: a packed trace may lie in an archive, or be packed once more
_HEAD = 64 * 1024  # bytes by which the format of a file is told
_PIECE = 1 << 20  # bytes that are read at once where all is read
_SPACE = 5  # times the content: so much memory its spans take, as Kineto's do


if TYPE_CHECKING:
    _Content = io.BufferedReader[Any] | gzip.GzipFile | zipfile.ZipExtFile


def _told_nobody(count: int) -> None:
    """Take no notice of how many bytes were read."""


@dataclass(frozen=True)
class Source:
    """A file that is to be read, or a folder.

    Attributes:
        path: The file or folder.
        told: Called with a number of bytes whenever as many more of the file, as it lies on the
            disk, have been read.
    """

    path: Path
    told: Callable[[int], None] = _told_nobody

    @cached_property
    def packed(self) -> bool:
        """Whether the file is compressed: by gzip, or in a zip archive."""
        with self.path.open("rb") as file:
            return file.read(len(_ZIP)).startswith((_GZIP, _ZIP))

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the content, unpacked, as many as a format is told by.

        Of a file whose end is missing or damaged, those that are whole; of a folder none.

        Raises:
            TraceFormatError: A zip archive does not hold one file.
        """
        if self.path.is_dir():
            return b""
        with self.path.open("rb") as file, ExitStack() as stack:
            return _beginning(self._content(file, stack))

    @property
    def room(self) -> int:
        """How many bytes of content the available memory has room for."""
        return _available_memory() // _SPACE

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Yield the content, unpacked, as a file to be read from its beginning.

        Raises:
            TraceFormatError: The content is too large for the memory that is available: at once,
                or for a compressed file when so much of it has been read; or a zip archive does
                not hold one file.
        """
        most = self.room
        if not self.packed and self.path.stat().st_size > most:
            raise self.too_large(most)
        with self.path.open("rb") as file, ExitStack() as stack:
            noted = _Counted(file, self.told)
            if not self.packed:
                yield io.BufferedReader(noted, _PIECE)
                return
            content = self._content(io.BufferedReader(noted), stack)
            yield io.BufferedReader(_Counted(content, self._limit(most)), _PIECE)

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the path of a file with the content, for readers that need one (SQLite)."""
        if not self.packed:
            yield self.path
            return
        with (
            tempfile.NamedTemporaryFile(prefix="xsp-") as copy,
            self.path.open("rb") as file,
            ExitStack() as stack,
        ):
            noted = io.BufferedReader(_Counted(file, self.told))
            shutil.copyfileobj(self._content(noted, stack), copy, _PIECE)
            copy.flush()
            yield Path(copy.name)

    def _content(self, file: io.BufferedReader[Any], stack: ExitStack) -> _Content:
        """Return the unpacked content of an open file, to be closed by the stack."""
        content: _Content = file
        if file.peek(len(_ZIP)).startswith(_ZIP):
            content = stack.enter_context(self._member(file, stack))
        for _ in range(_LAYERS):
            if not _is_packed(content):
                break
            content = stack.enter_context(
                gzip.GzipFile(None, "rb", fileobj=cast("BinaryIO", content))
            )
        return content

    def _member(self, file: io.BufferedReader[Any], stack: ExitStack) -> zipfile.ZipExtFile:
        try:
            archive = stack.enter_context(zipfile.ZipFile(file))
        except zipfile.BadZipFile as error:
            raise TraceFormatError(
                f"{self.path} is a damaged zip archive ({error}). Pack the recording again."
            ) from error
        names = [
            each.filename
            for each in archive.infolist()
            if not each.is_dir() and not each.filename.startswith(_ASIDE)
        ]
        if len(names) != 1:
            raise TraceFormatError(
                f"{self.path} is a zip archive of {counted(len(names), 'file')}. Unpack it, and "
                "name those that are recordings."
            )
        return cast("zipfile.ZipExtFile", archive.open(names[0]))

    def _limit(self, most: int) -> Callable[[int], None]:
        """Return a function that counts bytes, and refuses the file where they become too many."""
        left = most

        def take(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise self.too_large(most)

        return take

    def too_large(self, most: int) -> TraceFormatError:
        """Return the error that the content has more bytes than these, which there is room for."""
        unpacked = "unpacked, " if self.packed else ""
        return TraceFormatError(
            f"{self.path} is too large for this machine: {unpacked}it holds more than the "
            f"{most / 1e9:.1f} GB that can be read in the memory which is available now; read it "
            "on a machine with more memory, or record fewer steps"
        )


class _Counted(io.RawIOBase):
    """A file of which is told how many bytes are read."""

    def __init__(self, file: _Content, told: Callable[[int], None]) -> None:
        self._file, self._told = file, told

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

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


def _is_packed(content: _Content) -> bool:
    """Tell whether gzip packed what comes; what is damaged is for the reader to find."""
    try:
        return content.peek(len(_GZIP)).startswith(_GZIP)
    except (EOFError, OSError, zlib.error):
        return False


def _beginning(content: _Content) -> bytes:
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
