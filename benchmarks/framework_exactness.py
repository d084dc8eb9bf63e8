"""Are xsp's latencies those without a profiler, in TensorFlow, ONNX Runtime and JAX?

    python benchmarks/framework_exactness.py tensorflow [--models NAME …] [--batch N …]

One framework to a process. Of each model xsp measures `levels=2` once, as a user would have it do;
between its visits of the passes the bare model is evaluated between two clock reads, in two sets
that take turns. The truth is the mean of the two sets, and how far they lie apart is the noise of
this machine, below which no method can be told from another.

Then xsp's passes, the framework's own profiler and the bare model take turns, for what each adds.

`eager` is a small transformer of Keras, called layer by layer on TensorFlow; the truth of a layer
is two clock reads around its call, by a stand-in for it in the layer that holds it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic_ns
from typing import Any

import numpy as np
import polars as pl
from framework_cases import CASES, Case, eager_case
from table import percent, print_header, print_row
from turns import settle, statistic, take_turns, time_bare

import xsp
from xsp.level import Kind
from xsp.matching.run import Pass, ladder
from xsp.provider import ModelCall
from xsp.record.session import registry
from xsp.record.session.recorder import Session
from xsp.record.session.visit import PlannedVisit

MANY = 1_000_000
COLUMNS = (
    ("model", 16),
    ("batch", 5),
    ("runs", 4),
    ("ops", 5),
    ("bare ms", 9),
    ("noise", 8),
    ("error", 8),
    ("in 2 %", 7),
    ("predicted", 9),
    ("xsp adds", 9),
    ("own adds", 9),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
runs       steps that xsp's latency of the model rests on; ops: operators of the trace
noise      two independent sets of bare steps against each other
error      the model's latency in the trace against the bare one
in 2 %     whether the error is at most 2 %, or at most the noise
predicted  the model's latency put together again: self times of all that the trace has, operators
           less their overhead among them, against the bare one; of operators that run at once the
           time counts once
xsp adds   time that the pass of operators adds to a step, as a share of it
own adds   the same of the framework's own profiler (tf.profiler.experimental, enable_profiling,
           jax.profiler), as it is by default"""
EAGER = (
    ("model", 16),
    ("batch", 5),
    ("runs", 4),
    ("layers", 6),
    ("xsp med", 8),
    ("xsp max", 8),
    ("noise med", 9),
    ("noise max", 9),
    ("in 2 %", 7),
    ("model err", 9),
)
EAGER_HEADINGS, EAGER_WIDTHS = zip(*EAGER, strict=True)
EAGER_LEGEND = """
noise      two independent ground truths against each other
in 2 %     share of layers whose error is at most 2 %, or at most the noise of that layer"""


class Observer:
    """Evaluates the bare model, a little at each call, in two sets that take turns.

    Args:
        sets: What evaluates so often, and appends what it found; one for each set.
        steps: How many steps each set is to have.
        at_a_time: How many of them are made at once.
    """

    def __init__(
        self, sets: Sequence[Callable[[int], None]], evaluations: int, at_a_time: int
    ) -> None:
        turns = max(1, evaluations // at_a_time)
        # A B, B A, A B …: neither set is always the later one.
        each = [(list(sets), list(reversed(sets)))[turn % 2] for turn in range(turns)]
        self._work = [partial(work, at_a_time) for pair in each for work in pair]
        self._whole = len(self._work)

    def __call__(self, fraction: float) -> None:
        """Do as much of the work as `fraction` says (0 to 1)."""
        while self._work and self._whole - len(self._work) < fraction * self._whole:
            self._work.pop()()


def observed(case: Case, sets: Sequence[Callable[[int], None]], seconds: float) -> xsp.Trace:
    """Measure a case with xsp for so long, and the sets for as long in between."""
    case.evaluate()
    once = min(time_bare(case.evaluate, 5)) / 1e9
    at_a_time = int(np.clip(0.02 / once, 1, 20))
    # Each turn has a untimed step, too.
    evaluations = int(seconds / (2 * once) * at_a_time / (at_a_time + 1))
    observer = Observer(sets, evaluations, at_a_time)
    trace = xsp.measure(
        case.function, *case.arguments, levels=2, runs=MANY, budget=seconds, progress=observer
    )
    observer(1.0)
    return trace


def bare(case: Case, into: list[float], evaluations: int) -> None:
    settle(case.evaluate)
    into += time_bare(case.evaluate, evaluations)


def ways(case: Case) -> Mapping[str, Callable[[int], list[float]]]:
    """Return the bare model, xsp's pass of operators, and the framework's own profiler."""
    session = Session(registry.installed_providers())
    found = (each.model_call(case.function, case.arguments, {}) for each in session.watchers)
    call = next((call for call in found if call is not None), None)
    assert call is not None, f"no provider knows {case.name}"
    passes = {pass_.name: pass_ for pass_ in ladder({Kind.REGION, Kind.LAYER, Kind.OP})}
    return {
        "bare": partial(_visit, session, call, passes["bare"]),
        "op": partial(_visit, session, call, passes["op"]),
        "own": partial(_profiled, case),
    }


def _visit(session: Session, call: ModelCall, pass_: Pass, evaluations: int) -> list[float]:
    session.visits.clear()
    planned = PlannedVisit(pass_, evaluations, untimed=1)
    return [float(latency) for latency in session.visit(planned, call)]


def _profiled(case: Case, evaluations: int) -> list[float]:
    with case.profiled() as evaluate:
        evaluate()
        return time_bare(evaluate, evaluations)


def slowdown(case: Case, seconds: float) -> dict[str, float]:
    """Return the bare latency in ns, and what the pass of operators and the profiler add."""
    once = min(time_bare(case.evaluate, 3)) / 1e9
    evaluations = int(np.clip(0.1 / once, 2, 30))
    rounds = int(np.clip(seconds / (3 * once * (evaluations + 1)), 3, 60))
    every = {name: partial(way, evaluations) for name, way in ways(case).items()}
    return take_turns(every, rounds)


def predicted(trace: xsp.Trace) -> float:
    """Return the latency in ns that self times make, at each moment of the clock once.

    The innermost operators are counted as long as at least one of them ran, which is known of the
    run that is shown.
    """
    spans = trace.spans
    inner = ~spans["span_id"].is_in(spans["parent_id"].drop_nulls().implode())
    operators = spans.filter(inner, pl.col("kind") == "op").sort("measured_start_ns")
    own = float(spans["self_ns"].sum())
    if not operators.height:
        return own
    start, end = (operators[f"measured_{side}_ns"].to_numpy() for side in ("start", "end"))
    before = np.append(start[0], np.maximum.accumulate(end)[:-1])
    once = np.maximum(end - np.maximum(start, before), 0).sum() / (end - start).sum()
    return own - float(operators["self_ns"].sum()) * float(1 - once)


def report(case: Case, seconds: float) -> None:
    """Measure a case, and print its line."""
    sets: tuple[list[float], list[float]] = ([], [])
    trace = observed(case, [partial(bare, case, each) for each in sets], seconds)
    one, two = (statistic(each) for each in sets)
    truth, noise = (one + two) / 2, abs(one / two - 1)
    error = (trace.root.latency_ns or np.nan) / truth - 1
    added = slowdown(case, seconds)
    operators = trace.spans.filter(trace.spans["kind"] == "op").height
    cells = [case.name, str(case.batch), str(trace.root.runs), str(operators)]
    cells += [f"{truth / 1e6:.3f}", percent(noise), percent(error)]
    cells += ["yes" if abs(error) <= max(0.02, noise) else "no"]
    cells += [percent(predicted(trace) / truth - 1)]
    cells += [percent(added[way] / added["bare"]) for way in ("op", "own")]
    print_row(cells, WIDTHS)


class _Clocked:
    """Stands in for a layer in the layer that holds it, and times its calls from there."""

    def __init__(self, layer: Callable[..., Any], put: Callable[[int], None]) -> None:
        self._layer = layer
        self._put = put

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer, now = self._layer, monotonic_ns
        begin = now()
        result = layer(*args, **kwargs)
        end = now()
        self._put(end - begin)
        return result


@contextmanager
def clocked(places: Mapping[str, tuple[Any, str]]) -> Iterator[dict[str, list[int]]]:
    """Yield where the latencies of layers appear, by path.

    Args:
        places: The layer that holds each one, and the attribute by which it does.
    """
    layers = {path: getattr(*place) for path, place in places.items()}
    readings: dict[str, list[int]] = {path: [] for path in places}
    try:
        for path, place in places.items():
            # Not by setattr: Keras would look into the stand-in.
            object.__setattr__(*place, _Clocked(layers[path], readings[path].append))
        yield readings
    finally:
        for path, place in places.items():
            object.__setattr__(*place, layers[path])


def report_eager(batch: int, seconds: float) -> None:
    """Measure the layers of a small transformer that is called eagerly, and print a line."""
    case, places = eager_case(batch)
    sets: tuple[dict[str, list[int]], ...] = (defaultdict(list), defaultdict(list))
    alone: list[float] = []

    def time_layers(into: dict[str, list[int]], evaluations: int) -> None:
        with clocked(places) as readings:
            settle(case.evaluate)
            time_bare(case.evaluate, evaluations)
        for path, values in readings.items():
            into[path] += values[-evaluations:]

    work = [partial(time_layers, each) for each in sets] + [partial(bare, case, alone)]
    trace = observed(case, work, seconds)
    layers = trace.spans.filter(trace.spans["kind"] == "layer").unnest("attributes")
    ours = dict(zip(layers["module_path"], layers["latency_ns"], strict=True))
    one, two = ({path: statistic(found[path]) for path in places} for found in sets)
    error = np.array([abs(2 * ours[path] / (one[path] + two[path]) - 1) for path in places])
    noise = np.array([abs(one[path] / two[path] - 1) for path in places])
    cells = [case.name, str(batch), str(trace.root.runs), str(len(places))]
    for found in (error, noise):
        cells += [percent(float(np.median(found))), percent(float(found.max()))]
    cells += [percent(float(np.mean(error <= np.maximum(noise, 0.02))), 0)]
    cells += [percent((trace.root.latency_ns or np.nan) / statistic(alone) - 1)]
    print_row(cells, EAGER_WIDTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=(*CASES, "eager"))
    parser.add_argument("--models", nargs="+", metavar="NAME")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--seconds", type=float, default=20, help="of measuring by xsp per line")
    chosen = parser.parse_args()
    versions = {"eager": ("tensorflow", "keras"), "jax": ("jax", "keras", "flax")}
    versions |= {"tensorflow": ("tensorflow", "keras"), "onnxruntime": ("onnxruntime", "torch")}
    print_header("Latencies against bare ones", frameworks=versions[chosen.framework])
    if chosen.framework == "eager":
        print_row(EAGER_HEADINGS, EAGER_WIDTHS)
        for batch in chosen.batch:
            report_eager(batch, chosen.seconds)
        print(EAGER_LEGEND)
        return
    make, names = CASES[chosen.framework]
    print_row(HEADINGS, WIDTHS)
    for name in chosen.models or names:
        for batch in chosen.batch:
            report(make(name, batch), chosen.seconds)
    print(LEGEND)


if __name__ == "__main__":
    main()
