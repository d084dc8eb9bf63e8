"""The folder of results: rows and traces in, kept there whatever ends the run, and read again.

results/
├── .zoo.lock              held while a run writes into the folder
├── results.parquet        a row for each point and machine
├── results.journal        rows since that file was written, a line each
└── traces/                a trace for each point that was measured
    └── resnet18.b8.1f0c2a9e.xsp
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from xsp.errors import ExportError
from xsp.machine import check_writable, replacing
from xsp.sweep import Point, changes
from xsp.zoo.results.basis import machine_of, text_of
from xsp.zoo.results.column import Row
from xsp.zoo.results.journal import Journal
from xsp.zoo.results.reading import JOURNAL, TABLE, stored
from xsp.zoo.results.row import facts_of, is_fact
from xsp.zoo.results.table import COMPLETE, MEASURED, Table
from xsp.zoo.task import Task

TRACES = "traces"
_LOCK = ".zoo.lock"
_FEWEST = 500  # rows of the journal at which the table is written anew
_PART = 10  # or this part of all rows, so that the work for each row stays the same
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120  # characters of a model's name in a file's, which file systems limit to 255 bytes

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
        TraceFormatError: Its table is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = stored(path)
        self.notes = found.notes
        self._table = found.table
        self._journalled = found.journalled

    def kept(self, task: Task, point: Point, bases: Bases) -> Row | None:
        """Return the complete result of a point that need not be measured again.

        Args:
            task: The task that the point is of.
            point: The point.
            bases: What a result may rest on, such as a basis for each machine.
        """
        known = list(bases)
        rows = self._table.rows(task.model, point.key)
        return next((row for row in rows if _good(row, known, self.path)), None)

    def why_again(self, task: Task, point: Point, bases: Bases) -> str:
        """Return why the result of a point is not good any more; empty where it is, or none is."""
        known = list(bases)
        whys = []
        for row in self._table.rows(task.model, point.key):
            if row["status"] in COMPLETE:
                why = _why(row, known, self.path)
                if not why:
                    return ""
                whys.append(why)
        return whys[0] if whys else ""

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
        self._sweep()

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
            self._drop_trace(old, name)
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

    def _sweep(self) -> None:
        """Delete the traces that no row names: a run was killed while it kept one."""
        named = set(self._table.frame()["trace"])
        for trace in (self.path / TRACES).glob("*.xsp"):
            if f"{TRACES}/{trace.name}" not in named:
                trace.unlink(missing_ok=True)

    def _drop_trace(self, old: Row, name: str | None) -> None:
        """Delete the trace of a row whose place another has taken."""
        trace = old.get("trace")  # rows that were read from the journal lack what is null
        if trace and trace != name:
            (self.path / trace).unlink(missing_ok=True)


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
    with (path / _LOCK).open("ab") as lock:
        try:
            # The system lets go of it when this process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ExportError(
                f"another run writes into {path}: wait for its end, or choose another folder (-o)"
            ) from error
        folder = Folder(path)
        try:
            yield folder
        finally:
            folder.close()


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


def _good(row: Row, bases: list[Mapping[str, str]], folder: Path) -> bool:
    return row["status"] in COMPLETE and not _why(row, bases, folder)


def _why(row: Row, bases: list[Mapping[str, str]], folder: Path) -> str:
    """Return why a complete row does not hold for any basis; empty where it does for one."""
    same = [basis for basis in bases if machine_of(basis) == row["machine"]]
    text = row["basis"]
    if not any(text_of(basis) == text for basis in same):
        before = json.loads(text)
        found: list[list[str]] = [changes(before, basis) for basis in same or bases]
        if not found:
            return "no machine is known"
        if all(found):
            fewest: list[str] = min(found, key=len)
            return "; ".join(fewest)
    trace = row.get("trace")
    if row["status"] == MEASURED and trace and not (folder / trace).is_file():
        return f"its trace {trace} is missing"
    return ""
