"""Computes arithmetic intensity, throughput and bound from operations, bytes and time.

The formulas are the paper's (section III-D3): intensity is operations by bytes read and written,
throughput operations by the kernels' time (not the layer's or the model's), and memory is the limit
where the intensity is below the ideal one, the peak of operations by the peak of bytes. The paper's
roofline counts single precision and DRAM alone; here the roof says which precision it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from xsp.answer.analyses.work import Roof

# What `with_intensity` adds, for tables that have it.
COLUMNS: Mapping[str, str] = {
    "flops_per_byte": "Arithmetic intensity: operations by bytes read and written.",
    "flops_per_s": "Throughput: operations by the time of the kernels whose work is known.",
    "memory_bound": "Whether the intensity is below the roof's ideal one; null without a roof, and "
    "of copies and sets.",
}
# What a table says of the roof, the same in all rows.
ROOF_COLUMNS: Mapping[str, str] = {
    "bytes_per_s": "Bytes read and written by the same time.",
    "roof_flops_per_s": "Most operations per second that the device can do at this intensity.",
    "reached_pct": "Operations or bytes per second as a share of the peak, the larger of the two.",
    "peak_flops_per_s": "Most operations per second that the device can do at any intensity.",
    "peak_bytes_per_s": "Most bytes per second from and to the device's memory.",
    "roof_source": "Which device that is, and where its peaks are from.",
}


def with_intensity(table: pl.DataFrame, roof: Roof | None, time: str) -> pl.DataFrame:
    """Return a table with the columns of `COLUMNS`.

    Args:
        table: A table with `flops`, `read_bytes` and `write_bytes`, and of kernels `transfer`.
        roof: The roof of the device, None if it is not known.
        time: The column of the time, in ns, in which the operations were done.
    """
    moved = pl.col("read_bytes") + pl.col("write_bytes")
    seconds = pl.col(time) / 1e9
    ideal = None if roof is None else roof.ideal_flops_per_byte
    return table.with_columns(
        flops_per_byte=pl.when(moved > 0).then(pl.col("flops") / moved),
        flops_per_s=pl.when(seconds > 0).then(pl.col("flops") / seconds),
    ).with_columns(
        memory_bound=pl.when(~pl.col("transfer") if "transfer" in table.columns else True).then(
            pl.col("flops_per_byte") < pl.lit(ideal, dtype=pl.Float64)
        )
    )


def with_roof(table: pl.DataFrame, roof: Roof | None, time: str) -> pl.DataFrame:
    """Return the rows of a table that have a place below a roof, with `ROOF_COLUMNS`.

    The share reached is throughput by the roof at this intensity: the larger of the shares of the
    two peaks, which is known as well where nothing is computed.
    """
    rates = (None, None) if roof is None else (roof.flops_per_s, roof.bytes_per_s)
    flops, moved = (pl.lit(rate, dtype=pl.Float64) for rate in rates)
    size = pl.col("read_bytes") + pl.col("write_bytes")
    placed = table.drop_nulls(["flops_per_byte", "flops_per_s"])
    placed = placed.with_columns(bytes_per_s=size / (pl.col(time) / 1e9))
    shares = pl.col("flops_per_s") / flops, pl.col("bytes_per_s") / moved
    attainable = pl.min_horizontal(pl.col("flops_per_byte") * moved, flops)
    known = pl.lit(roof is not None)
    return placed.with_columns(
        roof_flops_per_s=pl.when(known).then(attainable),
        reached_pct=pl.when(known).then(100 * pl.max_horizontal(*shares)),
        peak_flops_per_s=flops,
        peak_bytes_per_s=moved,
        roof_source=pl.lit(None if roof is None else roof.source, dtype=pl.String),
    )
