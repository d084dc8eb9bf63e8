"""The folder of a sweep: results in, kept there as traces and one table, and read again.

results/
├── .sweep.lock            held while a sweep runs
├── sweep.parquet          a row for each point
├── resnet18.b1.xsp        a trace for each point that was measured
└── resnet18.b2.xsp
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from xsp.errors import ExportError, TraceFormatError, XspError
from xsp.machine import check_writable
from xsp.sweep import table
from xsp.sweep.basis import changes
from xsp.sweep.point import Point
from xsp.sweep.result import Result, Status
from xsp.trace import Trace, load

_LOCK = ".sweep.lock"


class Folder:
    """The results of a sweep, those of earlier sweeps of the same target among them.

    Args:
        path: The folder.
        basis: What results of now rest on beside their settings.

    Raises:
        ExportError: The folder holds the results of another target.
        TraceFormatError: Its table is damaged.
    """

    def __init__(self, path: Path, basis: Mapping[str, str]) -> None:
        self.path = path
        self.basis = dict(basis)
        self._results = {result.key: result for result in table.read(path)}
        self._readable: set[str] = set()  # keys of results whose traces were read
        others = {result.basis.get("target") for result in self._results.values()}
        if other := next((str(one) for one in others if one != basis["target"]), None):
            raise ExportError(
                f"{path} holds a sweep of {other}, and not of {basis['target']}: choose another "
                "folder with -o"
            )

    def kept(self, point: Point) -> Result | None:
        """Return the complete result of a point that need not be measured again."""
        result = self._results.get(point.key)
        if result is None or not result.complete or self.why_again(point):
            return None
        return result

    def why_again(self, point: Point) -> str:
        """Return why the result of a point is not good any more; empty where it is, or none is."""
        result = self._results.get(point.key)
        if result is None or not result.complete:
            return ""
        if differences := changes(result.basis, self.basis):
            return "; ".join(differences)
        return self._unreadable(result)

    def _unreadable(self, result: Result) -> str:
        """Return why the trace of a result cannot be read; empty where it can, or there is none."""
        if result.status is Status.MEASURED and result.key not in self._readable:
            try:
                self.trace(result)
            except (OSError, XspError) as error:
                return f"its trace cannot be read: {error}"
            self._readable.add(result.key)
        return ""

    def keep(self, result: Result) -> None:
        """Put a result into the table, in the place of an older one of the same settings.

        Raises:
            ExportError: The table could not be written.
        """
        self._results[result.key] = result
        table.write(self._results.values(), self.path)

    def trace(self, result: Result) -> Trace:
        """Return the trace of a result that has one.

        Raises:
            TraceFormatError: The trace is damaged.
            OSError: The trace's file is missing.
        """
        if result.trace is None or Path(result.trace).name != result.trace:
            raise TraceFormatError(f"{self.path} has no trace of {result.key}")
        return load(self.path / result.trace)


@contextmanager
def opened(path: Path, basis: Mapping[str, str]) -> Iterator[Folder]:
    """Yield the folder of a sweep, made if it is missing, and keep other sweeps out of it.

    Raises:
        ExportError: The folder cannot be written, another sweep writes into it, or it holds the
            results of another target.
        TraceFormatError: Its table is damaged.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be made: {error.strerror}; choose another (-o)"
        ) from error
    check_writable(path / table.TABLE)
    with (path / _LOCK).open("ab") as lock:
        try:
            # The system lets go of it when this process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ExportError(
                f"another sweep writes into {path}: wait for its end, or choose another folder (-o)"
            ) from error
        yield Folder(path, basis)


def peeked(path: Path, basis: Mapping[str, str]) -> Folder:
    """Return the folder of a sweep to look at, whether it is there yet or not."""
    return Folder(path, basis)
