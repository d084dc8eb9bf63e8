"""Measures the speed of collective operations, and the share hidden behind computing."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMMUNICATING, COMPUTING, Work, apart
from xsp.answer.analyses.device.host_collective import of_host, shares
from xsp.answer.analyses.total import total
from xsp.answer.analyses.tree import Tree
from xsp.level import DEVICE_ACTIVITIES
from xsp.matching import Ints
from xsp.trace import Trace

_COLUMNS = {
    "rank": "Rank of the process, or its number; null where the trace is of one process.",
    "device": "Number of the device; null where hosts communicate without one.",
    "collective": "Collective operation; the kernel's name where the framework did not tell.",
    "group": "Name of the group of processes; null where it is not known.",
    "group_size": "How many processes the group has; null where it is not known.",
    "count": "How many kernels, or how many of them the hosts carried out.",
    "time_ns": "How long at least one of them ran, with what it waited for other ranks.",
    "exposed_ns": "How much of that while the device computed nothing.",
    "hidden_pct": "The rest, behind which it computed, as a share of the time.",
    "payload_bytes": "Size of the larger of what a rank puts in and gets out; null if not known.",
    "bus_bytes_per_s": "Bus bandwidth of those whose size is known; waiting for ranks lowers it.",
}

# Bytes of an element, by the names that PyTorch's profiler gives the types of collectives.
_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "int16"), 2),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("double", "float64", "long", "int64", "complexfloat"), 8),
    "complexdouble": 16,
}
_GROUP = ("place", "collective", "group", "group_size")


@analysis(
    "How much communication is hidden, and how fast is it?", _COLUMNS, needs=(Need.COMMUNICATION,)
)
def communication(trace: Trace) -> pl.DataFrame:
    """Return the communication of each device by collective operation and group.

    Args:
        trace: A trace with work of a device, or of ranks that communicate without one; without
            communication the table has no rows.

    Raises:
        AnalysisError: No device worked in the trace, and no rank communicated.
    """
    tree = Tree.of(trace)
    if not len(tree.rows(*DEVICE_ACTIVITIES)):
        return _of_hosts(tree)
    work = Work.of(tree)
    kernels = communicating_kernels(tree, work).with_columns(
        pl.struct(_GROUP).rank("dense").cast(pl.Int64).alias("number") - 1
    )
    number = kernels["number"].to_numpy()
    times = (kernels[name].to_numpy() for name in ("start_ns", "end_ns"))
    rows = kernels.group_by("number").agg(
        *(pl.col(name).first() for name in ("rank", "device", *_GROUP)),
        count=pl.len().cast(pl.Int64),
        payload_bytes=total("payload_bytes"),
        bus_bytes_per_s=1e9 * total("bus_bytes") / total("known_ns"),
    )
    time = pl.col("time_ns")
    return (
        rows.join(_times(work, kernels, number, *times), on="number")
        .with_columns(hidden_pct=100 * (time - pl.col("exposed_ns")) / time)
        .sort("place", "time_ns", "number", descending=[False, True, False])
        .select(*_COLUMNS)
    )


def _of_hosts(tree: Tree) -> pl.DataFrame:
    """Return the communication of ranks without devices."""
    place = ("process", "rank", "collective", "group", "group_size")
    found = of_host(tree).with_columns(
        number=pl.struct(*place).rank("dense").cast(pl.Int64) - 1, payload_bytes=_payload()
    )
    numbers = (found[name].cast(pl.Int64).to_numpy() for name in ("row", "number", "process"))
    once, hidden = shares(tree, *numbers)
    found = found.with_columns(
        payload_bytes=pl.col("payload_bytes") * pl.col("calls"),
        bus_bytes=pl.col("payload_bytes") * _bus_factor() * pl.col("calls"),
        known_ns=pl.when(pl.col("payload_bytes") * _bus_factor() > 0).then("time_ns"),
    )
    rows = found.group_by("number", *place).agg(
        count=pl.sum("calls"),
        time_ns=pl.sum("time_ns"),
        payload_bytes=total("payload_bytes"),
        bus_bytes_per_s=1e9 * total("bus_bytes") / total("known_ns"),
    )
    return (
        rows.sort("number")
        .with_columns(device=pl.lit(None, dtype=pl.Int64), hidden_pct=pl.Series(100 * hidden))
        .with_columns(pl.col("time_ns") * pl.Series(once))
        .with_columns(exposed_ns=pl.col("time_ns") * (1 - pl.col("hidden_pct") / 100))
        .sort("process", "time_ns", "number", descending=[False, True, False])
        .select(*_COLUMNS)
    )


def _payload() -> pl.Expr:
    size = pl.col("element_type").str.to_lowercase().replace_strict(_ELEMENT_BYTES, default=None)
    return pl.max_horizontal("in_elements", "out_elements") * size.cast(pl.Int64)


def communicating_kernels(tree: Tree, work: Work) -> pl.DataFrame:
    """Return the kernels that communicate, with their collective operation and sizes.

    Columns beside those of `work`: `collective`, `group`, `group_size`, `group_ranks`,
    `payload_bytes`, `bus_bytes` (what the payload means for each link, see docs/analyses.md), and
    `known_ns`, the kernel's time; the last three are null where no size is known.
    """
    kernels = work.table.filter(pl.col("sort") == COMMUNICATING)
    told = ("collective", pl.String), ("collective_group", pl.String), ("group_ranks", pl.String)
    numbers = ("group_size", "in_elements", "out_elements")
    known = [tree.attribute(*each)[kernels["row"]] for each in told]
    known += [tree.attribute(name, pl.Int64)[kernels["row"]] for name in numbers]
    known.append(tree.attribute("element_type")[kernels["row"]])
    kernels = kernels.hstack(known).with_columns(
        collective=pl.coalesce("collective", "name"),
        group=pl.col("collective_group"),
        payload_bytes=_payload(),
    )
    return kernels.with_columns(
        bus_bytes=pl.col("payload_bytes") * _bus_factor(),
        known_ns=pl.when(pl.col("payload_bytes") * _bus_factor() > 0).then(
            pl.col("end_ns") - pl.col("start_ns")
        ),
    )


def _bus_factor() -> pl.Expr:
    """Compute the factor from payload bandwidth to bus bandwidth, as NCCL's tests do it.

    So that the number compares with the bandwidth of the links whatever the collective. Source:
    PERFORMANCE.md of NVIDIA/nccl-tests.
    """
    name = pl.col("collective").str.to_lowercase().str.replace_all("[^a-z]", "")
    others = (pl.col("group_size") - 1) / pl.col("group_size")
    return (
        pl.when(name.str.contains("allreduce"))
        .then(2 * others)
        .when(name.str.contains("allgather|reducescatter|alltoall"))
        .then(others)
        .otherwise(1.0)
    )


def _times(work: Work, kernels: pl.DataFrame, number: Ints, start: Ints, end: Ints) -> pl.DataFrame:
    """Return how long kernels of each number ran, and how much of that nothing computed."""
    place = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    place[number] = kernels["place"].to_numpy()
    numbers, starts, ends = apart(number, start, end)
    hidden = work.worked_ns(place[numbers], starts, ends, COMPUTING)
    parts = pl.DataFrame({"number": numbers, "time_ns": ends - starts, "hidden": hidden})
    sums = parts.group_by("number").agg(pl.col("time_ns", "hidden").sum())
    return sums.select("number", "time_ns", exposed_ns=pl.col("time_ns") - pl.col("hidden"))
