"""Makes rows of the kernels, copies and sets on a device's plane.

On a GPU a line is a stream. On a TPU the line `XLA Ops` is what the core did, one operator after
the other; of an operator that holds others (a loop) only the stretches between them count. Other
lines (`Steps`, `XLA Modules`, `Framework Ops`, ...) repeat the same time under other names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.correlation import enclosing
from xsp.reading.importers.reading import each_once
from xsp.reading.importers.xplane.event import LeftOut, events
from xsp.text import full_name, short_name
from xsp.xplane import Plane

_PLANE = re.compile(r"^/device:(?P<sort>GPU|TPU):(?P<number>\d{1,9})$")
_STREAM = re.compile(r"^Stream #(\d{1,18})")
_XLA_OPS, _XLA_MODULES, _STEPS = "XLA Ops", "XLA Modules", "Steps"
_REPEATING = {
    _STEPS,
    _XLA_MODULES,
    _XLA_OPS,
    "TensorFlow Ops",
    "TensorFlow Name Scope",
    "Framework Ops",
    "Framework Name Scope",
    "Source code",
    "XLA TraceMe",
}
_NO_OPERATOR = "XlaModule:"
_TIMES = ("start_ns", "end_ns")
_LONG = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True, slots=True)
class DevicePlane:
    """The rows and the steps of a device.

    Attributes:
        number: Number of the device.
        rows: Its kernels, copies and sets.
        steps: `name`, `start_ns` and `end_ns` of the steps that the plane marks.
    """

    number: int
    rows: SpanRows
    steps: pl.DataFrame


def is_device(plane: Plane) -> bool:
    """Tell whether a plane is of a device that is understood."""
    return _PLANE.match(plane.name) is not None


def device_plane(plane: Plane, left: LeftOut) -> DevicePlane:
    """Return the rows and the steps of a device from its plane.

    Args:
        plane: A plane of which `is_device` is true.
        left: Counts what is left out.
    """
    found = _PLANE.match(plane.name)
    if found is None:
        raise ValueError(f"{plane.name} is no plane of a device")
    number, names = int(found["number"]), plane.lines["line_name"].to_list()
    tpu = found["sort"] == "TPU"
    read = _tpu_rows if tpu else _gpu_rows
    for at, name in enumerate(names):
        if not (name in _REPEATING or (not tpu and _STREAM.match(name))):
            left.unknown[f"{plane.name} {name}"] += plane.lines["events"][at]
    steps = events(plane, left, _named(names, _STEPS))
    return DevicePlane(
        number, read(plane, number, left), steps.select("name", "start_ns", "end_ns")
    )


def _named(names: list[str], name: str) -> list[int]:
    return [at for at, each in enumerate(names) if each == name]


def _gpu_rows(plane: Plane, number: int, left: LeftOut) -> SpanRows:
    found = {at: _STREAM.match(name) for at, name in enumerate(plane.lines["line_name"])}
    streams = {at: int(match[1]) for at, match in found.items() if match}
    frame = events(plane, left, streams)
    if not frame.height:
        return no_rows()
    frame = frame.with_columns(
        device=pl.lit(number),
        stream=pl.col("line").replace_strict(streams, return_dtype=pl.Int64),
        context=pl.col("context_id").str.extract(r"(\d{1,18})$").cast(pl.Int64),
        framework_op=pl.coalesce(
            pl.when(pl.col("tf_op") != _NO_OPERATOR).then("tf_op"),
            # Of several, one in the other, the outermost; what follows `#` are its attributes.
            pl.col("annotation").str.split("::").list.first().str.extract(r"^([^#]+)"),
        ),
    )
    set_ = pl.col("memset_details").is_not_null() | pl.col("name").str.starts_with("Memset")
    copy = pl.col("memcpy_details").is_not_null() | pl.col("name").str.starts_with("Memcpy")
    return concat_rows(
        [
            _kernels(frame.filter(~set_ & ~copy)),
            _transfers(frame.filter(copy & ~set_), "memcpy_details"),
            _transfers(frame.filter(set_), "memset_details"),
        ]
    )


def _kernels(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    full = each_once(frame["name"], full_name)
    return span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": each_once(full, short_name),
            **_placed(frame),
            "attr.full_name": full,
            **kernel_attributes(frame["kernel_details"]),
            "attr.framework_op": frame["framework_op"],
            "attr.hlo_op": frame["hlo_op"],
            "attr.hlo_module": frame["hlo_module"],
        }
    )


def _transfers(frame: pl.DataFrame, details: str) -> SpanRows:
    """Return copies (of `memcpy_details`) or sets (of `memset_details`)."""
    if not frame.height:
        return no_rows()
    columns = {**_placed(frame), **memory_attributes(frame[details])}
    if details == "memset_details":
        del columns["attr.source"]
        return span_rows({"kind": Kind.MEMSET.value, "name": "memset", **columns})
    ways = each_once(frame["name"], lambda name: direction(name) or "unknown")
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": "memcpy " + ways,
            **columns,
            "attr.direction": ways,
        }
    )


def _placed(frame: pl.DataFrame) -> dict[str, pl.Series]:
    names = ("start_ns", "end_ns", "device", "stream", "correlation_id")
    graph = frame.select(pl.when(pl.col("cuda_graph_id") > 0).then("cuda_graph_id"))
    return {
        **{name: frame[name] for name in names},
        "attr.context": frame["context"],
        "attr.graph": graph.to_series(),
    }


def _tpu_rows(plane: Plane, number: int, left: LeftOut) -> SpanRows:
    names = plane.lines["line_name"].to_list()
    lines = _named(names, _XLA_OPS)
    frame = _without_contents(events(plane, left, lines), left)
    if not frame.height:
        return no_rows()
    modules = events(plane, LeftOut(), _named(names, _XLA_MODULES)).sort("start_ns")
    frame = frame.sort("start_ns").join_asof(
        modules.select("start_ns", module_end="end_ns", module="name"),
        on="start_ns",
        check_sortedness=False,
    )
    within = pl.col("end_ns") <= pl.col("module_end")
    operators = {kind.number: str(kind.stats.get("tf_op") or "") or None for kind in plane.metadata}
    short = pl.when(pl.col("display") != "").then("display").otherwise("name")
    return span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": frame.select(short.alias("name"))["name"],
            "start_ns": frame["start_ns"],
            "end_ns": frame["end_ns"],
            "device": number,
            "stream": frame["line"],
            "attr.full_name": frame["name"],
            "attr.framework_op": frame["number"].replace_strict(
                operators, default=None, return_dtype=pl.String
            ),
            "attr.hlo_op": frame.select(short.alias("name"))["name"],
            "attr.hlo_module": frame.select(
                pl.coalesce("hlo_module", pl.when(within).then("module"))
            ).to_series(),
        }
    )


def _without_contents(frame: pl.DataFrame, left: LeftOut) -> pl.DataFrame:
    """Return operators such that no time counts twice: of one that holds others, its self time.

    A loop becomes a row for each stretch between the operators that it holds. What has no length
    is held by nobody: it takes no time away.
    """
    lasting = frame.filter(_LONG > 0).with_row_index("row")
    order = np.zeros(lasting.height, np.int64)
    line, start, end = (lasting[name].to_numpy() for name in ("line", *_TIMES))
    around = enclosing(line, start, end, order)
    held = lasting.with_columns(outer=around).filter(pl.col("outer") >= 0)
    if not held.height:
        return frame
    outer = lasting[held["outer"].unique(maintain_order=True)]
    # Of an instruction the name is enough: `%copy.1 = f32[8] copy(f32[8] %x)`.
    left.outer.update(outer["name"].str.replace(r" = .*$", "").to_list())
    # A stretch begins where the operator does, or one that it holds ends; it ends likewise.
    bounds = pl.concat(
        [
            outer.select(outer="row", open="start_ns", close="start_ns"),
            held.select("outer", open="start_ns", close="end_ns").cast({"outer": pl.UInt32}),
            outer.select(outer="row", open="end_ns", close="end_ns"),
        ]
    ).sort("outer", "open", maintain_order=True)
    until = pl.col("open").shift(-1).over("outer")
    stretches = bounds.select("outer", start_ns="close", end_ns=until).filter(_LONG > 0)
    own = outer.drop(_TIMES).join(stretches, left_on="row", right_on="outer")
    inner = lasting.join(outer, on="row", how="anti")
    return pl.concat(
        [frame.filter(_LONG == 0), *(each.select(frame.columns) for each in (inner, own))]
    )


# Reads attributes of kernels and copies from their descriptions in XPlane's notation.

_NAME = re.compile(r"^Mem(?:cpy|set)(?P<way>[HDPA]2[HDPA])?", re.IGNORECASE)
_WORDED = re.compile(r"(Host|Device|Peer|Array)To(Host|Device|Peer|Array)")
_MEMORIES = {"pageable", "pinned", "device", "array", "managed"}


def kernel_attributes(details: pl.Series) -> dict[str, pl.Series]:
    """Return the columns of attributes that the details of kernels tell."""
    return {
        "attr.grid": _each(details, lambda text: _sizes(text, "grid"), pl.List(pl.Int64)),
        "attr.block": _each(details, lambda text: _sizes(text, "block"), pl.List(pl.Int64)),
        "attr.registers": _each(details, lambda text: _number(text, "regs"), pl.Int64),
        "attr.static_shared_bytes": _each(details, _static_bytes, pl.Int64),
        "attr.dynamic_shared_bytes": _each(
            details, lambda text: _number(text, "dynamic_shared"), pl.Int64
        ),
        "attr.occupancy_pct": _each(details, _occupancy_pct, pl.Float64),
    }


def memory_attributes(details: pl.Series) -> dict[str, pl.Series]:
    """Return the columns of attributes that the details of copies and sets tell."""
    return {
        "attr.transfer_bytes": _each(details, lambda text: _number(text, "size"), pl.Int64),
        "attr.source": _each(details, lambda text: _memory(text, "kind_src"), pl.String),
        "attr.destination": _each(details, lambda text: _memory(text, "kind_dst"), pl.String),
    }


def direction(name: str) -> str | None:
    """Return from where to where a copy goes, by its name in the file.

    >>> [direction(name) for name in ("MemcpyH2D", "MemcpyP2P", "CopyDeviceToDevice", "Memcpy")]
    ['HtoD', 'PtoP', 'DtoD', None]
    """
    found = _NAME.match(name)
    if found and found["way"]:
        return found["way"].upper().replace("2", "to")
    words = _WORDED.search(name)
    return f"{words[1][0]}to{words[2][0]}" if words else None


def _each(details: pl.Series, value_of: Callable[[str], Any], dtype: Any) -> pl.Series:
    """Return the value of each text; `value_of` is called once per distinct text."""
    distinct = details.drop_nulls().unique().to_list()
    values = pl.Series([*(value_of(text) for text in distinct), None], dtype=dtype)
    places = {text: at for at, text in enumerate(distinct)}
    return values.gather(
        details.replace_strict(places, default=len(distinct), return_dtype=pl.Int64)
    )


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}:(\S+)", text)
    return found[1] if found else None


def _number(text: str, name: str) -> int | None:
    value = _field(text, name)
    return int(value) if value and re.fullmatch(r"\d{1,18}", value) else None


def _sizes(text: str, name: str) -> list[int] | None:
    value = _field(text, name)
    if not value or not re.fullmatch(r"\d{1,18}(,\d{1,18}){2}", value):
        return None
    return [int(each) for each in value.split(",")]


def _static_bytes(text: str) -> int | None:
    """Return the shared memory that a kernel declares, which is `group_mem` on AMD's GPUs."""
    return next(
        (
            size
            for name in ("static_shared", "shm", "group_mem")
            if (size := _number(text, name)) is not None
        ),
        None,
    )


def _occupancy_pct(text: str) -> float | None:
    """Return the theoretical occupancy; 0 stands for unknown."""
    value = _field(text, "occ_pct")
    return (float(value) or None) if value and re.fullmatch(r"\d+(\.\d+)?", value) else None


def _memory(text: str, name: str) -> str | None:
    value = _field(text, name)
    return value.lower() if value and value.lower() in _MEMORIES else None
