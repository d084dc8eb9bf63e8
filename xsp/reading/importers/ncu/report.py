"""Reads `.ncu-rep`, Nsight Compute's own file, by NVIDIA's package `ncu-report`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.reading.importers.ncu.table import KERNEL, METRIC_SCHEMA, Table
from xsp.reading.importers.source import Source

MAGIC = b"NVR\0"

_KERNELS = 0  # the type of a workload that is one kernel, not a graph or a range
_DIMENSIONS = "xyz"


def read_report(source: Source) -> Table:
    """Read the kernels and metrics of a report.

    Raises:
        TraceFormatError: The package is missing, the report is damaged, or it holds no kernel.
    """
    library = _library(source)
    if source.packed:
        raise TraceFormatError(
            f"The report is compressed ({source.path}). Unpack it first: gunzip or unzip."
        )
    try:
        report = library.load_report(str(source.path))
        actions = [
            action
            for place in range(report.num_ranges())
            for action in report.range_by_idx(place)
            if action.workload_type() == _KERNELS
        ]
        kernels = [_kernel(number, action) for number, action in enumerate(actions)]
        metrics = [
            (number, name, metric.unit(), _text(metric.value()))
            for number, action in enumerate(actions)
            for name in action.metric_names()
            if (metric := action.metric_by_name(name)) is not None and metric.has_value()
        ]
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        raise TraceFormatError(
            f"The report cannot be read ({source.path}: {error}). Export it instead: ncu --csv "
            f"--page raw --import {source.path}."
        ) from None
    if not kernels:
        raise TraceFormatError(
            f"The report holds no single kernel ({source.path}). Record it with --replay-mode "
            "kernel."
        )
    return Table(
        pl.DataFrame(kernels, schema=dict.fromkeys(KERNEL, pl.String), orient="row"),
        pl.DataFrame(metrics, schema=METRIC_SCHEMA, orient="row"),
        {},
        0,
    )


def _library(source: Source) -> ModuleType:
    try:
        return import_module("ncu_report")
    except ImportError:
        raise TraceFormatError(
            f"Reading {source.path.name} needs NVIDIA's package. Install it: pip install "
            "'xsp[ncu]', or export the report: ncu --csv --page raw --import "
            f"{source.path.name}."
        ) from None


def _kernel(number: int, action: Any) -> list[str | None]:
    """Write what a table's columns `KERNEL` say of one launch."""

    def told(name: str) -> Any:
        metric = action.metric_by_name(name)
        return None if metric is None or not metric.has_value() else metric.value()

    def size(what: str) -> str | None:
        sides = [told(f"launch__{what}_dim_{axis}") for axis in _DIMENSIONS]
        return None if None in sides else str(tuple(map(int, sides)))

    def whole(name: str) -> str | None:
        value = told(name)
        return None if value is None else str(int(value))

    major, minor = (
        whole(f"device__attribute_compute_capability_{part}") for part in ("major", "minor")
    )
    values = {
        "ID": str(number),
        "Kernel Name": action.name(action.NameBase_DEMANGLED),
        "Context": whole("launch__context_id"),
        "Stream": whole("launch__stream_id"),
        "Block Size": size("block"),
        "Grid Size": size("grid"),
        "Device": whole("launch__device_id"),
        "CC": None if major is None else f"{major}.{minor}",
    }
    return [values.get(column) for column in KERNEL]


def _text(value: object) -> str:
    """Write a value so that no reader takes its point for a mark between thousands."""
    if not isinstance(value, float):
        return str(value)
    text = repr(value)
    return f"{text}000" if "." in text and "e" not in text else text
