"""Makes rows of the kernels, copies and sets on devices. `attr.pid` is the process."""

from __future__ import annotations

import re

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.reading import each_once
from xsp.reading.importers.rpd.table import Tables
from xsp.text import call_name, full_name, short_name

_COPIES = {
    "CopyDeviceToDevice": "DtoD",
    "CopyDeviceToHost": "DtoH",
    "CopyHostToDevice": "HtoD",
    "CopyHostToHost": "HtoH",
}
_SET = "FillBuffer"
_KERNELS = ("KernelExecution", "Task")  # a graph's kernels are tasks
# Calls whose sizes are in threads, where those of the others are in blocks.
_IN_THREADS = r"^hip(Ext|Hcc)ModuleLaunchKernel$"
_GRAPH_LAUNCH = r"^hipGraphLaunch"
_GRAPH = re.compile(r"graphExec ?= ?0x([0-9a-fA-F]{1,15})\b")


def device_rows(tables: Tables) -> SpanRows:
    """Return kernels, copies and sets; what else devices did is counted."""
    frame = _with_graphs(_operations(tables))
    kernel = pl.col("name").is_in(_KERNELS) & (pl.col("text").fill_null("") != "")
    copy, set_ = pl.col("name").is_in(list(_COPIES)), pl.col("name").str.starts_with(_SET)
    others = frame.filter(~kernel & ~copy & ~set_)
    tables.left.update(f"operations {name}" for name in others["name"])
    return concat_rows(
        [
            _kernels(tables, frame.filter(kernel)),
            _copies(tables, frame.filter(copy)),
            _sets(frame.filter(set_)),
        ]
    )


def _operations(tables: Tables) -> pl.DataFrame:
    """List the devices' activities, with `call`, `called` and `args` of the call behind each."""
    frame = tables.frame(
        "rocpd_op",
        id="id",
        device="gpuId",
        stream="queueId",
        start_ns="start",
        end_ns="end",
        text="description_id",
        name="opType_id",
    )
    frame = tables.sound(tables.worded(frame, "name", "text"), "operations of devices")
    calls = tables.calls.select("pid", call="id", called="name", args="text")
    asked = tables.frame("rocpd_api_ops", call="api_id", id="op_id")
    asked = asked.unique("id", keep="first", maintain_order=True).join(calls, on="call", how="left")
    return frame.join(asked, on="id", how="left", maintain_order="left")


def _with_graphs(frame: pl.DataFrame) -> pl.DataFrame:
    """Return operations with `graph`, the address of the graph whose launch asked for them."""
    launched = pl.col("called").str.contains(_GRAPH_LAUNCH)
    texts = frame.filter(launched)["args"].drop_nulls().unique().to_list()
    addresses = {text: _graph(text) for text in texts}
    graph = pl.col("args").replace_strict(addresses, default=None, return_dtype=pl.Int64)
    return frame.with_columns(graph=pl.when(launched).then(graph))


def _graph(text: str) -> int | None:
    found = _GRAPH.search(text)
    return int(found[1], 16) if found else None


def _kernels(tables: Tables, frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    sizes = [f"{part}{axis}" for part in ("grid", "workgroup") for axis in "XYZ"]
    columns = {"call": "api_ptr_id", "shared": "groupSegmentSize", **{name: name for name in sizes}}
    shapes = tables.frame("rocpd_kernelapi", **columns).unique("call", keep="first")
    frame = _in_blocks(frame.join(shapes, on="call", how="left", maintain_order="left"))
    full = each_once(frame["text"], full_name)
    return span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": each_once(full, short_name),
            **_placed(frame),
            "attr.full_name": full,
            "attr.grid": _triple(frame, "grid"),
            "attr.block": _triple(frame, "workgroup"),
            "attr.dynamic_shared_bytes": frame["shared"],
            "attr.launched_by": each_once(frame["called"], call_name),
        }
    )


def _in_blocks(frame: pl.DataFrame) -> pl.DataFrame:
    """Return kernels with the sizes of all grids in blocks."""
    threads = pl.col("called").str.contains(_IN_THREADS)
    return frame.with_columns(
        pl.when(threads & (pl.col(f"workgroup{axis}") > 0))
        .then(-(-pl.col(f"grid{axis}") // pl.col(f"workgroup{axis}")))
        .otherwise(f"grid{axis}")
        .alias(f"grid{axis}")
        for axis in "XYZ"
    )


def _copies(tables: Tables, frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    sizes = tables.frame("rocpd_copyapi", call="api_ptr_id", bytes="size")
    frame = frame.join(
        sizes.unique("call", keep="first"), on="call", how="left", maintain_order="left"
    )
    ways = frame["name"].replace_strict(_COPIES, return_dtype=pl.String)
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": "memcpy " + ways,
            **_placed(frame),
            "attr.transfer_bytes": frame["bytes"],
            "attr.direction": ways,
        }
    )


def _sets(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    return span_rows({"kind": Kind.MEMSET.value, "name": "memset", **_placed(frame)})


def _placed(frame: pl.DataFrame) -> dict[str, pl.Series]:
    return {
        **{name: frame[name] for name in ("start_ns", "end_ns", "device", "stream")},
        "correlation_id": frame["call"],
        "attr.graph": frame["graph"],
        "attr.pid": frame["pid"],
    }


def _triple(frame: pl.DataFrame, name: str) -> pl.Series:
    known = pl.all_horizontal(pl.col(f"{name}{axis}").is_not_null() for axis in "XYZ")
    lists = pl.concat_list(f"{name}{axis}" for axis in "XYZ")
    return frame.select(pl.when(known).then(lists).alias(name)).to_series()
