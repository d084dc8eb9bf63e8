"""The journal of results: rows in, a line of a file each that outlasts a crash, and rows again out.

A row is there once `append` has returned, whatever ends the process or the machine; a line that
was being written then is left out when the journal is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from xsp.errors import ExportError
from xsp.machine import replacing
from xsp.zoo.results.column import Row

_END = b"\n"


class Journal:
    """A file to which rows are appended.

    Args:
        path: The file; made if it is missing, and cut behind its last whole line.

    Raises:
        ExportError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            os.ftruncate(self._file, path.read_bytes().rfind(_END) + 1)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise _refusal(path, error) from error

    def append(self, row: Row) -> None:
        """Write a row, and return once it would outlast a crash.

        Raises:
            ExportError: The row could not be written; nothing of it is in the file.
        """
        before, whole = os.lseek(self._file, 0, os.SEEK_CUR), False
        try:
            rest = memoryview(encoded(row))
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fdatasync(self._file)
            whole = True
        except OSError as error:
            raise _refusal(self._path, error) from error
        finally:
            if not whole:  # Ctrl-C among the reasons: what comes next must begin a line
                os.ftruncate(self._file, before)
                os.lseek(self._file, before, os.SEEK_SET)

    def clear(self) -> None:
        """Forget all rows, which are kept elsewhere now.

        The file is another one then, so that whoever reads meanwhile notices.
        """
        with replacing(self._path):
            pass
        os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def encoded(row: Row) -> bytes:
    r"""Return a row as a line, without what is null.

    >>> encoded({"model": "resnet18", "batch": None})
    b'{"model":"resnet18"}\n'
    """
    known = {name: value for name, value in row.items() if value is not None}
    return msgspec.json.encode(known) + _END


def rows_in(path: Path) -> tuple[list[Row], int]:
    """Return the rows of a journal, and how many whole lines of it are none; none without a file.

    What lies behind the last end of a line was being written, and does not count.
    """
    try:
        lines = path.read_bytes().split(_END)[:-1]
    except FileNotFoundError:
        return [], 0
    rows = [row for line in lines if (row := _decoded(line)) is not None]
    return rows, len(lines) - len(rows)


def _decoded(line: bytes) -> Row | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _refusal(path: Path, error: OSError) -> ExportError:
    return ExportError(
        f"{path} cannot be written: {error.strerror or error}; all results before are kept: free "
        "some space, or set right what prevents it, and give the same command again"
    )
