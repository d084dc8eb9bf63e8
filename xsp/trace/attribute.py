"""Attributes: every field that providers and merging put into a span, and its name outside.

Inside of xsp's files a field bears its plain name; where spans are handed over,
OpenTelemetry's name where it has one, else `xsp.` and the plain name.
"""

from __future__ import annotations

from dataclasses import dataclass

from xsp.level import Kind

# Version of the exported names and meanings; docs/schema/ says what it holds. The
# domain is one that never exists (RFC 2606), until the project has its own.
SCHEMA_URL = "https://xsp.invalid/schema/1.0.0"

# What stands before the names of the user's own attributes in `attributes`.
USER = "user."

_STANDARD = {"error": "error.type", "module_type": "code.function.name"}
_LAYER = (Kind.LAYER,)
_OP = (Kind.OP,)
_FRAMEWORK = (Kind.LAYER, Kind.OP)
_CALL = (Kind.CALL,)
_ALLOCATING = (Kind.LAYER, Kind.OP, Kind.LAUNCH)
_HOST = (Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL)
_ALL = tuple(Kind)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One documented field of the column `attributes`; null where it means nothing.

    Attributes:
        name: The field's name.
        kinds: Kinds of span that carry it.
        type: Polars data type, as polars writes it.
        unit: Unit of the number, empty where it has none.
        meaning: One sentence.
    """

    name: str
    kinds: tuple[Kind, ...]
    type: str
    unit: str
    meaning: str

    @property
    def exported(self) -> str:
        """The name that it has outside of xsp's own files."""
        return _STANDARD.get(self.name, f"xsp.{self.name}")


@dataclass(frozen=True, slots=True)
class Exported:
    """An attribute of exported spans that is a column of the trace, or made of such.

    Attributes:
        name: Its name outside.
        column: The column that it is, empty if it is made of several.
        type: Polars data type.
        unit: Unit of the number, empty where it has none.
        meaning: One sentence.
    """

    name: str
    column: str
    type: str
    unit: str
    meaning: str


_SHAPES = "List(List(Int64))"
_STRINGS = "List(String)"

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "exact",
        _ALL,
        "Boolean",
        "",
        "Whether the latency comes from runs in which nothing deeper was recorded.",
    ),
    Attribute(
        "scaled_ns",
        _ALL,
        "Float64",
        "ns",
        "By how much the children's latencies exceed the span's own, and were shrunk to be drawn.",
    ),
    Attribute(
        "serialised_ns",
        _HOST,
        "Float64",
        "ns",
        "Latency where the host waits for each kernel, and libraries use one thread.",
    ),
    Attribute(
        "device_wait_ns",
        (Kind.PIPELINE,),
        "Float64",
        "ns",
        "What of the latency was nothing but waiting for devices at its end; on the root only.",
    ),
    Attribute(
        "error",
        (Kind.PIPELINE, Kind.LAYER),
        "String",
        "",
        "Class of the exception that left the span.",
    ),
    Attribute(
        "module_path",
        _LAYER,
        "String",
        "",
        "Dotted path from the root module, empty for the root module itself.",
    ),
    Attribute("module_class", _LAYER, "String", "", "Class of the module, such as `Conv2d`."),
    Attribute(
        "module_type", _LAYER, "String", "", "The class with the name of the module it is from."
    ),
    Attribute(
        "call_index",
        _LAYER,
        "Int64",
        "",
        "Which call of the module it is within the evaluation, from 0.",
    ),
    Attribute("phase", _FRAMEWORK, "String", "", "`forward` or `backward`."),
    Attribute("input_shapes", _FRAMEWORK, _SHAPES, "elements", "Shape of each tensor put in."),
    Attribute("input_dtypes", _FRAMEWORK, _STRINGS, "", "Data type of each tensor put in."),
    Attribute("output_shapes", _LAYER, _SHAPES, "elements", "Shape of each tensor that came out."),
    Attribute("output_dtypes", _LAYER, _STRINGS, "", "Data type of each tensor that came out."),
    Attribute(
        "parameter_bytes",
        _LAYER,
        "Int64",
        "bytes",
        "Size of the module's parameters, with those of the modules in it.",
    ),
    Attribute(
        "buffer_bytes",
        _LAYER,
        "Int64",
        "bytes",
        "Size of the module's buffers, with those of the modules in it.",
    ),
    Attribute(
        "sequence", _OP, "Int64", "", "Autograd sequence number, by which backward finds forward."
    ),
    Attribute(
        "allocated_bytes", _ALLOCATING, "Int64", "bytes", "Memory allocated within the span."
    ),
    Attribute("freed_bytes", _ALLOCATING, "Int64", "bytes", "Memory freed within the span."),
    Attribute(
        "peak_bytes",
        _FRAMEWORK,
        "Int64",
        "bytes",
        "Most memory held at one time within the span, above what was held at its start.",
    ),
    Attribute("library", _CALL, "String", "", "The library, with its version where it is known."),
    Attribute(
        "implementation",
        _CALL,
        "String",
        "",
        "Which of its implementations the library chose, such as `jit:avx512_core`.",
    ),
    Attribute("propagation", _CALL, "String", "", "What it computes, such as `forward_training`."),
    Attribute("algorithm", _CALL, "String", "", "The library's word for how it computes it."),
    Attribute("problem", _CALL, "String", "", "Sizes, in the library's own notation."),
    Attribute(
        "formats", _CALL, "String", "", "Data type and memory format of each tensor by its name."
    ),
    Attribute("threads", _CALL, "Int64", "", "How many threads the library may use."),
    Attribute(
        "flops",
        _CALL,
        "Int64",
        "",
        "Operations that the sizes imply: a multiplication and an addition are two.",
    ),
    Attribute(
        "tensor_bytes",
        _CALL,
        "Int64",
        "bytes",
        "Size of all tensors read or written, each taken once.",
    ),
    Attribute(
        "placement",
        _CALL,
        "String",
        "",
        "How its place in time is known: by both `ends`, or by `start`, `end` or `order` alone.",
    ),
    Attribute(
        "transfer_bytes",
        (Kind.MEMCPY, Kind.MEMSET),
        "Int64",
        "bytes",
        "Size of what was copied or set.",
    ),
    Attribute(
        "direction",
        (Kind.MEMCPY,),
        "String",
        "",
        "Where from and where to: `HtoD` is from the host to a device, `PtoP` between devices.",
    ),
    Attribute(
        "source",
        (Kind.MEMCPY,),
        "String",
        "",
        "Kind of memory that was copied from, such as `pinned`.",
    ),
    Attribute(
        "destination",
        (Kind.MEMCPY, Kind.MEMSET),
        "String",
        "",
        "Kind of memory that was written to.",
    ),
    Attribute(
        "full_name", (Kind.KERNEL,), "String", "", "Name with template arguments and parameters."
    ),
    Attribute("grid", (Kind.KERNEL,), "List(Int64)", "blocks", "Size of the grid in x, y and z."),
    Attribute("block", (Kind.KERNEL,), "List(Int64)", "threads", "Size of a block in x, y and z."),
    Attribute("registers", (Kind.KERNEL,), "Int64", "", "Registers per thread."),
    Attribute(
        "static_shared_bytes",
        (Kind.KERNEL,),
        "Int64",
        "bytes",
        "Shared memory per block that the kernel declares.",
    ),
    Attribute(
        "dynamic_shared_bytes",
        (Kind.KERNEL,),
        "Int64",
        "bytes",
        "Shared memory per block that the launch asked for.",
    ),
    Attribute(
        "occupancy_pct",
        (Kind.KERNEL,),
        "Float64",
        "%",
        "Theoretical: warps of it that fit on a multiprocessor, of those that could.",
    ),
    Attribute(
        "queue_delay_ns",
        (Kind.KERNEL,),
        "Int64",
        "ns",
        "Time from when it was queued on the host until it began; from detail runs only.",
    ),
    Attribute("launched_by", (Kind.KERNEL,), "String", "", "The CUDA call that launched it."),
    Attribute(
        "source_ops",
        (Kind.KERNEL,),
        "String",
        "",
        "Operators that torch.compile generated it for, such as `aten.add, aten.relu`.",
    ),
    Attribute(
        "source_nodes",
        (Kind.KERNEL,),
        "String",
        "",
        "Nodes of the traced graph that these were; null if it is called for several sets of them.",
    ),
    Attribute(
        "context",
        (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC),
        "Int64",
        "",
        "Number of the CUDA context.",
    ),
    Attribute(
        "graph",
        (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET),
        "Int64",
        "",
        "Number of the CUDA graph that it is a node of.",
    ),
    Attribute(
        "graph_node", (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET), "Int64", "", "Number of that node."
    ),
    Attribute(
        "captured_node",
        (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET),
        "Int64",
        "",
        "Number that the node had when it was captured; null where nobody saw that.",
    ),
    Attribute(
        "created_nodes",
        (Kind.LAUNCH,),
        "List(Int64)",
        "",
        "Numbers of the nodes that the call captured into a CUDA graph.",
    ),
    Attribute(
        "replayed",
        (Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL),
        "Boolean",
        "",
        "Whether it stands for what it was when a CUDA graph was captured, on the device.",
    ),
    Attribute(
        "external_id",
        (Kind.LAUNCH,),
        "Int64",
        "",
        "Number that the framework or another tool gave CUPTI for the call.",
    ),
    Attribute(
        "cupti_overhead_ns",
        (Kind.LAUNCH,),
        "Int64",
        "ns",
        "What CUPTI says that its own work took within the call.",
    ),
    Attribute(
        "cuda_stream", _CALL, "String", "", "Address of the CUDA stream that the call works on."
    ),
)


EXPORTED: tuple[Exported, ...] = (
    Exported("xsp.level", "level", "String", "", "Level of the stack: `model`, `framework`, …"),
    Exported("xsp.kind", "kind", "String", "", "What the span is: `pipeline`, `layer`, `op`, …"),
    Exported("xsp.subject", "", "String", "", "What was measured; on the root only."),
    Exported("xsp.span_id", "", "String", "", "Its `span_id` in the saved trace."),
    Exported("xsp.latency", "", "String", "", "Latency, interval and share, to be read."),
    Exported("xsp.latency_ns", "latency_ns", "Float64", "ns", "Latency without the profiler."),
    Exported(
        "xsp.interval_low_ns", "latency_low_ns", "Float64", "ns", "Lower end of its 95 % interval."
    ),
    Exported(
        "xsp.interval_high_ns", "latency_high_ns", "Float64", "ns", "Upper end of that interval."
    ),
    Exported("xsp.share_pct", "", "Float64", "%", "Latency as a share of the model's."),
    Exported("xsp.self_ns", "self_ns", "Float64", "ns", "Latency less that of the spans below."),
    Exported("xsp.overhead_ns", "overhead_ns", "Float64", "ns", "What was removed from it."),
    Exported("xsp.device_ns", "device_ns", "Float64", "ns", "Device time of what ran below."),
    Exported("xsp.runs", "runs", "Int64", "", "How many evaluations the latency rests on."),
    Exported("xsp.start_ns", "start_ns", "Int64", "ns", "Start from the root's start, exactly."),
    Exported("xsp.end_ns", "end_ns", "Int64", "ns", "End from the root's start, exactly."),
    Exported(
        "xsp.measured_start_ns",
        "measured_start_ns",
        "Int64",
        "ns",
        "Start as the deepest run saw it.",
    ),
    Exported(
        "xsp.measured_end_ns", "measured_end_ns", "Int64", "ns", "End as the deepest run saw it."
    ),
    Exported("thread.id", "thread", "Int64", "", "Identifier of the thread."),
    Exported("xsp.device", "device", "Int32", "", "Number of the device."),
    Exported("xsp.stream", "stream", "Int64", "", "Number of the device's stream."),
    Exported(
        "xsp.correlation_id",
        "correlation_id",
        "Int64",
        "",
        "What ties a launch to what it launched.",
    ),
    Exported(
        "xsp.hidden_spans",
        "hidden_spans",
        "Int64",
        "",
        "How many spans right below it, of kinds that were cut, are not shown.",
    ),
    Exported(
        "xsp.rolled.count", "rolled_count", "Int64", "", "How many spans were rolled up into it."
    ),
    Exported("xsp.rolled.sum_ns", "", "Float64", "ns", "Sum of their latencies."),
    Exported("xsp.rolled.min_ns", "rolled_min_ns", "Float64", "ns", "Shortest of their latencies."),
    Exported("xsp.rolled.max_ns", "rolled_max_ns", "Float64", "ns", "Longest of their latencies."),
)


def attribute(name: str) -> Attribute | None:
    """Return what is known of an attribute, or None: pipeline spans carry the user's own."""
    return next((known for known in ATTRIBUTES if known.name == name), None)
