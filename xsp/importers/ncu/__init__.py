"""What Nsight Compute prints as CSV in, the metrics of single kernels out.

`table` reads the text, `number` the numbers in it, whatever locale they were written in, `unit`
their units, and `attribute` makes columns of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from xsp.importers.ncu.attribute import attributes, counts_tensor_cores, named
from xsp.importers.ncu.table import METRIC_SCHEMA, Table, is_table, read_table
from xsp.importers.recording import Contents, KernelMetrics
from xsp.importers.source import Source
from xsp.problem import Problem
from xsp.text import counted, full_name, short_name

__all__ = [
    "METRIC_SCHEMA",
    "NO_TENSOR_CORES",
    "NsightCompute",
    "attributes",
    "counts_tensor_cores",
    "named",
]

# Why values are left out: codes of problems, and what is said of the values.
_LEFT_OUT = {
    "ambiguous-number": "left out: {}, for no other number of the file tells whether their marks "
    "separate thousands or decimals",
    "unreadable-number": "left out: {}, which are no numbers",
    "not-measured": "Nsight Compute could not measure {}",
    "negative-duration": "left out: {}, for no kernel takes less than no time",
    "told-twice": "left out: {}, of metrics that the file tells twice of a kernel, and differently",
}
NO_TENSOR_CORES = Problem(
    "no-tensor-cores",
    "flops are those of CUDA cores: operations of tensor cores were not counted "
    "(sm__ops_path_tensor_src_*.sum), so of kernels that use them flops say little",
)
_MOST_NAMES = 8  # in a message


class NsightCompute:
    """Reads tables that `ncu --csv` printed: the details page, and the raw page."""

    name = "ncu"
    tool = "Nsight Compute, as CSV"

    def recognises(self, source: Source) -> bool:
        """Tell by the header of the table, which may stand below other lines."""
        return is_table(source.head)

    def read(self, source: Source) -> Contents:
        """Return the metrics of the kernels in a file.

        Raises:
            TraceFormatError: There is no table of single kernels in the file.
        """
        with source.open() as file:
            table = read_table(file, source.head)
        metrics = named(table.metrics)
        columns = attributes(metrics, table.kernels.height)
        problems = tuple(_problems(table, metrics, columns))
        rows = pl.concat([_kernels(table), columns], how="horizontal")
        return (KernelMetrics("Nsight Compute", rows, problems, _environment(table)),)


def _kernels(table: Table) -> pl.DataFrame:
    """Return what the table says of each kernel besides metrics."""
    full = table.kernels["Kernel Name"].map_elements(full_name, pl.String)
    rules = [list(table.rules.get(number, ())) or None for number in range(table.kernels.height)]
    whole = pl.col("Context", "Device", "Stream").cast(pl.Int64, strict=False)
    return table.kernels.with_columns(whole).select(
        full.map_elements(short_name, pl.String).replace("", "kernel").alias("name"),
        pl.col("Device").cast(pl.Int32).alias("device"),
        pl.col("Stream").alias("stream"),
        full.alias("attr.full_name"),
        _sizes("Grid Size").alias("attr.grid"),
        _sizes("Block Size").alias("attr.block"),
        pl.col("Context").alias("attr.context"),
        pl.Series("attr.ncu.rules", rules, dtype=pl.List(pl.String)),
    )


def _sizes(column: str) -> pl.Expr:
    """Return the numbers in `(1024, 1, 1)`; null where there are not three."""
    numbers = pl.col(column).str.extract_all(r"\d+").cast(pl.List(pl.Int64), strict=False)
    return pl.when(numbers.list.len() == 3).then(numbers)


def _environment(table: Table) -> dict[str, object]:
    told = {"host": "Host Name", "process": "Process Name", "compute_capability": "CC"}
    values = {name: table.kernels[column].unique().to_list() for name, column in told.items()}
    return {name: found[0] for name, found in values.items() if len(found) == 1 and found[0]}


def _problems(table: Table, metrics: pl.DataFrame, attributes: pl.DataFrame) -> Iterator[Problem]:
    """Yield what was left out of the table, by name, and what its counters leave out."""
    if table.cut:
        yield Problem("cut-short", f"left out: {counted(table.cut, 'line')} that ended too early")
    for state, sentence in _LEFT_OUT.items():
        names = metrics.filter(state=state)["name"]
        if len(names):
            yield Problem(
                state, sentence.format(f"{counted(len(names), 'value')} ({_listed(names)})")
            )
    if "attr.flops" in attributes.columns and not counts_tensor_cores(attributes.columns):
        yield NO_TENSOR_CORES


def _listed(names: pl.Series) -> str:
    found = names.unique(maintain_order=True).to_list()
    more = len(found) - _MOST_NAMES
    return ", ".join(found[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
