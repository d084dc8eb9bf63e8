"""Runs random graphs on simulated threads, whose waits are therefore known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from hand_made import row, trace_of

from xsp.level import Kind
from xsp.trace import Trace
from xsp.trace.integrity import RUN_SCHEMA


@dataclass
class Operator:
    """An operator: what it takes and how long it lasts; then when and where it ran."""

    name: str
    inputs: list[str]
    latency_ns: int
    thread: int = 0
    start_ns: int = 0
    ready_ns: int = 0
    before: list[Operator] = field(default_factory=list)  # what its thread had run

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.latency_ns

    @property
    def wait_ns(self) -> int:
        return self.start_ns - self.ready_ns


def random_graph(chance: random.Random, count: int) -> list[Operator]:
    """Return operators, each of which takes the outputs of some before it."""
    found: list[Operator] = []
    for number in range(count):
        sources = chance.sample(found, min(len(found), chance.choice([0, 1, 1, 2, 3])))
        found.append(
            Operator(
                f"n{number}", [each.name for each in sources], chance.choice([1, 5, 20, 21, 300])
            )
        )
    return found


def execute(
    operators: Sequence[Operator], threads: int, chance: random.Random, slowest_ns: int = 0
) -> list[Operator]:
    """Run operators on threads, whichever is free takes a random one that is ready.

    The executor takes up to `slowest_ns` to begin an operator. The first one begins at 0.

    Returns:
        The operators in the order in which they began.
    """
    done: dict[str, Operator] = {}
    lanes: list[list[Operator]] = [[] for _ in range(threads)]
    rest = list(operators)
    while rest:
        # Of all operators whose inputs have an end, one that could begin first.
        able = [each for each in rest if done.keys() >= set(each.inputs)]
        for each in able:
            each.ready_ns = max((done[name].end_ns for name in each.inputs), default=0)
        number = min(range(threads), key=lambda at: lanes[at][-1].end_ns if lanes[at] else 0)
        free = lanes[number][-1].end_ns if lanes[number] else 0
        soonest = min(max(each.ready_ns, free) for each in able)
        taken = chance.choice([each for each in able if max(each.ready_ns, free) == soonest])
        taken.thread, taken.before = number, list(lanes[number])
        taken.start_ns = soonest + (chance.randrange(slowest_ns + 1) if done else 0)
        lanes[number].append(taken)
        done[taken.name] = taken
        rest.remove(taken)
    return sorted(done.values(), key=lambda each: (each.start_ns, each.end_ns))


def traced(operators: Sequence[Operator], around_ns: int = 0, **metadata: Any) -> Trace:
    """Return the trace of a run, which lies in a step that lasts `around_ns` longer."""
    end = max(each.end_ns for each in operators) + around_ns
    return trace_of([row(None, "region", "step", end), *map(op_row, operators)], **metadata)


def op_row(each: Operator, parent: int = 0, **more: Any) -> Any:
    place = {"start_ns": each.start_ns, "end_ns": each.end_ns, "thread": each.thread + 1}
    told = {"node": each.name, "inputs": each.inputs, "framework": "onnxruntime"} | more
    return row(parent, "op", "Gemm", each.latency_ns, **place, **told)


def with_run(trace: Trace, scale: int, lost: Sequence[str] = ()) -> Trace:
    """Return the trace with a typical run whose times are longer, and that lacks some nodes."""
    node = trace.spans["attributes"].struct.field("node")
    runs = trace.spans.filter(~node.is_in(list(lost)).fill_null(value=False)).with_columns(
        pl.lit(Kind.OP.value).alias("pass"),
        run_latency_ns=pl.col("end_ns").max() * scale,
        start_ns=pl.col("start_ns") * scale,
        end_ns=pl.col("end_ns") * scale,
    )
    typed = runs.select(pl.col(name).cast(dtype) for name, dtype in RUN_SCHEMA.items())
    return Trace(trace.spans, trace.metadata, typed)
