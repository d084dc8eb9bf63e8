"""NVTX markers in; a row of kind call per range of a library, such as NCCL, out. Pure.

CUPTI sees ranges only if the environment variable NVTX_INJECTION64_PATH named libcupti before
NVTX was first used. Ranges without a domain are the user's own and left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import Provenance, SpanRows, no_rows, span_rows
from xsp_levels.kernel.cupti.table import Table
from xsp_levels.native import thread
from xsp_levels.native.alignment import Alignment

_START, _END = 1 << 1, 1 << 2  # CUPTI_ACTIVITY_FLAG_MARKER_START, _END


def range_rows(
    table: Table | None,
    texts: Mapping[int, str],
    threads: Mapping[int, int],
    alignment: Alignment,
) -> SpanRows:
    """Return one row per range of a library that was both begun and ended.

    Ranges are recorded on the kernels' rung, so their latency is taken from that rung.

    Args:
        table: Markers as CUPTI recorded them.
        texts: The texts that the table's pointers point to, by pointer.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
    """
    if table is None:
        return no_rows()
    flags, ends = table["flags_"], {}
    for at in np.flatnonzero(flags & _END).tolist():
        ends[int(table["id"][at])] = at
    begun = [
        at
        for at in np.flatnonzero(flags & _START).tolist()
        if int(table["id"][at]) in ends and texts.get(int(table["domain"][at]))
    ]
    ended = [ends[int(table["id"][at])] for at in begun]
    times = alignment.convert(table["timestamp"].astype(np.int64))
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": [texts.get(int(table["name"][at]), "range") for at in begun],
            "start_ns": times[begun],
            "end_ns": times[ended],
            "thread": thread.named(table["object_id"][begun].astype(np.int64), threads),
            "provenance": Provenance.MARKER.value,
            "attr.library": pl.Series(
                [texts[int(table["domain"][at])] for at in begun], dtype=pl.String
            ),
            "attr.placement": "ends",
        }
    )
