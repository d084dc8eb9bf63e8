"""Records TensorFlow's operators, and later makes rows of kind op from the records."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from xsp.clock import Clock, SystemClock
from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.text import element_type
from xsp.xplane import Graph, Module, Shape, modules, operands_of, read_space
from xsp_levels.framework.keras.index import LayerIndex, layer_index
from xsp_levels.framework.memory import memory_columns, sorted_allocations
from xsp_levels.framework.tensorflow.profiler.fusion import Nodes, graphs, with_main
from xsp_levels.framework.tensorflow.profiler.graph import in_layers
from xsp_levels.framework.tensorflow.profiler.parameter import functions, parameter_nodes
from xsp_levels.framework.tensorflow.profiler.row import operator_table
from xsp_levels.framework.tensorflow.profiler.run import innermost
from xsp_levels.framework.tensorflow.profiler.session import Session, make_range
from xsp_levels.framework.tensorflow.program.effect import traced_anew
from xsp_levels.native.alignment import PREFIX, REPEATS, AnchorEvents, AnchorReading, align

# Nodes in whose place the nodes of a branch or of a loop run.
_CONTROL = re.compile(r"(Stateless)?(If|Case|While)$|For$")

_RIVAL = (
    "operators are missing from the moment TensorFlow's profiler started, because a process can "
    "have only one session. End it before you measure."
)


@dataclass(frozen=True, slots=True)
class OperatorRecords:
    """The profiler's events, uninterpreted.

    Attributes:
        space: An XSpace, as the profiler serializes it; empty if nothing was recorded.
        readings: The measurement's clock around the anchors among the events.
        layers: The layers of Keras that operators can be of, by their scopes.
        shapes: Arrays that nodes make, as texts, by the function and the node; in detail runs.
        parameters: Nodes that depend on no data, by the function (`parameter_nodes`).
        graphs: Nodes of the functions, as they were before any were fused (`fusion.graphs`).
        detail: Whether shapes and memory were asked for.
        whole: Whether operators that TensorFlow knows to be brief were recorded in any case.
        warnings: Sentences about what could not be recorded, and why.
    """

    space: bytes = b""
    readings: tuple[AnchorReading, ...] = ()
    layers: LayerIndex = field(default_factory=LayerIndex)
    shapes: dict[str, dict[str, str]] = field(default_factory=dict)
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    graphs: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    detail: bool = False
    whole: bool = False
    warnings: tuple[str, ...] = ()


class OperatorRecorder:
    """Records every operator of the process between `start` and `stop`.

    If the user starts TensorFlow's profiler in the meantime, the recording ends.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._now: Callable[[], int] = SystemClock.now
        self._readings: list[AnchorReading] = []
        self._warnings: list[str] = []
        self._space = b""
        self._detail = self._whole = False

    def start(self, clock: Clock, *, detail: bool, whole: bool = False) -> None:
        """Begin to record; if that is impossible, the records of `stop` say why.

        Args:
            clock: The clock of the visit.
            detail: Whether shapes and memory are recorded.
            whole: Whether operators that TensorFlow knows to be brief are recorded in any case;
                with shapes they are.
        """
        self._now, self._detail, self._whole = clock.now, detail, whole
        try:
            self._session = Session(self._give_way, brief=detail or whole)
        except RuntimeError as error:
            self._warnings.append(f"operators are missing: {error}")
            return
        self._anchor(REPEATS)

    def anchor_thread(self) -> None:
        """Make an anchor on the calling thread, which tells the profiler's number of the thread."""
        if self._session is not None:
            self._anchor(1)

    def disarm(self) -> None:
        """End the recording now; `stop` returns the records later."""
        session = self._session
        if session is None:
            return
        try:
            self._anchor(REPEATS)
        finally:
            self._session = None
            try:
                self._space = session.end()
            except RuntimeError as error:
                self._warnings.append(f"operators are missing: {error}")

    def stop(self) -> OperatorRecords:
        """End the recording, unless `disarm` has, and return the records."""
        self.disarm()
        return OperatorRecords(
            space=self._space,
            readings=tuple(self._readings),
            layers=layer_index(),
            shapes=stated_shapes(self._space) if self._detail else {},
            parameters=parameter_nodes(self._space),
            graphs=graphs(self._space),
            detail=self._detail,
            whole=self._whole,
            warnings=(*self._warnings, *retraced(self._space)),
        )

    def _anchor(self, repeats: int) -> None:
        name = PREFIX + str(threading.get_ident())
        for _ in range(repeats):
            before = self._now()
            end = make_range(name)
            inside = self._now()
            end()
            after = self._now()
            self._readings.append(AnchorReading(threading.get_ident(), before, inside, after))

    def _give_way(self) -> None:
        """End here and now: the user starts a session, and there can be only one."""
        self._warnings.append(_RIVAL)
        self.disarm()


def operator_rows(records: OperatorRecords) -> SpanRows:
    """Return a row per operator, and one per layer that no Python call shows.

    Raises:
        ProviderError: The profiler recorded operators but no anchors, so no time is known.
    """
    events = read_events(records.space, records.readings)
    table = operator_table(events)
    if not table.height:
        return no_rows()
    table = with_main(with_instructions(table, records.space), records.graphs)
    columns = detail_columns(table, events, records.shapes) if records.detail else {}
    return in_layers(
        table,
        columns,
        records.layers,
        records.parameters,
        {**_xla_graphs(table, records.space), **_sources(records.graphs)},
        brief_left_out=not (records.whole or records.detail),
        whole=records.whole,
    )


def compile_rows(records: OperatorRecords) -> SpanRows:
    """Return a row of kind region for each time that a function was traced to a graph."""
    return tracing_rows(read_events(records.space, records.readings))


def _sources(known: Mapping[str, Nodes]) -> dict[str, Graph]:
    return {
        function: {
            name: None if _CONTROL.match(operator) else sources
            for name, (operator, *sources) in nodes.items()
        }
        for function, nodes in known.items()
    }


def _xla_graphs(table: pl.DataFrame, space: bytes) -> dict[str, Graph]:
    """Return the operands of each instruction, by XLA's module and the instruction's name."""
    if not (table["sort"] == "xla").any():
        return {}
    return {module.name: operands_of(module) for module in modules(read_space(space))}


# Makes rows and sentences about functions that were traced to graphs anew.

_BUILDING = "tf.function-graph_building"
_TRACED = "traced"  # how `tf_function_call` begins of a call for which a graph was made
_FIRST = 2  # a function that makes variables is traced twice at first


def tracing_rows(events: pl.DataFrame) -> SpanRows:
    """Return a row for each time that a function was traced anew, outside of others.

    What the first call of a function traces is left out: it is in no step that counts.
    """
    if not events.width:
        return no_rows()
    built, calls = events.filter(pl.col("name") == _BUILDING), _again(events)
    around = innermost(calls, built)
    outermost = innermost(built, built.with_columns(pl.col("start_ns") - 1)) < 0
    kept = pl.Series((around >= 0) & outermost, dtype=pl.Boolean)
    built = built.filter(kept)
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": "trace " + calls["name"].gather(pl.Series(around).filter(kept)),
            "start_ns": built["start_ns"],
            "end_ns": built["end_ns"],
            "thread": built["thread"],
        }
    )


def retraced(space: bytes) -> tuple[str, ...]:
    """Return a sentence for each function that was traced again after it had been called."""
    plane = read_space(space).plane("/host:CPU") if b"traced-" in space else None
    if plane is None:
        return ()
    stats = {"tf_function_call": pl.String, "tracing_count": pl.Int64}
    names = _again(plane.events(stats).frame)["name"].unique(maintain_order=True)
    return tuple(map(traced_anew, names))


def _again(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in which a function was traced that had been called before."""
    traced = pl.col("tf_function_call").str.starts_with(_TRACED)
    return events.filter(traced, pl.col("tracing_count") > _FIRST)


# Reads the shapes of nodes' outputs from the graphs of the functions that ran.


def stated_shapes(space: bytes) -> dict[str, dict[str, str]]:
    """Return the arrays that each node makes, by the function and the node's name.

    Args:
        space: What the profiler recorded, which names the functions.

    Returns:
        Element types and sizes, such as `float32[8,6,6,64]`, one behind the other; nodes of which
        an array's shape is not known before the function runs are left out.
    """
    names = set(functions(space))
    return {name: _shapes(graph) for name, graph in _graphs() if name in names} if names else {}


def _graphs() -> list[tuple[str, Any]]:
    """Return the graphs of all functions that were traced, by their names in the runtime.

    The runtime's own definitions do not say of what shape a variable is.
    """
    from tensorflow.python.eager.polymorphic_function.concrete_function import (  # noqa: PLC0415
        ConcreteFunction,
    )

    found = [each for each in gc.get_objects() if type(each) is ConcreteFunction]
    return [(_name(each), each.graph) for each in found]


def _name(function: Any) -> str:
    name = function.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _shapes(graph: Any) -> dict[str, str]:
    texts = {node.name: _text(node.outputs) for node in graph.get_operations()}
    return {name: text for name, text in texts.items() if text}


def _text(outputs: Any) -> str:
    known = [each for each in outputs if each.shape.is_fully_defined()]
    if len(known) < len(outputs):
        return ""
    return "".join(
        f"{each.dtype.name}[{','.join(str(size) for size in each.shape.as_list())}]"
        for each in known
        if each.dtype.name != "resource"
    )


# Finds the node that each XLA instruction was made for, and the instruction's shapes.

# The nodes, and the arrays that go in and come out as texts, by module and instruction.
Made = tuple[str, str, str]
_NONE: Made = ("", "", "")


def with_instructions(table: pl.DataFrame, space: bytes) -> pl.DataFrame:
    """Return operators with `origin`, and those of XLA with `shape` and `made`.

    Args:
        table: Operators (`operator_table`).
        space: What the profiler recorded.

    Returns:
        The operators; `origin` is the name of the node that an operator was made for, which is its
        own outside of XLA's programs; `made` are the arrays that come out, as a text.
    """
    if not (table["sort"] == "xla").any():
        made = pl.lit(None, pl.String)
        return table.with_columns(origin="node", made=made)
    known = dict(each for module in modules(read_space(space)) for each in _of_module(module))
    found = [known.get(key, _NONE) for key in table.select("hlo_module", "hlo_op").iter_rows()]
    node, given, out = zip(*found, strict=True)
    columns = pl.DataFrame(
        {"node": node, "given": given, "out": out},
        dict.fromkeys(("node", "given", "out"), pl.String),
    )
    of_xla = pl.col("sort") == "xla"
    return table.with_columns(
        origin=pl.when(of_xla).then(columns["node"]).otherwise("node"),
        shape=pl.when(of_xla).then(columns["given"]).otherwise("shape"),
        made=pl.when(of_xla).then(columns["out"]),
    )


def _of_module(module: Module) -> Iterator[tuple[tuple[str, str], Made]]:
    """Yield module and name of each instruction, and what is known of it."""
    for instructions in module.computations.values():
        for each in instructions.values():
            operands = [instructions[number] for number in each.operands if number in instructions]
            given = "".join(_xla_text(operand.shapes) for operand in operands)
            yield (module.name, each.name), (each.op_name, given, _xla_text(each.shapes))


def _xla_text(shapes: tuple[Shape, ...]) -> str:
    return "".join(f"{each.element}[{','.join(map(str, each.sizes))}]" for each in shapes)


# Reads the host's events from an XSpace of TensorFlow's profiler, on the measurement's clock.

_HOST = "/host:CPU"
_INPUT = "tf_data_"  # names of the threads of tf.data, which load data beside the model

# What events say of themselves, besides name and times.
_STATS = {
    "eager_op": pl.String,  # type of an operator that Python asked for, or name of a function
    "is_func": pl.Int64,
    "id": pl.Int64,  # number of the graph run
    "step_id": pl.Int64,  # the same, of an operator that does not wait for its end
    "kernel_type": pl.String,
    "name": pl.String,  # of the node, which becomes the column `stat.name`
    "_p": pl.Int64,  # what ties two events: here of the event that comes first
    "_c": pl.Int64,  # and here of the one that follows
    "tf_function_call": pl.String,
    "tracing_count": pl.Int64,
    "hlo_op": pl.String,
    "hlo_module": pl.String,
    "program_id": pl.Int64,
    "requested_bytes": pl.Int64,
    "region_type": pl.String,
    "data_type": pl.Int64,
    "shape": pl.String,
}

_LOST = (
    "TensorFlow's operators are missing: its profiler recorded none of xsp's marks. Measure again."
)


def read_events(space: bytes, readings: Sequence[AnchorReading]) -> pl.DataFrame:
    """Return the events of the host's threads, without those of tf.data.

    Returns:
        `name`, `start_ns` and `end_ns` on the measurement's clock, `thread` as rows bear it,
        `line`, a column for each stat, and `is_python`: whether Python runs on the thread. No
        columns where there are no events.

    Raises:
        ProviderError: There are events, but no anchors among them.
    """
    plane = read_space(space).plane(_HOST)
    if plane is None:
        return pl.DataFrame()
    found = plane.events(_STATS).frame
    is_anchor = found["name"].str.starts_with(PREFIX)
    seen = _anchors(found.filter(is_anchor))
    events = found.filter(~is_anchor & ~pl.col("line_name").str.starts_with(_INPUT))
    if not events.height:
        return pl.DataFrame()
    alignment = align(readings, seen)
    if alignment is None:
        raise ProviderError(_LOST)
    known = seen.threads()
    # The numbers that rows bear: the vendor's own, negated, where Python has none.
    lines = events["line_id"]
    numbers = {line: known.get(line, -abs(line)) for line in lines.unique().to_list()}
    threads = lines.replace_strict(numbers, return_dtype=pl.Int64)
    return events.with_columns(
        start_ns=pl.Series(alignment.convert(events["start_ns"].to_numpy())),
        end_ns=pl.Series(alignment.convert(events["end_ns"].to_numpy())),
        thread=threads,
        is_python=events["line_id"].is_in(list(known)),
    )


def _anchors(events: pl.DataFrame) -> AnchorEvents:
    events = events.sort("start_ns")
    named = events["name"].str.strip_prefix(PREFIX).cast(pl.Int64)
    return AnchorEvents(
        thread=named.to_numpy(),
        number=events["line_id"].to_numpy(),
        start=events["start_ns"].to_numpy(),
        end=events["end_ns"].to_numpy(),
    )


# Makes columns of shapes and memory for the operators of a detail run.

_ALLOCATED, _FREED = "MemoryAllocation", "MemoryDeallocation"
_MEMORY = ("attr.allocated_bytes", "attr.freed_bytes", "attr.peak_bytes")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_SHAPES, _TYPES = pl.List(pl.List(pl.Int64)), pl.List(pl.String)
# TensorFlow's numbers of element types, as PyTorch spells these.
_ELEMENTS = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16",
    22: "uint32", 23: "uint64",
}  # fmt: skip


def detail_columns(
    table: pl.DataFrame, events: pl.DataFrame, stated: Mapping[str, Mapping[str, str]]
) -> dict[str, pl.Series]:
    """Return columns of shapes, element types and memory for a table of operators.

    Args:
        table: Operators (`operator_table`, `with_instructions`).
        events: Events of the same recording.
        stated: Arrays that nodes make as the graphs state them, by function and node.
    """
    given = table["shape"].to_list()
    changes = events.filter(
        pl.col("name").is_in([_ALLOCATED, _FREED]), pl.col("requested_bytes") > 0
    )
    texts = zip(_made(table, changes), table["function"], table["node"], strict=True)
    made = [_arrays(text or stated.get(function, {}).get(node)) for text, function, node in texts]
    told = [_arrays(text) for text in given]
    return {
        "attr.input_shapes": _each(told, lambda each: [sizes for sizes, _ in each], _SHAPES),
        "attr.input_dtypes": _each(told, lambda each: [name for _, name in each], _TYPES),
        "attr.output_shapes": _each(made, lambda each: [sizes for sizes, _ in each], _SHAPES),
        "attr.output_dtypes": _each(made, lambda each: [name for _, name in each], _TYPES),
        **_memory(table, changes),
    }


def _arrays(text: str | None) -> list[tuple[list[int], str]] | None:
    """Return sizes and element type of each array in a text; None if there is none.

    >>> _arrays("(float[2,8];int32[])"), _arrays("()")
    ([([2, 8], 'float32'), ([], 'int32')], None)
    """
    found = _ARRAY.findall(text or "")
    return [
        ([int(size) for size in sizes.split(",") if size], element_type(name))
        for name, sizes in found
    ] or None


def _made(table: pl.DataFrame, changes: pl.DataFrame) -> list[str | None]:
    """Return the arrays that memory was allocated for as outputs, as a text for each operator."""
    outputs = changes.filter(pl.col("region_type") == "output", pl.col("shape").is_not_null())
    texts: list[str | None] = table["made"].to_list()
    around = innermost(table, outputs).tolist()
    for at, number, sizes in zip(around, outputs["data_type"], outputs["shape"], strict=True):
        element = _ELEMENTS.get(number)
        if at >= 0 and element is not None and table["sort"][at] != "xla":
            texts[at] = (texts[at] or "") + element + sizes
    return texts


def _memory(table: pl.DataFrame, changes: pl.DataFrame) -> dict[str, pl.Series]:
    """Return columns of memory; null where nothing was told, for not all is."""
    sign = np.where((changes["name"] == _ALLOCATED).to_numpy(), 1, -1)
    memory = sorted_allocations(
        changes["start_ns"].to_numpy(),
        changes["requested_bytes"].to_numpy() * sign,
        thread=changes["thread"].to_numpy(),
        threads=frozenset(changes["thread"].to_list()),
    )
    start, end, thread = (table[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    columns = memory_columns(memory, start, end, thread)
    if not columns:
        return {}
    silent = (columns[_MEMORY[0]] == 0) & (columns[_MEMORY[1]] == 0)
    return {
        name: column.set(silent.fill_null(value=True), None) for name, column in columns.items()
    }


def _each(values: list[Any], form: Callable[[Any], Any], dtype: Any) -> pl.Series:
    return pl.Series([None if value is None else form(value) for value in values], dtype=dtype)
