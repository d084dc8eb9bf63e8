"""Reads metrics of single kernels from Nsight Compute: the CSV that it prints, and its reports.

`table` reads the text, `report` a report, `number` the numbers in it, whatever locale they were
written in, `unit` their units, and `attribute` makes columns of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from xsp.reading.importers.ncu.attribute import attributes, counts_tensor_cores, named
from xsp.reading.importers.ncu.report import MAGIC, read_report
from xsp.reading.importers.ncu.table import METRIC_SCHEMA, Table, is_table, read_table
from xsp.reading.importers.recording import Contents, KernelMetrics
from xsp.reading.importers.source import Source
from xsp.text import counted, full_name, short_name
from xsp.warning import TraceWarning

__all__ = [
    "METRIC_SCHEMA",
    "NO_TENSOR_CORES",
    "NsightCompute",
    "attributes",
    "counts_tensor_cores",
    "named",
]

# Why values are left out: codes of warnings, and what is said of the values.
_LEFT_OUT = {
    "ambiguous-number": "{} are left out: their commas and points may separate thousands or "
    "decimals. Export with LC_ALL=C.",
    "unreadable-number": "{} are left out because they are no numbers",
    "not-measured": "Nsight Compute could not measure {}",
    "negative-duration": "{} are left out because they are negative",
    "told-twice": "{} are left out because the file has two different values for one kernel",
}
NO_TENSOR_CORES = TraceWarning(
    "no-tensor-cores",
    "flops lack tensor cores, so they are too low for kernels that use these. Count "
    "sm__ops_path_tensor_src_*.sum as well.",
)
_MOST_NAMES = 8  # in a message


class NsightCompute:
    """Reads what `ncu` wrote: a report, or a table of `ncu --csv` (the details or the raw page)."""

    name = "ncu"
    tool = "Nsight Compute"

    def recognizes(self, source: Source) -> bool:
        """Tell by a report's first bytes, or by the header of a table, below whatever lines."""
        return source.head.startswith(MAGIC) or is_table(source.head)

    def read(self, source: Source) -> Contents:
        """Return the metrics of the kernels in a file.

        Raises:
            TraceFormatError: The file holds no single kernels, or a report's package is missing.
        """
        if source.head.startswith(MAGIC):
            table = read_report(source)
        else:
            with source.open() as file:
                table = read_table(file, source.head)
        metrics = named(table.metrics)
        columns = attributes(metrics, table.kernels.height)
        warnings = tuple(_warnings(table, metrics, columns))
        # What the table says of each kernel besides metrics.
        full = table.kernels["Kernel Name"].map_elements(full_name, pl.String)
        rules = [
            list(table.rules.get(number, ())) or None for number in range(table.kernels.height)
        ]
        whole = pl.col("Context", "Device", "Stream").cast(pl.Int64, strict=False)
        kernels = table.kernels.with_columns(whole).select(
            full.map_elements(short_name, pl.String).replace("", "kernel").alias("name"),
            pl.col("Device").cast(pl.Int32).alias("device"),
            pl.col("Stream").alias("stream"),
            full.alias("attr.full_name"),
            _sizes("Grid Size").alias("attr.grid"),
            _sizes("Block Size").alias("attr.block"),
            pl.col("Context").alias("attr.context"),
            pl.Series("attr.ncu.rules", rules, dtype=pl.List(pl.String)),
        )
        rows = pl.concat([kernels, columns], how="horizontal")
        told = {"host": "Host Name", "process": "Process Name", "compute_capability": "CC"}
        values = {name: table.kernels[column].unique().to_list() for name, column in told.items()}
        environment = {
            name: found[0] for name, found in values.items() if len(found) == 1 and found[0]
        }
        return (KernelMetrics("Nsight Compute", rows, warnings, environment),)


def _sizes(column: str) -> pl.Expr:
    """Return the numbers in `(1024, 1, 1)`; null where there are not three."""
    numbers = pl.col(column).str.extract_all(r"\d+").cast(pl.List(pl.Int64), strict=False)
    return pl.when(numbers.list.len() == 3).then(numbers)


def _warnings(
    table: Table, metrics: pl.DataFrame, attributes: pl.DataFrame
) -> Iterator[TraceWarning]:
    """Yield what was left out of the table, by name, and what its counters leave out."""
    if table.cut:
        yield TraceWarning(
            "cut-short", f"{counted(table.cut, 'line')} ended too early and are left out"
        )
    for state, sentence in _LEFT_OUT.items():
        names = metrics.filter(state=state)["name"]
        if len(names):
            found = names.unique(maintain_order=True).to_list()
            more = len(found) - _MOST_NAMES
            listed = ", ".join(found[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
            yield TraceWarning(state, sentence.format(f"{counted(len(names), 'value')} ({listed})"))
    if "attr.flops" in attributes.columns and not counts_tensor_cores(attributes.columns):
        yield NO_TENSOR_CORES
