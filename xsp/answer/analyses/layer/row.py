"""Makes a table row of each layer in a trace, with times and memory.

All tables of layers are made of these rows, so that a layer has the same index, the same name and
the same self time in each of them.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.layer_type import layer_types
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import Kind
from xsp.matching import Ints
from xsp.trace import Trace, attribute_column

# What the columns mean that several tables of layers have.
MEANINGS = {
    "index": "Position of the layer among all, in the order they began, from 1.",
    "group": "Group of like steps that it is in, or process; null where there is one.",
    "phase": "`forward` or `backward`; null where the trace does not tell.",
    "layer": "Dotted path of the module, or the layer's name; `#2` marks its second call.",
    "type": "Class of the module, or the layer's name where it has none.",
    "layer_type": "What the layer does, in words that hold for all frameworks.",
    "path": "Path of the span in the trace.",
    "calls": "How many calls the row stands for; times and allocations are sums over them.",
    "latency_ns": "Latency without the profiler, with that of the layers inside.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "own_ns": "Latency less that of the layers inside: these sum to the layers' time.",
    "own_low_ns": "Lower end of its 95 % interval.",
    "own_high_ns": "Upper end of its 95 % interval.",
    "device_ns": "Time in which devices worked on what it launched, with the layers inside.",
    "own_device_ns": "That less the time for the layers inside.",
    "synchronous_ns": "Latency where the host waits for each kernel; null if not measured.",
    "allocated_bytes": "Memory allocated in the layer, with that of the layers inside.",
    "own_allocated_bytes": "Allocated less what the layers inside allocated.",
}

MEMORY = ("allocated_bytes", "freed_bytes", "peak_bytes", "parameter_bytes")
_SUMMED = ("allocated_bytes", "freed_bytes")  # over the calls that a row stands for


def columns(*names: str, **more: str) -> dict[str, str]:
    """Return the meanings of columns of a table of layers: common ones by name, then its own."""
    return {name: MEANINGS[name] for name in names} | more


def layer_rows(trace: Trace) -> pl.DataFrame:
    """Return a row for each layer of a trace, in the order they began.

    Layers that stand on a device, for they are replayed in a CUDA graph, are left out where there
    are others: their time is the device's, and lies in no time of the host.

    Returns:
        The columns of `trace.spans`, those of `MEANINGS`, the attributes of `MEMORY`, and `row`,
        the span's row in the trace, and `module`, which is the layer without its call.
    """
    tree = Tree.of(trace)
    return tree.once(layer_rows, lambda: _rows(tree, trace))


def _rows(tree: Tree, trace: Trace) -> pl.DataFrame:
    among = _among(tree)
    rows = np.flatnonzero(among)
    rows = rows[np.argsort(tree.spans["start_ns"].to_numpy()[rows], kind="stable")]
    layers = tree.spans[rows]
    calls = attribute_column(layers, "calls", pl.Int64).fill_null(1)
    # The name of the group of steps, or process, that each span is in.
    names = [group["name"] for group in trace.metadata.get("groups", ())]
    marked = tree.spans["name"].is_in(names) | tree.attribute("process", pl.Int64).is_not_null()
    around = tree.nearest(tree.is_of(Kind.REGION) & marked.to_numpy())
    groups = tree.spans["name"].gather(pl.Series(around).replace(-1, None))
    known = {name: tree.attribute(name, pl.Int64) for name in MEMORY}
    allocated = known["allocated_bytes"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    own = pl.Series("own_allocated_bytes", tree.own(allocated, among)).fill_nan(None)
    found = [series[rows] * (calls if name in _SUMMED else 1) for name, series in known.items()]
    memory = [*found, own.cast(pl.Int64)[rows] * calls]
    return layers.with_columns(
        pl.Series("row", rows),
        pl.Series("index", np.arange(1, len(rows) + 1)),
        groups[rows].alias("group"),
        attribute_column(layers, "phase"),
        _module(layers).alias("module"),
        pl.concat_str(_module(layers), _call(layers)).alias("layer"),
        pl.coalesce(attribute_column(layers, "module_class"), "name").alias("type"),
        layer_types(tree)[rows],
        calls.alias("calls"),
        attribute_column(layers, "synchronous_ns", pl.Float64),
        *_self_times(tree, among, rows),
        *memory,
    )


def _among(tree: Tree) -> NDArray[np.bool_]:
    layers = tree.is_of(Kind.LAYER)
    host = layers & tree.spans["device"].is_null().to_numpy()
    return host if host.any() else layers


def _module(layers: pl.DataFrame) -> pl.Expr:
    """Return the dotted path of each module; the name of what has none, as the outermost."""
    return pl.coalesce(attribute_column(layers, "module_path").replace("", None), "name")


def _call(layers: pl.DataFrame) -> pl.Expr:
    """Return the mark of each call of a module after its first, such as `#2`."""
    call = attribute_column(layers, "call_index", pl.Int64).fill_null(0)
    return pl.when(call > 0).then(pl.lit("#") + (call + 1).cast(pl.String)).otherwise(pl.lit(""))


def _self_times(tree: Tree, among: NDArray[np.bool_], rows: Ints) -> list[pl.Series]:
    """Return self times with their intervals, and those of devices.

    A self time is a difference. The relative error that the model's latency has is mostly that of
    the machine's speed, which all latencies share: of that part errors are subtracted as latencies
    are. What else a layer and the layers inside err by is independent: of that squares are added.
    """
    own, latency, half = tree.own_ns(among), tree.latency_ns(), _half(tree)
    relative = half[0] / latency[0] if latency[0] > 0 else 0.0
    common = np.nan_to_num(np.minimum(half, relative * latency))
    shared, squares = common.copy(), half**2 - common**2
    inside, above = tree.inside(among)
    np.subtract.at(shared, above, common[inside])
    np.add.at(squares, above, np.nan_to_num(squares[inside]))
    half = np.sqrt(np.maximum(squares, 0.0) + shared**2)
    device = tree.spans["device_ns"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    found = {
        "own_ns": own,
        "own_low_ns": np.maximum(own - half, 0.0),
        "own_high_ns": own + half,
        "own_device_ns": tree.own(device, among),
    }
    return [pl.Series(name, values[rows]).fill_nan(None) for name, values in found.items()]


def _half(tree: Tree) -> Floats:
    """Return how far the interval of each latency reaches; NaN where there is none."""
    latency, low, high = (
        pl.col(name).cast(pl.Float64)
        for name in ("latency_ns", "latency_low_ns", "latency_high_ns")
    )
    known = low.is_not_null() & high.is_not_null()
    reach = pl.when(known).then(pl.max_horizontal(high - latency, latency - low)).fill_null(np.nan)
    half: Floats = tree.spans.select(reach).to_series().to_numpy()
    return half
