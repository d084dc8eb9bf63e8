"""The page on a zoo: writes its results as one HTML file that needs nothing else.

The first screen says of the zoo what all results say together; tables are packed for the page's
script, which draws those rows that can be seen, so that a table may have a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses import ends_of, heading_of, text_of
from xsp.answer.zoo import (
    IDENTITY,
    TABLES,
    ZooTable,
    entry_rows,
    failures,
    findings,
    is_measured,
    labels_of,
    models,
    varying,
    warnings,
)
from xsp.machine import replacing
from xsp.show.page.overview import Tile
from xsp.show.page.packing import pack
from xsp.show.page.picture import embedded
from xsp.show.page.script import ZOO_FILES, bundle, check_installed, library
from xsp.show.plot import KINDS, SERIES
from xsp.text import counted, duration, printable, shorten

# Rows of tables: a page of 100,000 measurements, of however many models, has at most 15 MB.
_MOST_MODELS, _MOST_ROWS, _FEW_ROWS = 100_000, 100_000, 25_000
_GRIDS = ("throughput", "batch", "variants", "thirds")
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "onnxruntime", "transformers", "timm")
_GROUPS = 30  # rows of the table of failures, and of that of warnings
_KEPT_BITS = np.uint32(0xFFFFFC00)  # sign, exponent, and 13 bits of the mantissa
_HALF = np.uint32(0x200)
_LONGEST = 200  # characters of a cell
_KNOWN = (*IDENTITY, "batch", "optimal_batch", "optimal_batch_sure", "best", "differs")
_HIDDEN = ("variant", "machine")
_NOTES = {
    "accuracy": "A bubble is a model. Up and to the left is better.",
    "roofline": "Left of a roof's ridge memory limits a model, right of it arithmetic does.",
    "throughput": "A line that has become flat has its best batch at the left end of that part.",
    "layer-types": "The darker, the more of the latency; shares from a tenth on are written out.",
    "primitives": "The darker, the more of the latency; shares from a tenth on are written out.",
    "thirds": "The first, middle and last third of the layers, in the order of execution.",
}


def zoo_report(results: pl.DataFrame, path: str | PathLike[str], *, name: str) -> Path:
    """Write a page on the results of a zoo: one HTML file that needs no network.

    Args:
        results: The frame of results, of any number of rows.
        path: Where to write the page; an older file of that name is replaced.
        name: What to call the zoo.

    Returns:
        The path.

    Raises:
        ExportError: bokeh or jinja2 is not installed, which `xsp[report]` brings; or the file
            could not be written, and no part of it is left behind.
    """
    text = page_of_zoo(results, name)
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def page_of_zoo(results: pl.DataFrame, name: str) -> str:
    """Return the text of the page on some results.

    Raises:
        ExportError: bokeh or jinja2 is not installed.
    """
    check_installed()
    from xsp.show.page import html  # noqa: PLC0415
    from xsp.show.plot import PAIRS, SCRIPT  # noqa: PLC0415

    results = entry_rows(results)
    heading = heading_of_zoo(results, name)
    models = grid_of(TABLES["models"], results, _MOST_MODELS)
    most = _MOST_ROWS if models.height <= _FEW_ROWS else _FEW_ROWS
    others = [grid_of(TABLES[one], results, most) for one in _GRIDS]
    grids = [models, *(grid for grid in others if grid.says_more)] if results.height else []
    shown, plots = pictures_of_zoo(results)
    return html.page(
        [*library(plots), SCRIPT, bundle(ZOO_FILES)],
        "zoo.html",
        title=heading.name,
        heading=heading,
        grids=grids,
        pictures=shown,
        colors=KINDS,
        series=SERIES,
        data={"zoo": {"plots": plots, "grids": {g.name: g.packed for g in grids}}, "pairs": PAIRS},
    )


class Machine(NamedTuple):
    """A machine of the results: its name, what it is, what ran on it, and how much was measured."""

    host: str
    hardware: str
    versions: str
    measured: str


@dataclass(frozen=True, slots=True)
class Heading:
    """The first screen.

    Attributes:
        name: Name of the zoo.
        measured: What was measured, where and when, in one line.
        tiles: Numbers.
        findings: What all models together say, in sentences.
        machines: The machines.
        failures: What failed and why, grouped: cells of `xsp.zoo.failures`.
        warnings: What to know before trusting numbers, grouped.
        left_out: Groups of failures and of warnings that are not shown.
    """

    name: str
    measured: str
    tiles: tuple[Tile, ...]
    findings: tuple[str, ...]
    machines: tuple[Machine, ...]
    failures: tuple[tuple[str, ...], ...]
    warnings: tuple[tuple[str, ...], ...]
    left_out: tuple[int, int]


def heading_of_zoo(results: pl.DataFrame, name: str) -> Heading:
    """Return the first screen on some results.

    Args:
        results: The frame of results.
        name: What to call them.
    """
    table = models(results)
    machines = tuple(_machines(results))
    failed, doubted = failures(results), warnings(results)
    return Heading(
        name=printable(name),
        measured=" · ".join(_measured(results, machines)),
        tiles=tuple(_tiles(results, table)),
        findings=tuple(f"{line[0].upper()}{line[1:]}." for line in findings(table)),
        machines=machines,
        failures=_cells(failed),
        warnings=_cells(doubted),
        left_out=(max(0, failed.height - _GROUPS), max(0, doubted.height - _GROUPS)),
    )


def _measured(results: pl.DataFrame, machines: tuple[Machine, ...]) -> Iterator[str]:
    yield counted(results["model"].n_unique(), "model")
    if len(machines) == 1:
        yield f"on {machines[0].host}"
        yield machines[0].hardware
    elif machines:
        yield f"on {counted(len(machines), 'machine')}"
    yield from _settings(results)
    days = results["started"].drop_nulls().str.slice(0, 10)
    if days.len():
        first, last = str(days.min()), str(days.max())
        yield first if first == last else f"{first} to {last}"
    versions = sorted(set(results["xsp_version"].drop_nulls().to_list()))
    if versions:
        yield f"xsp {', '.join(map(printable, versions))}"


def _settings(results: pl.DataFrame) -> Iterator[str]:
    """Yield the values of the settings that tell measurements apart, as far as they are few."""
    for name in ("framework", "precision", "device"):
        values = sorted(set(results[name].drop_nulls().to_list()))
        if 0 < len(values) <= 4:  # more would fill the line
            yield ", ".join(map(printable, values))
    batches = sorted(set(results["batch"].drop_nulls().to_list()))
    if batches:
        said = (
            ", ".join(map(str, batches)) if len(batches) <= 8 else f"{batches[0]} to {batches[-1]}"
        )
        yield f"{'batch' if len(batches) == 1 else 'batches'} {said}"


def _tiles(results: pl.DataFrame, table: pl.DataFrame) -> Iterator[Tile]:
    measured = results.filter(is_measured())
    number, whole = results["model"].n_unique(), measured["model"].n_unique()
    yield Tile("models with numbers", f"{whole:,}", note=f"of {number:,}")
    yield Tile("measurements", f"{measured.height:,}", note=f"of {results.height:,}")
    latency = table["online_latency_ns"].drop_nulls()
    if latency.len():
        low, high = (duration(float(latency.quantile(at) or 0.0)) for at in (0.05, 0.95))
        middle = duration(float(latency.quantile(0.5, "nearest") or 0.0))
        note = f"the median; 90 % from {low} to {high}" if latency.len() > 1 else ""
        yield Tile("latency at batch 1", middle, note=note)
    bounds = table["bound"].drop_nulls()
    if bounds.len():
        share = 100 * int((bounds == "memory").sum()) / bounds.len()
        yield Tile("memory-bound", f"{share:.0f} %", note="at their best batch")
    shares = table["convolution_pct"].drop_nulls()
    if shares.len():
        yield Tile(
            "convolution",
            f"{np.median(shares.to_numpy()):.0f} %",
            note="of the latency, the median",
        )
    took = results["took_s"].drop_nulls()
    if took.len():
        total = float(took.sum())
        each = f"{total / took.len():.1f} s each"
        yield Tile("time that it took", _hours(total), note=each)


def _hours(seconds: float) -> str:
    """Return seconds as people say them.

    >>> _hours(48.2), _hours(3_900), _hours(200_000)
    ('48 s', '1 h 05 min', '56 h')
    """
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 1_440:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{seconds / 3_600:.0f} h"


def _machines(results: pl.DataFrame) -> Iterator[Machine]:
    # A result tells the versions of what ran it alone, and those may have changed.
    versions = {
        name: pl.col("basis").str.extract(f'"{name}": "([^"]*)"').drop_nulls()
        for name in _FRAMEWORKS
    }
    by = results.group_by("machine", maintain_order=True).agg(
        *(pl.col(name).drop_nulls().last() for name in ("host", "cpu", "cores", "gpu")),
        *(each.unique(maintain_order=True).alias(name) for name, each in versions.items()),
        is_measured().sum().alias("measured"),
        (~is_measured()).sum().alias("failed"),
    )
    for row in by.iter_rows(named=True):
        without = f", {row['failed']:,} without numbers" if row["failed"] else ""
        said = [str(row[name]) for name in ("cpu", "gpu") if row[name]]
        if row["cores"]:
            said.insert(1, counted(round(row["cores"]), "core"))
        of = (f"{name} {' and '.join(row[name])}" for name in _FRAMEWORKS if row[name])
        yield Machine(
            host=printable(row["host"] or row["machine"] or "an unknown machine"),
            hardware=printable(", ".join(said) or "its processor is not known"),
            versions=printable(", ".join(of)),
            measured=f"{counted(row['measured'], 'measurement')}{without}",
        )


def _cells(groups: pl.DataFrame) -> tuple[tuple[str, ...], ...]:
    shown = groups.head(_GROUPS)
    return tuple(
        tuple(f"{value:,}" if isinstance(value, int) else printable(str(value)) for value in row)
        for row in shown.iter_rows()
    )


class Column(NamedTuple):
    """A column of a grid: its name, heading and meaning."""

    name: str
    heading: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A table on the page.

    Attributes:
        name: Name of the table on the command line.
        question: Its heading.
        paper: The table of the paper that it has the shape of, or empty.
        columns: Its columns.
        height: Rows of the whole table.
        kept: Rows that are on the page.
        same: Columns that say the same of all entries, and what.
        unknown: Headings of columns without values.
        packed: What the page's script needs.
    """

    name: str
    question: str
    paper: str
    columns: tuple[Column, ...]
    height: int
    kept: int
    same: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    packed: str

    @property
    def says_more(self) -> bool:
        """Whether any row has more than what its entry and batch are."""
        return any(column.name not in _KNOWN for column in self.columns)


def grid_of(table: ZooTable, results: pl.DataFrame, most: int) -> Grid:
    """Return a table of results as the page shows it.

    Args:
        table: The table.
        results: The frame of results.
        most: Rows that the page has at most.
    """
    whole = table.make(results)
    ends = ends_of([*table.columns])
    told = [name for name in table.columns if not any(name in pair for pair in ends.values())]
    shown, same, unknown = _parted(whole, told)
    frame = whole.head(most)
    reach = " With the reach of its 95 % interval."
    meanings = {name: table.columns[name] + reach * (name in ends) for name in shown}
    columns = tuple(Column(name, heading_of(name), meanings[name]) for name in shown)
    return Grid(
        name=table.name,
        question=table.question,
        paper=table.paper,
        columns=columns,
        height=whole.height,
        kept=frame.height,
        same=same,
        unknown=unknown,
        packed=_packed(frame, shown),
    )


def _parted(
    whole: pl.DataFrame, told: list[str]
) -> tuple[list[str], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the columns that are shown, those that say the same throughout, and empty ones."""
    known = [name for name in told if whole[name].count()]
    differing = ["model", "family", *varying(whole)]
    if labels_of(whole).n_unique() < whole["entry"].n_unique():
        differing.append("variant")  # settings that have no column of their own
    constant = [name for name in known if name in IDENTITY and name not in differing]
    shown = [name for name in known if name not in constant]
    same = tuple(
        (heading_of(name), text_of(name, whole[name].drop_nulls()[0]))
        for name in constant
        if name not in _HIDDEN
    )
    empty = [name for name in told if name not in known and name not in IDENTITY]
    return shown, same, tuple(map(heading_of, empty))


def _packed(frame: pl.DataFrame, shown: list[str]) -> str:
    ends = ends_of(frame.columns)
    arrays: dict[str, NDArray[Any]] = {"entry": frame["entry"].to_numpy().astype(np.int32)}
    columns = []
    for name in shown:
        if frame[name].dtype.is_numeric():
            whole = frame[name].dtype.is_integer()
            columns.append({"name": name, "whole": whole, "interval": name in ends})
            called = (name, f"{name}.low", f"{name}.high")  # with the ends of its interval
            for said, column in zip(called, (name, *ends.get(name, ())), strict=False):
                arrays[said] = rounded(frame[column])
        else:
            texts, arrays[name] = _texts(frame[name])
            columns.append({"name": name, "texts": texts})
    return pack({"columns": columns, "height": frame.height}, arrays)


def rounded(values: pl.Series) -> NDArray[np.float32]:
    """Return numbers with 13 bits behind the first; whole ones up to 8,191 are exact.

    >>> rounded(pl.Series([3.0, None, 41_234_567.0])).tolist()
    [3.0, nan, 41234432.0]
    """
    floats = values.cast(pl.Float64).fill_null(np.nan).to_numpy().astype(np.float32)
    bits = np.where(np.isfinite(floats), floats, np.float32(0)).view(np.uint32)
    kept: NDArray[np.float32] = ((bits + _HALF) & _KEPT_BITS).view(np.float32)
    kept[~np.isfinite(floats)] = np.nan
    return kept


def _texts(column: pl.Series) -> tuple[list[str], NDArray[np.uint32]]:
    """Return the different texts of a column, and the number of each row's; missing is empty."""
    if column.dtype == pl.Boolean:
        column = column.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    texts = pl.DataFrame({"text": column.cast(pl.String).fill_null("")})
    unique = texts.unique(maintain_order=True).with_row_index("code")
    codes = texts.join(unique, on="text", how="left", maintain_order="left")["code"]
    words = [shorten(printable(text), _LONGEST) for text in unique["text"]]
    return words, codes.to_numpy().astype(np.uint32)


class Shown(NamedTuple):
    """A picture on the page: its name for the script, its heading, and how to read it."""

    name: str
    question: str
    note: str


def pictures_of_zoo(results: pl.DataFrame) -> tuple[list[Shown], dict[str, Any]]:
    """Return the pictures for which the results have numbers, and their plots by name."""
    from xsp.show import plot  # noqa: PLC0415  # bokeh is an extra, and slow to import

    drawn = {
        "roofline": plot.zoo_roofline(results),
        "accuracy": plot.zoo_accuracy(results),
        "throughput": plot.zoo_throughput(results),
        "thirds": plot.zoo_thirds(results),
        "layer-types": plot.zoo_layer_types(results),
        "primitives": plot.zoo_primitives(results),
    }
    known = {name: plot for name, plot in drawn.items() if plot.has_marks}
    shown = [Shown(name, picture.title, _NOTES[name]) for name, picture in known.items()]
    return shown, {name: embedded(picture.figure) for name, picture in known.items()}
