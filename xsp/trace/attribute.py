"""Lists the fields of spans' attributes: their types, units, meanings and exported names.

In xsp's own files a field has its plain name. Exported spans have OpenTelemetry's name for the
field if there is such a name, otherwise `xsp.` and the plain name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.inexact import Codes, Inexact, codes_of
from xsp.level import Kind

# Version of the exported names and meanings, which docs/schema/ lists. The domain is
# reserved (RFC 2606) and stands in until the project has a domain of its own.
SCHEMA_URL = "https://xsp.invalid/schema/1.0.0"

# Prefix of the user's own attributes in the column `attributes`.
USER = "user."

# Exceptions by which a caller ends a span early, and that are no failures: what is said instead.
# PyTorch's checkpoints stop a recomputation when they have all they need.
EARLY_ENDS = {"_StopRecomputationError": "recomputed as far as needed"}

_STANDARD = {
    "error": "error.type",
    "caller_function": "code.function.name",
    "caller_file": "code.file.path",
    "caller_line": "code.line.number",
    # https://github.com/open-telemetry/semantic-conventions-genai, client-inference.md
    "generation": "gen_ai.operation.name",
    "generating_model": "gen_ai.request.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "first_token_s": "gen_ai.response.time_to_first_chunk",
}
# Data types, as polars writes them.
_INT, _FLOAT, _TEXT, _FLAG = "Int64", "Float64", "String", "Boolean"
_INTS, _SHAPES, _STRINGS = "List(Int64)", "List(List(Int64))", "List(String)"
_FLOATS = "List(Float64)"

_LAYER = (Kind.LAYER,)
_OP = (Kind.OP,)
_FRAMEWORK = (Kind.LAYER, Kind.OP)
_MEMORY = (Kind.REGION, *_FRAMEWORK)
_CALL = (Kind.CALL,)
_ALLOCATING = (Kind.LAYER, Kind.OP, Kind.LAUNCH)
_HOST = (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)
_WATCHED = (Kind.REGION, *_FRAMEWORK)
_SYSCALL = (Kind.SYSCALL,)
_LAUNCH = (Kind.LAUNCH,)
_KERNEL = (Kind.KERNEL,)
_ACTIVITIES = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
_TRANSFER = (Kind.MEMCPY, Kind.MEMSET)
_GENERATED = (Kind.OP, Kind.KERNEL)
_COMPUTING = (Kind.OP, Kind.CALL, Kind.LAUNCH, Kind.KERNEL)
_COUNTED = (Kind.LAUNCH, Kind.KERNEL)
_COPY = (Kind.MEMCPY,)
_REGION = (Kind.REGION,)
_MODULES = (Kind.REGION, Kind.LAYER)
_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
_ALL = tuple(Kind)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A field of the column `attributes`; null in spans that it does not apply to.

    Attributes:
        name: Name of the field.
        kinds: Kinds of span that have the field.
        type: Data type, as polars writes it.
        meaning: Meaning of the field, one sentence.
        unit: Unit of the number, empty where the field has none.
    """

    name: str
    kinds: tuple[Kind, ...]
    type: str
    meaning: str
    unit: str = ""

    @property
    def is_table(self) -> bool:
        """Whether the field is a table of its own, which stays in xsp's files."""
        return self.type == "List(Struct)"

    @property
    def exported(self) -> str:
        """Name of the field in exported spans."""
        return _STANDARD.get(self.name, f"xsp.{self.name}")


@dataclass(frozen=True, slots=True)
class Exported:
    """An attribute of exported spans that comes from columns of the trace.

    Attributes:
        name: Name of the attribute in exported spans.
        column: The column with its values; empty if they are computed from several columns.
        type: Data type, as polars writes it.
        meaning: Meaning of the attribute, one sentence.
        unit: Unit of the number, empty where the attribute has none.
    """

    name: str
    column: str
    type: str
    meaning: str
    unit: str = ""


# Tables are exempt from formatting: a row has at most two lines.
# fmt: off
ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("exact", _ALL, _FLAG,
        "Whether none of the reasons in `inexact` applies; null where no latency is known."),
    Attribute("inexact", _ALL, _STRINGS,
        "Reasons: `includes_overhead`, `warm_up_only`, `few_samples`, `unstable`, `inferred`."),
    Attribute("calls", _ALL, _INT,
        "How many occurrences it stands for, where a trace sums them up; null stands for 1."),
    Attribute("least_ns", _ALL, _FLOAT, "Latency of the shortest of these occurrences.", "ns"),
    Attribute("median_ns", _ALL, _FLOAT, "Median latency of these occurrences.", "ns"),
    Attribute("most_ns", _ALL, _FLOAT, "Latency of the longest of these occurrences.", "ns"),
    Attribute("two_kinds", _ALL, _TEXT,
        "How many of them took how long, where there are two kinds whose latencies differ much."),
    Attribute("calls_inferred", _ALL, _FLAG,
        "Whether `calls` is inferred from the calls of models that were recorded in full."),
    Attribute("error_calls", _ALL, _INT, "How many of the occurrences the exception ended."),
    Attribute("busy_ns", _ALL, _FLOAT,
        "Time in which at least one of them ran, where several ran at once.", "ns"),
    Attribute("elsewhere_ns", _REGION, _INT,
        "Time in which other threads ran what lies in it, and its own ran none of that.", "ns"),
    Attribute("awaiting_ns", _REGION, _FLOAT,
        "Time in which its event loop did other work, or none, on average: what it awaited.", "ns"),
    Attribute("operators_ns", _LAYER, _FLOAT,
        "Time in which at least one of its operators ran, of a layer made of its operators.", "ns"),
    Attribute("whole_block", _REGION, _FLAG,
        "Whether the trace is that of a whole block of a program; on the root only."),
    Attribute("is_group", _REGION, _FLAG,
        "Whether it sums up calls of one model with inputs of one shape, or training steps."),
    Attribute("cut", _REGION, _FLAG,
        "Whether it is a piece of a region that began in one thing and ended in another."),
    Attribute("program_part", _REGION, _FLAG,
        "Whether it is a part of a program, whose `overhead_ns` is by the program's own clock."),
    Attribute("scaled_ns", _ALL, _FLOAT,
        "By how much the children's latencies exceed the span's own, and were shrunk to be drawn.",
        "ns"),
    Attribute("synchronous_ns", _HOST, _FLOAT,
        "Latency where the host waits for each kernel, and libraries use one thread.", "ns"),
    Attribute("device_wait_ns", _REGION, _FLOAT,
        "What of the latency was nothing but waiting for devices at its end; on the root only.",
        "ns"),
    Attribute("self_functions", _MODULES, _STRINGS,
        "Functions that its self time (`self_ns`) went to, longest first: of layers those that "
        "ran, else those that were called where ways part."),
    Attribute("self_lines", _MODULES, _STRINGS,
        "File and line that each of these was seen in most often; or, without source or where ways "
        "part, that called it."),
    Attribute("self_shares", _MODULES, _FLOATS,
        "Share of each in its self time, of all samples 1."),
    Attribute("self_samples", _MODULES, _INT,
        "Number of samples behind that: of runs of the pass `stack`, or of a program."),
    Attribute("step", _REGION, _TEXT,
        "Name of the step of another tool's recording that it is, or of a root that it shows."),
    Attribute("process", _REGION, _INT,
        "Number of the process whose spans lie inside, of several recorded ones, from 0."),
    Attribute("rank", _REGION, _INT,
        "Number of that process among those of a distributed program."),
    Attribute("host", _REGION, _TEXT, "Name of the machine that it ran on."),
    Attribute("devices", _REGION, _STRINGS, "Names of the devices that it could use."),
    Attribute("error", _MODULES, _TEXT, "Class of the exception that left the span."),
    Attribute("workers", _REGION, _INT,
        "Number of processes that load data; 0 where the program itself does."),
    Attribute("batches_ready", _REGION, _INT,
        "How many batches the workers had ready when the program asked for one."),
    Attribute("worker_functions", _REGION, _STRINGS,
        "Functions that processes which the program had forked ran meanwhile, longest first: the "
        "workers that load data, in the wait for their batch, or else any others."),
    Attribute("worker_lines", _REGION, _STRINGS,
        "File and line that called each of these."),
    Attribute("worker_shares", _REGION, _FLOATS,
        "Share of each in the span's latency, by the mean process; less than 1 together where none "
        "was seen for a while."),
    Attribute("worker_waits", _REGION, _FLOAT,
        "Share of the span's latency in which the mean process waited for work."),
    Attribute("worker_samples", _REGION, _INT, "Number of samples behind that."),
    Attribute("generation", _REGION, _TEXT,
        "What a call of a language model's `generate` does: `text_completion`."),
    Attribute("generating_model", _REGION, _TEXT, "The model that generates."),
    Attribute("first_token_s", _REGION, _FLOAT,
        "Time in the model until the first token is there, on average of an occurrence.", "s"),
    Attribute("input_tokens", _REGION, _INT,
        "Tokens of the prompts that the model was given, on average; padding counts.", "tokens"),
    Attribute("output_tokens", _REGION, _INT,
        "Tokens that the model made, on average; of each beam, and after an end.", "tokens"),
    Attribute("recompiled", _REGION, _FLAG,
        "Whether a framework compiled or traced again in it what it had compiled."),
    Attribute("recompile_reason", _REGION, _TEXT,
        "Why the framework compiled or traced again, as it says itself; of the first of several."),
    Attribute("nvtx_domain", _HOST, _TEXT,
        "NVTX domain that the range was announced in; null for the domain without a name."),
    Attribute("running_ns", _WATCHED, _FLOAT,
        "Time on a processor, of the thread of the span; on average, as are the next ones.", "ns"),
    Attribute("runnable_ns", _WATCHED, _FLOAT,
        "Time in which its thread could have run, and waited for a processor.", "ns"),
    Attribute("blocked_ns", _WATCHED, _FLOAT,
        "Time in which its thread waited for something else; the three are all of its time.",
        "ns"),
    Attribute("blocked_in", _WATCHED, _TEXT, "System call in which it was blocked longest."),
    Attribute("woken_by", _WATCHED, _TEXT,
        "Thread, process or `interrupt` that woke it most often."),
    Attribute("preempted", _WATCHED, _FLOAT, "How often it had to give way to another thread."),
    Attribute("migrations", _WATCHED, _FLOAT, "How often it went on on another processor."),
    Attribute("page_faults", _WATCHED, _FLOAT,
        "How often it touched a page of memory that was not mapped."),
    Attribute("major_faults", _WATCHED, _FLOAT, "How many of these waited for a disk."),
    Attribute("io_read_bytes", _WATCHED, _FLOAT, "What its system calls read.", "bytes"),
    Attribute("io_written_bytes", _WATCHED, _FLOAT, "What its system calls wrote.", "bytes"),
    Attribute("cycles", _WATCHED, _FLOAT,
        "Cycles that its thread's processor worked for it, from samples; as are the next two."),
    Attribute("instructions", _WATCHED, _FLOAT, "Instructions that its thread executed."),
    Attribute("cache_misses", _WATCHED, _FLOAT,
        "Accesses to memory that no cache of the processor answered."),
    Attribute("thread_states", _REGION, "List(Struct)",
        "Name, running, runnable and blocked time of each thread in a step; on the root only."),
    Attribute("thread_timeline", _REGION, "List(Struct)",
        "What each thread did in one step, or in one window of a program; on the root only."),
    Attribute("energy_j", _MODULES, _FLOAT,
        "Energy of the GPUs, or without any of the CPU packages: of a step, of a whole program, or "
        "of one call of a layer.", "J"),
    Attribute("energy_low_j", _MODULES, _FLOAT, "Lower end of its 95 % interval.", "J"),
    Attribute("energy_high_j", _MODULES, _FLOAT, "Upper end of that.", "J"),
    Attribute("energy_source", _REGION, _TEXT,
        "`counter` of the device, or `power` summed up over time."),
    Attribute("energy_of", _REGION, _TEXT, "`devices`, or `processor`: the CPU packages."),
    Attribute("energy_how", _MODULES, _TEXT,
        "Of a layer: `repeated` by itself, or `regressed` over steps that last long."),
    Attribute("power_w", _MODULES, _FLOAT, "Mean power over the steps.", "W"),
    Attribute("idle_power_w", _REGION, _FLOAT, "Power before the steps, while nothing ran.", "W"),
    Attribute("gpu_busy_pct", _REGION, _FLOAT, "Share of time in which some kernel ran.", "%"),
    Attribute("sm_active_pct", _REGION, _FLOAT,
        "Share of multiprocessors that had work, on average over time.", "%"),
    Attribute("sm_occupancy_pct", _REGION, _FLOAT,
        "Share of warps that were active, of those that all multiprocessors can hold.", "%"),
    Attribute("tensor_active_pct", _REGION, _FLOAT,
        "Share of cycles in which tensor cores worked.", "%"),
    Attribute("dram_active_pct", _REGION, _FLOAT,
        "Share of the bandwidth of the device's memory that was used.", "%"),
    Attribute("sm_clock_mhz", _REGION, _FLOAT, "Mean clock of the multiprocessors.", "MHz"),
    Attribute("temperature_c", _REGION, _FLOAT, "Highest temperature of a GPU.", "°C"),
    Attribute("throttled_pct", _REGION, _FLOAT,
        "Share of readings in which a GPU held its clock down.", "%"),
    Attribute("throttle_reasons", _REGION, _STRINGS, "Reasons for that, the most frequent first."),
    Attribute("cpu_pct", _REGION, _FLOAT,
        "CPU time of the program's processes; 100 is one CPU.", "%"),
    Attribute("rss_bytes", _REGION, _INT,
        "Most memory that these held; pages that forks share count in each.", "bytes"),
    Attribute("read_bytes", _REGION, _FLOAT, "What they read from disks in a step.", "bytes"),
    Attribute("calls_per_step", _SYSCALL, _FLOAT, "How many of them a step makes, on average."),
    Attribute("steps_share", _SYSCALL, _FLOAT, "Share of steps in which there is one."),
    Attribute("failed_calls", _SYSCALL, _FLOAT, "How many of them failed in a step."),
    Attribute("io_bytes", _SYSCALL, _FLOAT, "What they read or wrote in a step.", "bytes"),
    Attribute("process_name", _SYSCALL, _TEXT,
        "Process that made them, if not the one that runs the model; null: that one."),
    Attribute("module_path", _LAYER, _TEXT,
        "Dotted path from the root module, empty for the root module itself."),
    Attribute("module_class", _LAYER, _TEXT, "Class of the module, such as `Conv2d`."),
    Attribute("module_type", _LAYER, _TEXT, "The class with the name of the module it is from."),
    Attribute("framework", _FRAMEWORK, _TEXT,
        "Framework that it is of: `keras`, `tensorflow`, `onnxruntime` or `jax`; null: PyTorch."),
    Attribute("layer_type", _FRAMEWORK, _TEXT,
        "What it computes, where a provider states that; analyses tell it of all others."),
    Attribute("call_index", _LAYER, _INT,
        "Which call of the module it is within the step, from 0."),
    Attribute("caller_function", _FRAMEWORK, _TEXT,
        "The user's function that called it, outside of the framework and Python's own library."),
    Attribute("caller_file", _FRAMEWORK, _TEXT, "The file of that function."),
    Attribute("caller_line", _FRAMEWORK, _INT, "The line of that file that called it."),
    Attribute("phase", _FRAMEWORK, _TEXT, "`forward` or `backward`."),
    Attribute("input_shapes", _FRAMEWORK, _SHAPES,
        "Shape of each tensor put in, those in lists too; null in place of an unknown list.",
        "elements"),
    Attribute("input_dtypes", _FRAMEWORK, _STRINGS,
        "Data type of each tensor put in; null in place of an unknown list."),
    Attribute("output_shapes", _FRAMEWORK, _SHAPES,
        "Shape of each tensor that came out.", "elements"),
    Attribute("output_dtypes", _FRAMEWORK, _STRINGS, "Data type of each tensor that came out."),
    Attribute("parameter_bytes", _FRAMEWORK, _INT,
        "Size of its parameters; of a module with those of the modules in it.", "bytes"),
    Attribute("buffer_bytes", _LAYER, _INT,
        "Size of the module's buffers, with those of the modules in it.", "bytes"),
    Attribute("shared_parameter_bytes", _LAYER, _INT,
        "Size of its parameters that a module before it, outside of it, holds as well: tied.",
        "bytes"),
    Attribute("frozen_parameter_bytes", _LAYER, _INT,
        "Size of its parameters that need no gradient.", "bytes"),
    Attribute("parameters_of", _OP, _STRINGS,
        "Paths of the modules whose parameters or buffers it was given."),
    Attribute("scope", _OP, _TEXT,
        "Path of the scope it was written in: TensorFlow or JAX code."),
    Attribute("node", _OP, _TEXT, "Name of the node in the graph of ONNX Runtime or TensorFlow."),
    Attribute("inputs", _OP, _STRINGS,
        "Operators whose outputs it takes: their `node`, else `hlo_op`; null where not known."),
    Attribute("execution_provider", _OP, _TEXT, "Execution provider of ONNX Runtime that ran it."),
    Attribute("input_bytes", _OP, _INT,
        "Size of the tensors put in that are no parameters.", "bytes"),
    Attribute("output_bytes", _OP, _INT, "Size of the tensors that came out.", "bytes"),
    Attribute("sequence", _OP, _INT, "Autograd sequence number, by which backward finds forward."),
    Attribute("collective", _GENERATED, _TEXT,
        "Collective operation of several processes that it is, such as `allreduce`."),
    Attribute("collective_group", _GENERATED, _TEXT, "Name of the group of these processes."),
    Attribute("wait_ns", _OP, _FLOAT,
        "What of its latency was waiting for other processes to arrive; the rest is work.", "ns"),
    Attribute("group_size", _GENERATED, _INT, "Number of processes in the group."),
    Attribute("group_ranks", _GENERATED, _TEXT,
        "Ranks of these processes, as the profiler lists them."),
    Attribute("in_elements", _GENERATED, _INT, "Elements that a process puts in.", "elements"),
    Attribute("out_elements", _GENERATED, _INT, "Elements that a process gets out.", "elements"),
    Attribute("element_type", _GENERATED, _TEXT, "Data type of these elements."),
    Attribute("collective_sequence", _GENERATED, _INT,
        "Number of the collective in its group: the same in all processes."),
    Attribute("allocated_bytes", _ALLOCATING, _INT, "Memory allocated within the span.", "bytes"),
    Attribute("freed_bytes", _ALLOCATING, _INT, "Memory freed within the span.", "bytes"),
    Attribute("peak_bytes", _MEMORY, _INT,
        "Most memory held at one time within the span, above what was held at its start.", "bytes"),
    Attribute("alive_at_peak_bytes", _FRAMEWORK, _INT,
        "What the span itself allocated and is alive when its step holds most memory.", "bytes"),
    Attribute("reaches_peak", _FRAMEWORK, _FLAG,
        "Whether the span allocated what makes its step hold most memory."),
    Attribute("library", _CALL, _TEXT, "The library, with its version where it is known."),
    Attribute("implementation", _CALL, _TEXT,
        "Which of its implementations the library chose, such as `jit:avx512_core`."),
    Attribute("propagation", _CALL, _TEXT, "What it computes, such as `forward_training`."),
    Attribute("algorithm", _CALL, _TEXT, "The library's word for how it computes it."),
    Attribute("problem", _CALL, _TEXT, "Sizes, in the library's own notation."),
    Attribute("formats", _CALL, _TEXT, "Data type and memory format of each tensor by its name."),
    Attribute("threads", (Kind.OP, Kind.CALL), _INT,
        "How many threads the library, or a node of ONNX Runtime, may use; null: not stated."),
    Attribute("flops", _COMPUTING, _INT,
        "Operations, a multiplication and an addition being two: of a call, or an operator of XLA, "
        "those that the sizes imply, of a kernel, or its launch, those counted."),
    Attribute("tensor_bytes", _CALL, _INT,
        "Size of all tensors read or written, each taken once.", "bytes"),
    Attribute("placement", _CALL, _TEXT,
        "How its place in time is known: by both `ends`, or by `start`, `end` or `order` alone."),
    Attribute("transfer_bytes", _TRANSFER, _INT, "Size of what was copied or set.", "bytes"),
    Attribute("direction", _COPY, _TEXT,
        "Where from and where to: `HtoD` is from the host to a device, `PtoP` between devices."),
    Attribute("source", _COPY, _TEXT, "Kind of memory that was copied from, such as `pinned`."),
    Attribute("destination", _TRANSFER, _TEXT, "Kind of memory that was written to."),
    Attribute("full_name", _KERNEL, _TEXT, "Name with template arguments and parameters."),
    Attribute("grid", _KERNEL, _INTS, "Size of the grid in x, y and z.", "blocks"),
    Attribute("block", _KERNEL, _INTS, "Size of a block in x, y and z.", "threads"),
    Attribute("registers", _KERNEL, _INT, "Registers per thread."),
    Attribute("static_shared_bytes", _KERNEL, _INT,
        "Shared memory per block that the kernel declares.", "bytes"),
    Attribute("dynamic_shared_bytes", _KERNEL, _INT,
        "Shared memory per block that the launch asked for.", "bytes"),
    Attribute("shared_bytes", _KERNEL, _INT,
        "Shared memory per block, where it is not told how much of it is static.", "bytes"),
    Attribute("occupancy_pct", _KERNEL, _FLOAT,
        "Theoretical: warps of it that fit on a multiprocessor, of those that could.", "%"),
    Attribute("achieved_occupancy_pct", _COUNTED, _FLOAT,
        "Counted: warps that were active on a multiprocessor, of those that could be.", "%"),
    Attribute("dram_read_bytes", _COUNTED, _INT,
        "Counted: read from the device's memory.", "bytes"),
    Attribute("dram_write_bytes", _COUNTED, _INT,
        "Counted: written to the device's memory.", "bytes"),
    Attribute("queue_delay_ns", _KERNEL, _INT,
        "Time from when it was queued on the host until it began; null where not asked for.", "ns"),
    Attribute("launched_by", _KERNEL, _TEXT, "The CUDA call that launched it."),
    Attribute("source_ops", _GENERATED, _TEXT,
        "Operators that it was generated for, or fused of, such as `aten.add, aten.relu`."),
    Attribute("fused_layers", _OP, _STRINGS,
        "Paths of the other layers whose operators were fused into it."),
    Attribute("framework_op", _KERNEL, _TEXT,
        "Operator of TensorFlow or JAX that it is of, with the scopes around it."),
    Attribute("unsteady", _FRAMEWORK, _FLAG,
        "Whether the profiler may leave it out of a run, because it is brief."),
    Attribute("hlo_op", _GENERATED, _TEXT, "Operator of XLA's compiled program that it is."),
    Attribute("hlo_module", _GENERATED, _TEXT, "Module of XLA that the operator is of."),
    Attribute("context", _DEVICE, _INT, "Number of the CUDA context."),
    Attribute("graph", _ACTIVITIES, _INT,
        "Number of the CUDA graph that it is a node of, or stands for as a whole."),
    Attribute("graph_node", _ACTIVITIES, _INT, "Number of that node."),
    Attribute("captured_node", _ACTIVITIES, _INT,
        "Number that the node had when it was captured; null where nobody saw that."),
    Attribute("created_nodes", _LAUNCH, _INTS,
        "Numbers of the nodes that the call captured into a CUDA graph."),
    Attribute("replayed", _HOST, _FLAG,
        "Whether it stands for what it was when a CUDA graph was captured, on the device."),
    Attribute("launched_kernel", _LAUNCH, _TEXT,
        "Full name of the kernel that it launched, of which events were counted, but no time."),
    Attribute("external_id", _LAUNCH, _INT,
        "Number that the framework or another tool gave CUPTI for the call."),
    Attribute("cupti_overhead_ns", _LAUNCH, _INT,
        "What CUPTI says that its own work took within the call.", "ns"),
    Attribute("module_loading_ns", _LAUNCH, _INT,
        "Time that the call took to load, or to compile, the code that it launched.", "ns"),
    Attribute("queue_full_ns", _LAUNCH, _INT,
        "Time that the call waited for room in the queue of launches: the host was ahead.", "ns"),
    Attribute("cuda_stream", _CALL, _TEXT, "Address of the CUDA stream that the call works on."),
)


EXPORTED: tuple[Exported, ...] = (
    Exported("xsp.level", "level", _TEXT, "Level of the stack: `model`, `framework`, …"),
    Exported("xsp.kind", "kind", _TEXT, "What the span is: `region`, `layer`, `op`, …"),
    Exported("xsp.subject", "", _TEXT, "What was measured; on the root only."),
    Exported("xsp.span_id", "", _TEXT, "Its `span_id` in the saved trace."),
    Exported("xsp.latency", "", _TEXT, "Latency, interval and share, to be read."),
    Exported("xsp.latency_ns", "latency_ns", _FLOAT, "Latency without the profiler.", "ns"),
    Exported("xsp.interval_low_ns", "latency_low_ns", _FLOAT,
        "Lower end of its 95 % interval.", "ns"),
    Exported("xsp.interval_high_ns", "latency_high_ns", _FLOAT,
        "Upper end of that interval.", "ns"),
    Exported("xsp.share_pct", "", _FLOAT, "Latency as a share of the model's.", "%"),
    Exported("xsp.self_ns", "self_ns", _FLOAT, "Latency less that of the spans below.", "ns"),
    Exported("xsp.overhead_ns", "overhead_ns", _FLOAT, "What was removed from it.", "ns"),
    Exported("xsp.device_ns", "device_ns", _FLOAT, "Device time of what ran below.", "ns"),
    Exported("xsp.runs", "runs", _INT, "Number of steps behind the latency."),
    Exported("xsp.start_ns", "start_ns", _INT, "Start from the root's start, exactly.", "ns"),
    Exported("xsp.end_ns", "end_ns", _INT, "End from the root's start, exactly.", "ns"),
    Exported("xsp.measured_start_ns", "measured_start_ns", _INT,
        "Start as the deepest run saw it.", "ns"),
    Exported("xsp.measured_end_ns", "measured_end_ns", _INT,
        "End as the deepest run saw it.", "ns"),
    Exported("thread.id", "thread", _INT, "Identifier of the thread."),
    Exported("xsp.device", "device", "Int32", "Number of the device."),
    Exported("xsp.stream", "stream", _INT, "Number of the device's stream."),
    Exported("xsp.correlation_id", "correlation_id", _INT,
        "What ties a launch to what it launched."),
    Exported("xsp.hidden_spans", "hidden_spans", _INT,
        "How many spans right below it, of kinds that were cut, are not shown."),
    Exported("xsp.rolled.count", "rolled_count", _INT, "How many spans were rolled up into it."),
    Exported("xsp.rolled.sum_ns", "", _FLOAT, "Sum of their latencies.", "ns"),
    Exported("xsp.rolled.min_ns", "rolled_min_ns", _FLOAT, "Shortest of their latencies.", "ns"),
    Exported("xsp.rolled.max_ns", "rolled_max_ns", _FLOAT, "Longest of their latencies.", "ns"),
)
# fmt: on


def find_attribute(name: str) -> Attribute | None:
    """Return the documented attribute of a name; None for others, such as the user's own."""
    return next((known for known in ATTRIBUTES if known.name == name), None)


def attribute_column(spans: pl.DataFrame, name: str, dtype: Any = pl.String) -> pl.Series:
    """Return one attribute of all spans, null throughout where the trace does not have it.

    A field of the same name but another type is a user's own attribute, and not returned.
    """
    if pl.Field(name, dtype) not in getattr(spans.schema["attributes"], "fields", ()):
        return pl.Series(name, [None], dtype=dtype).new_from_index(0, spans.height)
    return spans["attributes"].struct.field(name)


def inexact_column(spans: pl.DataFrame) -> Codes:
    """Return the code of reasons why each latency is not exact (`xsp.inexact`); 0 if it is.

    Files of earlier versions have `exact` alone, which is false there where overhead is left.
    """
    codes = codes_of(attribute_column(spans, "inexact", pl.List(pl.String())))
    inexact = ~attribute_column(spans, "exact", pl.Boolean).fill_null(value=True).to_numpy()
    known = spans["latency_ns"].is_not_null().to_numpy()
    codes[inexact & known & (codes == 0)] = Inexact.INCLUDES_OVERHEAD.bit
    return codes
