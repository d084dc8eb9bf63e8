"""Heading: the frame of results in, what the first screen says of the zoo out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.page.overview import Tile
from xsp.text import counted, duration, printable
from xsp.zoo import failures, findings, is_measured, models, problems

_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "onnxruntime", "transformers", "timm")
_GROUPS = 30  # rows of the table of failures, and of that of problems


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the results: its name, what it is, what ran on it, and how much was measured."""

    host: str
    hardware: str
    versions: str
    measured: str


@dataclass(frozen=True, slots=True)
class Heading:
    """What the first screen says.

    Attributes:
        name: Name of the zoo.
        measured: What was measured, where and when, in one line.
        tiles: Numbers.
        findings: What all models together say, in sentences.
        machines: The machines.
        failures: What failed and why, grouped: cells of `xsp.zoo.failures`.
        problems: What to know before trusting numbers, grouped.
        left_out: Groups of failures and of problems that are not shown.
    """

    name: str
    measured: str
    tiles: tuple[Tile, ...]
    findings: tuple[str, ...]
    machines: tuple[Machine, ...]
    failures: tuple[tuple[str, ...], ...]
    problems: tuple[tuple[str, ...], ...]
    left_out: tuple[int, int]


def heading_of_zoo(results: pl.DataFrame, name: str) -> Heading:
    """Return what the first screen says of some results.

    Args:
        results: The frame of results.
        name: What to call them.
    """
    table = models(results)
    machines = tuple(_machines(results))
    failed, doubted = failures(results), problems(results)
    return Heading(
        name=printable(name),
        measured=" · ".join(_measured(results, machines)),
        tiles=tuple(_tiles(results, table)),
        findings=tuple(_sentence(line) for line in findings(table)),
        machines=machines,
        failures=_cells(failed),
        problems=_cells(doubted),
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
    yield from _latency(table)
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


def _latency(table: pl.DataFrame) -> Iterator[Tile]:
    latency = table["online_latency_ns"].drop_nulls()
    if latency.len():
        low, high = (duration(float(latency.quantile(at) or 0.0)) for at in (0.05, 0.95))
        middle = duration(float(latency.quantile(0.5, "nearest") or 0.0))
        note = f"the median; 90 % from {low} to {high}" if latency.len() > 1 else ""
        yield Tile("latency at batch 1", middle, note=note)


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
        yield Machine(
            host=printable(row["host"] or row["machine"] or "an unknown machine"),
            hardware=printable(_hardware(row)),
            versions=printable(_versions(row)),
            measured=f"{counted(row['measured'], 'measurement')}{without}",
        )


def _hardware(row: Mapping[str, Any]) -> str:
    said = [str(row[name]) for name in ("cpu", "gpu") if row[name]]
    if row["cores"]:
        said.insert(1, counted(round(row["cores"]), "core"))
    return ", ".join(said) or "its processor is not known"


def _versions(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {' and '.join(row[name])}" for name in _FRAMEWORKS if row[name])


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def _cells(groups: pl.DataFrame) -> tuple[tuple[str, ...], ...]:
    shown = groups.head(_GROUPS)
    return tuple(
        tuple(f"{value:,}" if isinstance(value, int) else printable(str(value)) for value in row)
        for row in shown.iter_rows()
    )
