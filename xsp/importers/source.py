"""Sources: the path of a file in, its content out, unpacked where it is gzip."""

from __future__ import annotations

import gzip
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

_GZIP = b"\x1f\x8b"
_HEAD = 64 * 1024  # bytes by which the format of a file is told


@dataclass(frozen=True)
class Source:
    """A file that is to be read.

    Attributes:
        path: The file.
    """

    path: Path

    @cached_property
    def packed(self) -> bool:
        """Whether the file is compressed by gzip."""
        with self.path.open("rb") as file:
            return file.read(len(_GZIP)) == _GZIP

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the content, unpacked, as many as a format is told by."""
        with self.open() as file:
            try:
                return file.read(_HEAD)
            except (EOFError, OSError):  # damaged; reading it says what is wrong
                return b""

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Yield the content, unpacked, as a file to be read from its beginning."""
        with self.path.open("rb") as file:
            if self.packed:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield io.BufferedReader(unpacked)
            else:
                yield file

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the path of a file with the content, for readers that need one (SQLite)."""
        if not self.packed:
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix="xsp-") as copy, self.open() as file:
            shutil.copyfileobj(file, copy)
            copy.flush()
            yield Path(copy.name)
