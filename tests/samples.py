"""Traces written by hand, for the tests of whatever shows, saves or analyses one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl
from hypothesis import strategies as st

from xsp.level import Kind
from xsp.reading.accounting import THREADS, TIMELINE
from xsp.trace.attribute import find_attribute
from xsp.trace.document import SPAN_SCHEMA, Trace

_FIELDS: dict[str, Any] = {
    "exact": pl.Boolean,
    "inexact": pl.List(pl.String),
    "scaled_ns": pl.Float64,
    "module_path": pl.String,
    "module_class": pl.String,
    "phase": pl.String,
    "input_shapes": pl.List(pl.List(pl.Int64)),
    "parameter_bytes": pl.Int64,
    "error": pl.String,
    "calls": pl.Int64,
    "least_ns": pl.Float64,
    "most_ns": pl.Float64,
    "busy_ns": pl.Float64,
    "whole_block": pl.Boolean,
}
_STRUCTS: dict[str, Any] = {"thread_states": THREADS, "thread_timeline": TIMELINE}
_TYPES: dict[str, Any] = {
    "Int64": pl.Int64,
    "Float64": pl.Float64,
    "String": pl.String,
    "Boolean": pl.Boolean,
    "List(Int64)": pl.List(pl.Int64),
    "List(String)": pl.List(pl.String),
    "List(Float64)": pl.List(pl.Float64),
    "List(List(Int64))": pl.List(pl.List(pl.Int64)),
}


@dataclass
class Node:
    """A span to be: its latency is its self time and that of its children on the same thread.

    Attributes:
        kind: Kind of the span.
        name: Name of the span.
        own_ns: Time that it takes without its children.
        children: Spans in it.
        attributes: Attributes of the span by their names.
        columns: Other values of columns, such as `thread` of what runs beside its parent, and
            `device` of what runs on a device.
        latency_ns: Its latency.
    """

    kind: str
    name: str
    own_ns: int = 0
    children: list[Node] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    latency_ns: int = field(init=False)

    def __post_init__(self) -> None:
        inside = (child.latency_ns for child in self.children if not child.is_elsewhere)
        self.latency_ns = self.own_ns + sum(inside)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the node runs on a device, or on another thread than its parent."""
        return "device" in self.columns or "thread" in self.columns


def op(name: str, *children: Node, own_ns: int = 1_000) -> Node:
    return Node("op", name, own_ns, list(children))


def layer(name: str, module: str, *children: Node, own_ns: int = 2_000, **more: Any) -> Node:
    return Node("layer", name, own_ns, list(children), {"module_class": module, **more})


def inexact(*reasons: str) -> dict[str, Any]:
    """Return the attributes of a span whose latency is not exact, for these reasons."""
    return {"exact": False, "inexact": list(reasons)}


def pipeline(name: str, *children: Node, own_ns: int = 2_000) -> Node:
    return Node("region", name, own_ns, list(children))


def frame(
    root: Node, *, margin: float = 0.01, overhead: float = 0.1, runs: int = 30
) -> pl.DataFrame:
    """Return the spans of a tree, one after the other, children first in their parent's time."""
    columns: dict[str, list[Any]] = {name: [] for name in SPAN_SCHEMA}
    attributes: list[dict[str, Any]] = []
    fields = _fields(root)
    stack: list[tuple[Node, int | None, str, int]] = [(root, None, root.name, 0)]
    while stack:
        node, parent, path, start = stack.pop()
        row = len(attributes)
        attributes.append(dict.fromkeys(fields) | {"exact": True} | node.attributes)
        known = _span(node, start, margin=margin, overhead=overhead) | node.columns
        for name in columns.keys() - {"span_id", "parent_id", "path", "runs"}:
            columns[name].append(known.get(name))
        columns["span_id"].append(row + 1)
        columns["parent_id"].append(parent)
        columns["path"].append(path)
        columns["runs"].append(runs)
        stack.extend(reversed(_below(node, row + 1, path, start)))
    return pl.DataFrame(columns, schema=SPAN_SCHEMA).with_columns(
        pl.Series("attributes", attributes, dtype=pl.Struct(fields))
    )


def _fields(root: Node) -> dict[str, Any]:
    """Return the type of each attribute that a tree's spans have."""
    named, stack = dict(_FIELDS), [root]
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        for name in node.attributes.keys() - named.keys():
            if name in _STRUCTS:
                named[name] = _STRUCTS[name]
                continue
            known = find_attribute(name)
            assert known is not None, name
            named[name] = _TYPES[known.type]
    return named


def trace(root: Node, **metadata: Any) -> Trace:
    known = {"name": root.name, "warnings": [], "levels": {"model": "measured"}}
    return Trace(frame(root), known | metadata)


def _span(node: Node, start: int, *, margin: float, overhead: float) -> dict[str, Any]:
    latency = node.latency_ns
    return {
        "kind": node.kind,
        "level": Kind(node.kind).level.label,
        "name": node.name,
        "start_ns": start,
        "end_ns": start + latency,
        "latency_ns": float(latency),
        "latency_low_ns": latency * (1 - margin),
        "latency_high_ns": latency * (1 + margin),
        "self_ns": float(node.own_ns),
        "overhead_ns": latency * overhead,
        "measured_start_ns": start * 2,
        "measured_end_ns": (start + latency) * 2,
        "thread": None if "device" in node.columns else 1,
    }


def _below(
    node: Node, parent: int, path: str, start: int
) -> list[tuple[Node, int | None, str, int]]:
    seen: dict[str, int] = {}
    below: list[tuple[Node, int | None, str, int]] = []
    for child in node.children:
        seen[child.name] = number = seen.get(child.name, 0) + 1
        suffix = f"#{number}" if number > 1 else ""
        below.append((child, parent, f"{path}/{child.name}{suffix}", start))
        start += 0 if child.is_elsewhere else child.latency_ns
    return below


def conv(name: str, own_ns: int) -> Node:
    leaf = op("aten::mkldnn_convolution", op("aten::empty", own_ns=900), own_ns=own_ns)
    chain = op("aten::conv2d", op("aten::convolution", op("aten::_convolution", leaf)))
    return layer(name, "Conv2d", chain, own_ns=4_000)


def norm(name: str, own_ns: int) -> Node:
    inner = op("aten::_batch_norm_impl_index", op("aten::native_batch_norm", own_ns=own_ns))
    return layer(name, "BatchNorm2d", op("aten::batch_norm", inner), own_ns=3_000)


def relu(name: str = "relu", own_ns: int = 40_000) -> Node:
    return layer(name, "ReLU", op("aten::relu_", op("aten::clamp_min_", own_ns=own_ns)))


def bottleneck(name: str, scale: int, *, downsample: bool = False) -> Node:
    parts = [conv("conv1", 150 * scale), norm("bn1", 20_000), relu()]
    parts += [conv("conv2", 320 * scale), norm("bn2", 21_000), relu()]
    parts += [conv("conv3", 180 * scale), norm("bn3", 60_000)]
    if downsample:
        parts.append(layer("downsample", "Sequential", conv("0", 170 * scale), norm("1", 55_000)))
    return layer(name, "Bottleneck", *parts, op("aten::add_", own_ns=50_000), relu())


def resnet() -> Node:
    """Return a ResNet-50: 16 blocks in four stages, as torch shows it."""
    stages = []
    for stage, (blocks, scale) in enumerate(((3, 2_100), (4, 2_400), (6, 2_600), (3, 3_300)), 1):
        parts = [bottleneck(str(i), scale, downsample=i == 0) for i in range(blocks)]
        stages.append(layer(f"layer{stage}", "Sequential", *parts))
    pool = layer("maxpool", "MaxPool2d", op("aten::max_pool2d", own_ns=1_200_000))
    average = layer("avgpool", "AdaptiveAvgPool2d", op("aten::mean", own_ns=60_000))
    fc = layer("fc", "Linear", op("aten::linear", op("aten::addmm", own_ns=420_000)))
    stem = [conv("conv1", 2_600_000), norm("bn1", 300_000), relu(own_ns=250_000), pool]
    flat = op("aten::flatten", op("aten::reshape"))
    model = layer("ResNet", "ResNet", *stem, *stages, average, flat, fc, own_ns=40_000)
    return pipeline("predict", model)


def transformer(blocks: int = 12, scale: int = 1_000) -> Node:
    """Return an encoder of equal blocks."""

    def linear(name: str, own: int) -> Node:
        parts = (op("aten::t", own_ns=900), op("aten::addmm", own_ns=own * scale))
        return layer(name, "Linear", op("aten::linear", *parts))

    def block(name: str) -> Node:
        scores = op("aten::scaled_dot_product_attention", own_ns=400 * scale)
        attention = layer(
            "attn", "Attention", linear("qkv", 900), scores, linear("proj", 310), own_ns=30_000
        )
        gelu = layer("act", "GELU", op("aten::gelu", own_ns=150 * scale))
        mlp = layer("mlp", "Mlp", linear("fc1", 1_250), gelu, linear("fc2", 1_190))
        norms = [
            layer(n, "LayerNorm", op("aten::layer_norm", own_ns=60 * scale)) for n in ("ln1", "ln2")
        ]
        return layer(
            name, "Block", norms[0], attention, op("aten::add", own_ns=9_000), norms[1], mlp
        )

    embed = layer("patch_embed", "PatchEmbed", conv("proj", 900 * scale))
    stack = layer("blocks", "Sequential", *(block(str(i)) for i in range(blocks)))
    return pipeline("predict", layer("Encoder", "Encoder", embed, stack, linear("head", 90)))


def wide(operators: int) -> Node:
    """Return a model of thousands of operators that do not repeat next to each other."""
    names = ("aten::mul", "aten::add", "aten::sigmoid", "aten::tanh")
    ops = [op(names[i % 4], own_ns=500 + i % 7 * 100) for i in range(operators)]
    return pipeline("predict", layer("Cell", "Cell", *ops))


def hostile() -> Node:
    """Return a trace whose names try to break whatever prints them."""
    names = (
        'quoted "name" & <b>bold</b>',
        "two\nlines\tand a tab",
        "\x1b[31mred\x1b[0m \x00 \x07",
        "right\u202eto left\u2028separator",
        "x" * 3_000,
        "層の名前" * 30,
        "",
        "</details></div><script>alert(1)</script>",
        "lone \ud800 surrogate".encode("utf-8", "replace").decode(),
    )
    return pipeline("predict", *(layer(n, n, own_ns=1_000_000) for n in names))


# Any tree whose leaves are operators, under names of any kind.
TREES = st.recursive(
    st.builds(op, st.text(max_size=8), own_ns=st.integers(0, 10_000)),
    lambda below: st.builds(
        lambda name, children, own: layer(name, "Module", *children, own_ns=own),
        st.text(max_size=8),
        st.lists(below, max_size=5),
        st.integers(0, 10_000),
    ),
    max_leaves=40,
)
