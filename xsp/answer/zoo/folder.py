"""The folder of a zoo's results: keeps rows and traces whatever ends the run, and reads them again.

results/
├── .zoo.lock              held while a run writes into the folder
├── results.parquet        a row for each point and machine
├── results.journal        rows since that file was written, a line each
└── traces/                a trace for each point that was measured
    └── resnet18.b8.1f0c2a9e.xsp

A row is there once it was appended to the journal, whatever ends the process or the machine; a line
that was being written then is left out when the journal is read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from filelock import FileLock, Timeout

from xsp.answer.zoo.row import FACT, MEASURED, SCHEMA, SET, Row, facts_of, is_fact
from xsp.answer.zoo.table import COMPLETE, Table, frame_of, with_best
from xsp.answer.zoo.task import Point, Task, basis_text, changes, machine_of
from xsp.errors import ExportError, TraceFormatError
from xsp.machine import check_writable, replacing
from xsp.text import counted
from xsp.trace import DAMAGE

TABLE, JOURNAL, TRACES = "results.parquet", "results.journal", "traces"
_OF_SWEEP = "sweep.parquet"  # which earlier versions of `xsp sweep` wrote
_LOCK = ".zoo.lock"
_NEEDED = ("model", "settings", "machine", "status")
_TRIES = 5
_FEWEST = 500  # rows of the journal at which the table is written anew
_PART = 10  # or this part of all rows, so that the work for each row stays the same
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120  # characters of a model's name in a file's, which file systems limit to 255 bytes
_END = b"\n"

Bases = Iterable[Mapping[str, str]]


class Kept:
    """The results of a zoo to look at, of a run under way as well.

    Args:
        path: The folder, which need not be there.

    Attributes:
        path: The folder.
        notes: What to know of the results in it, such as columns that an older xsp did not write;
            a sentence each.

    Raises:
        TraceFormatError: Its table is damaged, or is none of a zoo.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        journal = path / JOURNAL
        for _ in range(_TRIES):
            # The journal first: its rows may move to the table meanwhile, and never back.
            before = journal.stat().st_ino if journal.exists() else None
            rows, damaged = _rows_in(journal)
            frame, self.notes = _stored(path)
            # Another journal has taken the place of one whose rows went to the table.
            if before == (journal.stat().st_ino if journal.exists() else None):
                break
        self._table, self._journalled = Table(frame), len(rows)
        for row in rows:
            self._table.put(row)
        if damaged:
            lines = f"{counted(damaged, 'line')} of {journal}"
            self.notes += (f"{lines} cannot be read: what stood there is measured again",)

    def kept(self, task: Task, point: Point, bases: Bases) -> Row | None:
        """Return the complete result of a point that need not be measured again.

        Args:
            task: The task that the point is of.
            point: The point.
            bases: Facts that a result may rest on, such as a basis for each machine.
        """
        known = list(bases)
        for row in self._table.rows(task.model, point.key):
            if row["status"] in COMPLETE and not _why(row, known, self.path):
                return row
        return None

    def why_again(self, task: Task, point: Point, bases: Bases) -> str:
        """Return why the result of a point is not good any more; empty where it is, or none is."""
        known = list(bases)
        rows = self._table.rows(task.model, point.key)
        whys = [_why(row, known, self.path) for row in rows if row["status"] in COMPLETE]
        return whys[0] if whys and all(whys) else ""

    def frame(self) -> pl.DataFrame:
        """Return all results; docs/zoo-results.md documents the columns."""
        return self._table.frame()

    def parted(self, tasks: Iterable[Task]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the results of the points of some tasks, and all others, which stay as well."""
        points = [(task.model, point.key) for task in tasks for point in task.points]
        asked = pl.DataFrame(points, {"model": pl.String, "settings": pl.String}, orient="row")
        frame = self.frame()
        mine, others = (
            frame.join(asked, on=asked.columns, how=how, maintain_order="left")
            for how in ("semi", "anti")
        )
        return mine, others


class Folder(Kept):
    """The results of a zoo to add to, those of earlier runs among them; for one thread.

    Args:
        path: The folder.

    Raises:
        ExportError: The folder cannot be written.
        TraceFormatError: Its table is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path / JOURNAL)  # cut behind its last whole line, then read
        super().__init__(path)
        # Traces that no row names: a run was killed while it kept one.
        named = set(self._table.frame()["trace"])
        for trace in (path / TRACES).glob("*.xsp"):
            if f"{TRACES}/{trace.name}" not in named:
                trace.unlink(missing_ok=True)

    def keep(self, row: Row, trace: Path | None) -> Row:
        """Keep a row and its trace, and return the row as it is kept.

        Once this returns both outlast a crash. The row takes the place of an older one of the same
        model, settings and machine.

        Args:
            row: As `row_of` or `row_without` returned it.
            trace: File of the trace, which is moved into the folder; None: there is none.

        Raises:
            ExportError: They could not be written; what was kept before still is.
        """
        name = None if trace is None else _moved(trace, self.path, row)
        row = {**row, "trace": name}
        for old in self._add(row):
            gone = old.get("trace")  # rows that were read from the journal lack what is null
            if gone and gone != name:
                (self.path / gone).unlink(missing_ok=True)
        return row

    def renewed(self, row: Row, task: Task) -> Row:
        """Return a row with what the zoo says of its model now, and keep it if that is new.

        Args:
            row: A row of this folder.
            task: The task that it is of.

        Raises:
            ExportError: It could not be written.
        """
        now = facts_of(task)
        before = {name: row[name] for name in row if is_fact(name) and row[name] is not None}
        # In a column of unlike values they are texts.
        if before.keys() == now.keys() and all(before[n] in (now[n], str(now[n])) for n in now):
            return row
        row = {**row, **dict.fromkeys(before), **now}
        self._add(row)
        return row

    def write(self) -> None:
        """Write the table anew, whole or not at all; the journal is empty then.

        Raises:
            ExportError: There is no room for it; all rows are in the journal still.
        """
        frame = self._table.frame()
        with replacing(self.path / TABLE) as file:
            frame.write_parquet(file)
        self._journal.clear()
        self._table, self._journalled = Table(frame), 0

    def close(self) -> None:
        """Write the table, if rows were kept since it was written, and close the journal."""
        try:
            if self._journalled:
                self.write()
        finally:
            self._journal.close()

    def _add(self, row: Row) -> list[Row]:
        """Add a row, and return those that it takes the place of."""
        self._journal.append(row)
        gone = self._table.put(row)
        self._journalled += 1
        if self._journalled >= max(_FEWEST, len(self._table) // _PART):
            self.write()
        return gone


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
        known = {name: value for name, value in row.items() if value is not None}
        try:
            rest = memoryview(msgspec.json.encode(known) + _END)
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


@contextmanager
def opened(path: Path) -> Iterator[Folder]:
    """Yield the folder of a zoo's results, made if it is missing, and keep other runs out of it.

    Raises:
        ExportError: The folder cannot be written, or another run writes into it.
        TraceFormatError: Its table is damaged.
    """
    try:
        (path / TRACES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be made: {error.strerror}; choose another (-o)"
        ) from error
    check_writable(path / TABLE)
    with ExitStack() as stack:
        try:
            # The system lets go of it when this process ends, however it ends.
            stack.enter_context(FileLock(path / _LOCK, timeout=0))
        except Timeout as error:
            raise ExportError(
                f"another run writes into {path}: wait for its end, or choose another folder (-o)"
            ) from error
        yield stack.enter_context(closing(Folder(path)))


def read_results(path: str | PathLike[str]) -> pl.DataFrame:
    """Return the results in a folder, of a run under way as well; or of a table copied from one.

    Args:
        path: The folder, or a Parquet file.

    Raises:
        TraceFormatError: There are no results, or they are damaged.
    """
    return noted_results(path)[0]


def noted_results(path: str | PathLike[str]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the results as `read_results` does, and sentences on what to know of them.

    Raises:
        TraceFormatError: There are no results, or they are damaged.
    """
    path = Path(path)
    if path.is_file():
        return _table(path)
    if not any((path / name).exists() for name in (TABLE, JOURNAL, _OF_SWEEP)):
        raise TraceFormatError(f"{path} holds no results of a zoo: xsp zoo run writes some (-o)")
    found = Kept(path)
    return found.frame(), found.notes


def trace_name(row: Row) -> str:
    """Return the name of the file of a row's trace, unique over models, settings and machines.

    What is measured again has another name, so that a row and the trace that it names belong
    together, whenever the run ends.
    """
    marks = f".b{row['batch']}" if row.get("batch") else ""
    told = ("model", "settings", "machine", "basis", "started", "took_s")
    identity = json.dumps([row.get(name) for name in told])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{_PLAIN.sub('_', row['model'])[:_LONGEST]}{marks}.{digest}.xsp"


def _rows_in(journal: Path) -> tuple[list[Row], int]:
    """Return the rows of a journal, and how many whole lines of it are none; none without a file.

    What lies behind the last end of a line was being written, and does not count.
    """
    rows: list[Row] = []
    damaged = 0
    lines = journal.read_bytes().split(_END)[:-1] if journal.exists() else []
    for line in lines:
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            damaged += 1
    return rows, damaged


def _stored(folder: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the table in a folder, and what to know of it; an empty one where there is none."""
    for name in (TABLE, _OF_SWEEP):
        if (folder / name).exists():
            return _table(folder / name)
    return frame_of([]), ()


def _table(path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the table in a file, with all columns, and what to know of it."""
    try:
        frame = pl.read_parquet(path)
        if path.name == _OF_SWEEP:
            # A table of earlier versions of `xsp sweep` as one of a zoo of one model.
            bases: list[dict[str, str]] = [json.loads(text) for text in frame["basis"]]
            facts: dict[str, list[str | None]] = {
                "model": [basis.get("target") for basis in bases],
                "target": [basis.get("target") for basis in bases],
                "machine": [machine_of(basis) for basis in bases],
                "cpu": [basis.get("cpu") for basis in bases],
                "basis": [basis_text(basis) for basis in bases],
            }
            frame = frame.with_columns(
                pl.Series(name, of, dtype=pl.String) for name, of in facts.items()
            )
        frame.select(_NEEDED)  # without which nothing is known of any row
        missing = [name for name in SCHEMA if name not in frame.columns]
        known = [pl.col(name).cast(dtype) for name, dtype in SCHEMA.items() if name not in missing]
        empty = [pl.lit(None, dtype=SCHEMA[name]).alias(name) for name in missing]
        more = [name for name in frame.columns if name not in SCHEMA]
        complete = frame.with_columns(*known, *empty).select(*SCHEMA, *more)
    except (*DAMAGE, ValueError) as error:
        raise TraceFormatError(
            f"{path} is damaged, or is no table of a zoo's results ({error}). Choose another "
            "folder, or delete the file to measure all models again."
        ) from error
    if path.name == _OF_SWEEP:
        return with_best(complete), ()
    return complete, tuple(_notes(path, missing, more))


def _notes(path: Path, missing: Sequence[str], more: Sequence[str]) -> Iterator[str]:
    if missing:
        said = ", ".join(missing)
        yield f"{path} was written by an older xsp: not known of its results are {said}"
    if foreign := [name for name in more if not name.startswith((SET, FACT))]:
        yield f"{path} has columns that this xsp does not know: {', '.join(foreign)}"


def _refusal(path: Path, error: OSError) -> ExportError:
    return ExportError(
        f"{path} cannot be written: {error.strerror or error}; all results before are kept: free "
        "some space, or set right what prevents it, and give the same command again"
    )


def _moved(trace: Path, folder: Path, row: Row) -> str:
    """Move a trace into the folder, and return its place in there."""
    name = f"{TRACES}/{trace_name(row)}"
    target = folder / name
    try:
        os.replace(trace, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise ExportError(f"{target} cannot be written: {error.strerror}") from error
        with replacing(target) as file, trace.open("rb") as source:
            shutil.copyfileobj(source, file)
        trace.unlink()
    return name


def _why(row: Row, bases: Sequence[Mapping[str, str]], folder: Path) -> str:
    """Return why a complete row does not hold for any basis; empty where it does for one."""
    same = [basis for basis in bases if machine_of(basis) == row["machine"]]
    if not any(basis_text(basis) == row["basis"] for basis in same):
        before = json.loads(row["basis"])
        differing: list[list[str]] = [changes(before, basis) for basis in same or bases]
        if not differing:
            return "no machine is known"
        if all(differing):
            fewest: list[str] = min(differing, key=len)
            return "; ".join(fewest)
    trace = row.get("trace")
    if row["status"] == MEASURED and trace and not (folder / trace).is_file():
        return f"its trace {trace} is missing"
    return ""
