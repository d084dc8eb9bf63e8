"""Lists the collectives one by one, with what each waited for other ranks apart."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMPUTING, Work
from xsp.answer.analyses.device.communication import communicating_kernels
from xsp.answer.analyses.device.rank_imbalance import arrivals
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "rank": "Rank of the process, or its number; null where the trace is of one process.",
    "device": "Number of the device.",
    "stream": "Number of the stream.",
    "collective": "Collective operation; the kernel's name where the framework did not tell.",
    "group": "Name of the group of processes; null where it is not known.",
    "group_size": "How many processes the group has; null where it is not known.",
    "start_ns": "When its kernel began on this device.",
    "time_ns": "How long the kernel ran.",
    "waiting_ns": "What of that was before the last rank's kernel began; null where the same "
    "collective was not found in another rank.",
    "transfer_ns": "The rest, in which all ranks were there; null where the wait is not known.",
    "exposed_ns": "How much of its time the device computed nothing.",
    "payload_bytes": "Size of the larger of what a rank puts in and gets out; null if not known.",
    "bus_bytes_per_s": "Bus bandwidth without the wait, or, where that is not known, with it.",
}


@analysis(
    "How long did each collective wait, and how fast was it then?", _COLUMNS, needs=(Need.DEVICE,)
)
def collectives(trace: Trace) -> pl.DataFrame:
    """Return the collectives of devices one by one, in the order in which they began.

    Args:
        trace: A trace with work of a device; of several ranks, waits are known. Without
            communication the table has no rows.

    Raises:
        AnalysisError: No device worked in the trace.
    """
    tree = Tree.of(trace)
    work = Work.of(tree)
    found = communicating_kernels(tree, work)
    place, start, end = (
        found[name].cast(pl.Int64).to_numpy() for name in ("place", "start_ns", "end_ns")
    )
    hidden = work.worked_ns(place, start, end, COMPUTING)
    time = pl.col("end_ns") - pl.col("start_ns")
    rate = pl.coalesce("transfer_ns", "time_ns")
    return (
        found.join(arrivals(found).select("row", waiting_ns="waited"), on="row", how="left")
        .with_columns(time_ns=time, exposed_ns=time - pl.Series(hidden, dtype=pl.Int64))
        .with_columns(transfer_ns=pl.col("time_ns") - pl.col("waiting_ns"))
        .with_columns(bus_bytes_per_s=1e9 * pl.col("bus_bytes") / pl.when(rate > 0).then(rate))
        .sort("start_ns", "row")
        .select(*_COLUMNS)
    )
