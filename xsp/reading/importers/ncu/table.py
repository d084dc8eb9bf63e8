"""Reads kernels, metrics and rules from the text that `ncu --csv` writes.

Two pages are read. The details page has a line per metric of a kernel, and lines of the rules
that judged the kernel; the raw page has a line per kernel and a column per metric, and the units
of the columns in a line of their own. Around the table lies what Nsight Compute and the program
printed. Of every number the text is returned: what it stands for depends on all the others.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import BinaryIO

import polars as pl

from xsp.errors import TraceFormatError

# Columns that tell the kernel; the others tell of its metrics.
KERNEL = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
METRIC_SCHEMA = {
    "kernel": pl.Int64,  # which row of the kernels
    "metric": pl.String,
    "unit": pl.String,  # as Nsight Compute writes it
    "text": pl.String,
}
_METRIC = ("Metric Name", "Metric Unit", "Metric Value")
_RULE = ("Rule Name", "Rule Description")

_HEADER = re.compile(r'^\s*"?(ID|Process ID)"?,.*?"?Kernel Name"?,', re.MULTILINE)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LONGEST = 1 << 24  # characters of a field; an unclosed quote must not take all memory


@dataclass(frozen=True, slots=True)
class Table:
    """Kernels, metrics and rules of the text.

    Attributes:
        kernels: Texts of the columns `KERNEL`, one row per kernel, in the order of the text; null
            where the text does not have the column.
        metrics: Columns of `METRIC_SCHEMA`, one row per metric of a kernel.
        rules: What rules said of kernels, by row of the kernel.
        cut: How many lines are incomplete; what they tell is left out.
    """

    kernels: pl.DataFrame
    metrics: pl.DataFrame
    rules: Mapping[int, Sequence[str]]
    cut: int


def is_table(head: bytes) -> bool:
    """Tell whether the beginning of a file has the header of one of the pages."""
    encoding = "utf-16" if head.startswith(_UTF_16) else "utf-8-sig"
    return _HEADER.search(head.decode(encoding, errors="replace")) is not None


def read_table(file: BinaryIO, head: bytes) -> Table:
    """Read the kernels, metrics and rules of a file.

    Args:
        file: The file, at its beginning.
        head: Its first bytes, by which its encoding is told.

    Raises:
        TraceFormatError: There is no table of single kernels, or it is no CSV.
    """
    reading = _Reading()
    csv.field_size_limit(_LONGEST)
    try:
        for row in csv.reader(_lines(file, head)):
            reading.take(row)
    except csv.Error as error:
        raise TraceFormatError(
            f"the table is no CSV ({error}): export it again, with --csv"
        ) from None
    return reading.table()


def _lines(file: BinaryIO, head: bytes) -> Iterator[str]:
    """Yield the lines of a file from its first header on.

    A last line that ends within quotes is ended before them, and marked.
    """
    if head.startswith(_UTF_16):
        lines: Iterator[str] = codecs.getreader("utf-16")(file, "replace")
    else:
        lines = map(_decoded, file)
    for line in dropwhile(lambda line: not _HEADER.match(line), lines):
        whole = line.endswith("\n") or not line.count('"') % 2
        yield line if whole else line[: line.rindex('"')] + _CUT


_CUT = "\N{REPLACEMENT CHARACTER}cut"


def _decoded(line: bytes) -> str:
    """Return text: UTF-8 as Nsight Compute writes it, else Latin-1, which any bytes are."""
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        return line.decode("latin-1")


@dataclass(slots=True)
class _Reading:
    """What was read so far, and the header that the next lines are under."""

    header: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    tables: int = 0
    kernels: dict[tuple[object, ...], int] = field(default_factory=dict)
    metrics: list[tuple[int, str, str, str]] = field(default_factory=list)
    rules: dict[int, list[str]] = field(default_factory=dict)
    cut: int = 0

    def take(self, row: list[str]) -> None:
        """Read one line: of the table, or printed by Nsight Compute or by the program."""
        first = row[0].strip() if len(row) > 1 else ""
        if first in ("ID", "Process ID") and "Kernel Name" in row:
            self._begin([name.strip() for name in row])
        elif not self.header:
            return
        elif row and row[-1].endswith(_CUT):
            self.cut += 1
        elif first.isdigit():
            self._detail(row) if "Metric Name" in self.places else self._raw(row)
        elif len(row) == len(self.header) and not any(row[: self.places["Kernel Name"] + 1]):
            self.units = row

    def _begin(self, header: list[str]) -> None:
        if header[0] != "ID":
            raise TraceFormatError(
                "the table sums kernels up and has none of them singly: export it again, "
                "without --print-summary"
            )
        if "Metric Name" in header and "Metric Value" not in header:
            raise TraceFormatError(f"the table lacks its values: its columns are {header}")
        self.header, self.units = header, [""] * len(header)
        self.places = {name: at for at, name in enumerate(header)}
        self.tables += 1

    def _detail(self, row: list[str]) -> None:
        if len(row) <= self.places["Metric Value"]:
            self.cut += 1
            return
        kernel = self._kernel(row)
        name, unit, text = self._texts(row, _METRIC)
        if name:
            self.metrics.append((kernel, name, unit, text))
        rule = ": ".join(filter(None, self._texts(row, _RULE)))
        if rule:
            self.rules.setdefault(kernel, []).append(rule)

    def _raw(self, row: list[str]) -> None:
        if len(row) < len(self.header):
            self.cut += 1
            return
        kernel = self._kernel(row, line=len(self.kernels))
        for name, unit, text in zip(self.header, self.units, row, strict=False):
            if name and name not in KERNEL:
                self.metrics.append((kernel, name, unit, text))

    def _kernel(self, row: list[str], line: int = 0) -> int:
        """Return which kernel a line is about: of the raw page each is about its own."""
        key = (self.tables, line, *self._texts(row, KERNEL))
        return self.kernels.setdefault(key, len(self.kernels))

    def _texts(self, row: list[str], columns: Sequence[str]) -> list[str]:
        """Pick the cells of a line; a column that the line lacks is an empty text."""
        at = (self.places.get(column, len(row)) for column in columns)
        return [row[place].strip() if place < len(row) else "" for place in at]

    def table(self) -> Table:
        """Return all that was read."""
        if not self.tables:
            raise TraceFormatError("there is no table of kernels: export one with ncu --csv")
        kernels = [key[2:] for key in self.kernels]
        return Table(
            pl.DataFrame(kernels, schema=dict.fromkeys(KERNEL, pl.String), orient="row"),
            pl.DataFrame(self.metrics, schema=METRIC_SCHEMA, orient="row"),
            self.rules,
            self.cut,
        )
