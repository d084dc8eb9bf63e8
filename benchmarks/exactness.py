"""Are xsp's latencies those without a profiler? Each layer against its ground truth.

Ground truth: two clock reads around one module's call, nothing else recorded
(`truth.py`), taken twice and independently. xsp measures once, as a user would have
it do; between its visits of the passes (it reports progress there) the ground truths,
the bare model and torch.profiler each get a few steps. So drift hits all alike,
and within a fraction of a second.

Every latency, whoever measured it, is the 20 % trimmed mean of all its steps.
The ground truths together have as much time as xsp. The truth is the mean of the two;
how far they lie apart is the noise of this machine, below which no method can be told
from another.

With `--again SECONDS` every model is measured twice more, by xsp alone with its default plan: at
once, and when so many seconds have passed. An interval that means what it says holds the value
that the other one of the two measurements found.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep

import numpy as np
import torch
from models import MODELS, QUICK, Case, make
from table import percent, print_header, print_row
from truth import (
    Layer,
    Samples,
    groups,
    profile_layers,
    summarize,
    time_layers,
)
from turns import settle, statistic, time_bare
from waste import wasting

import xsp

SMALLEST_NS = 5_000  # layers below are listed, but the bar is for those above
TOLERANCE = 0.02
MANY = 1_000_000
MODEL: Layer = ("the model", 0)
COLUMNS = (
    ("model", 20),
    ("batch", 5),
    ("runs", 4),
    ("layers", 6),
    (">5us", 4),
    ("torch med", 9),
    ("torch p95", 9),
    ("xsp med", 7),
    ("xsp p95", 7),
    ("noise med", 9),
    ("noise p95", 9),
    ("within", 7),
    ("within*", 7),
    ("model err", 9),
)
AGAIN = (("apart", 6), ("held", 7), ("differ", 7), ("half", 7))
LEGEND = """
runs       steps that each of xsp's layer latencies rests on
layers     calls of modules that are compared; >5us: those that last longer, which all errors are of
torch      torch.profiler, CPU and shapes, record_function around every module
noise      two independent ground truths against each other
within     share of layers whose error is at most 2 %, or at most the noise of that layer
within*    the same, with the noise's p95 in place of that layer's own
model err  xsp's model latency against the bare one"""
LEGEND_AGAIN = """apart      seconds between two measurements with xsp's default plan
held       how often the interval of one of them holds the value of the other one, both ways; of
           the model and its layers above 5 us, as are:
differ     by how much the two differ, in the median
half       half width of their intervals, in the median"""


class Observer:
    """Measures everything but xsp, a little at each call, until all of it is done.

    Args:
        case: The model.
        steps: How many steps each latency is to rest on.
        seconds: How long one step takes.
    """

    def __init__(self, case: Case, evaluations: int, seconds: float) -> None:
        self.case = case
        self.truths: tuple[Samples, Samples] = (defaultdict(list), defaultdict(list))
        self.torch: Samples = defaultdict(list)
        self.bare: list[float] = []
        self._evaluations = evaluations
        self._at_a_time = int(np.clip(0.005 / seconds, 1, 20))
        self._work = self._plan(groups(case.model, _at_once(seconds)))
        self._whole = len(self._work)

    def __call__(self, fraction: float) -> None:
        """Do as much of the work as `fraction` says (0 to 1)."""
        while self._work and self._whole - len(self._work) < fraction * self._whole:
            self._work.pop()()

    def _plan(self, paths: list[list[str]]) -> list[Callable[[], None]]:
        """Return the work in slices of a few steps, shuffled round by round."""
        once = [partial(self._truth, truth, group) for truth in self.truths for group in paths]
        once += [self._bare, self._torch]
        rounds = -(-self._evaluations // self._at_a_time)
        shuffle = random.Random(0)
        return [work for _ in range(rounds) for work in shuffle.sample(once, len(once))]

    def _truth(self, truth: Samples, group: list[str]) -> None:
        _extend(truth, time_layers(self.case.model, self.case.inputs, group, self._at_a_time))

    def _torch(self) -> None:
        found = profile_layers(self.case.model, self.case.evaluate, self._at_a_time)
        _extend(self.torch, found)

    def _bare(self) -> None:
        settle(self.case.evaluate)
        self.bare += time_bare(self.case.evaluate, self._at_a_time)


def _at_once(seconds: float) -> int:
    # Reading the clock costs 0.3 us: together no more than 0.03 % of a step.
    return max(1, int(seconds * 1000))


def _extend(samples: Samples, found: Samples) -> None:
    for layer, latencies in found.items():
        samples[layer] += latencies


def measure(case: Case, *, seconds: float, waste: str | None) -> tuple[xsp.Trace, Observer]:
    """Measure a model with xsp and everything else in between.

    Args:
        case: The model.
        seconds: About how long the ground truth may take.
        waste: Kind of span to waste time on, if any.
    """
    case.evaluate()
    once = min(_seconds(case) for _ in range(5))
    slices = 2 * len(groups(case.model, _at_once(once)))
    evaluations = int(np.clip(seconds / (slices * once), 5, 400))
    observer = Observer(case, evaluations, once)
    with _wasting(waste):
        # No number of runs ends it, so that the budget does: the other half of the time.
        trace = xsp.measure(
            case.model, case.inputs, levels=2, runs=MANY, budget=seconds, progress=observer
        )
    observer(1.0)
    return trace, observer


def _wasting(waste: str | None) -> AbstractContextManager[None]:
    return wasting(waste) if waste else nullcontext()


def _seconds(case: Case) -> float:
    begin = perf_counter()
    case.evaluate()
    return perf_counter() - begin


def layer_latencies(trace: xsp.Trace, column: str = "latency_ns") -> dict[Layer, float]:
    """Measure each layer's latency with xsp, in ns."""
    layers = trace.spans.filter(trace.spans["kind"] == "layer")
    attributes = layers["attributes"].struct.unnest()
    calls = attributes["call_index"].fill_null(0)
    keys = zip(attributes["module_path"], calls, strict=True)
    return dict(zip(keys, layers[column], strict=True))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table, and the measurement that is to be made again.

    Attributes:
        name: Name of the model.
        batch: The batch size.
        cells: The line's cells.
        trace: What xsp's default plan found at that time.
        at_s: When that measurement ended.
    """

    name: str
    batch: int
    cells: list[str]
    trace: xsp.Trace
    at_s: float


def measure_by_default(case: Case, waste: str | None) -> xsp.Trace:
    """Measure a model with xsp's default plan and nothing in between."""
    with _wasting(waste):
        return xsp.measure(case.model, case.inputs, levels=2)


def report_again(line: Line, waste: str | None, seconds: float) -> None:
    """Wait until a line is old enough, measure its model again, and print the whole line."""
    case = make(line.name, line.batch)
    case.evaluate()
    sleep(max(0.0, line.at_s + seconds - perf_counter()))
    apart = perf_counter() - line.at_s
    found = [_intervals(trace) for trace in (line.trace, measure_by_default(case, waste))]
    shared = [key for key in found[0] if key in found[1] and found[0][key][0] > SMALLEST_NS]
    one, two = (np.array([intervals[key] for key in shared], dtype=float) for intervals in found)
    held = np.concatenate([_holds(one, two[:, 0]), _holds(two, one[:, 0])])
    differ = np.abs(two[:, 0] / one[:, 0] - 1)
    half = np.concatenate([(each[:, 2] - each[:, 1]) / 2 / each[:, 0] for each in (one, two)])
    cells = [f"{apart:.0f} s", percent(float(held.mean()), 1)]
    cells += [percent(_quantile(differ, 0.5)), percent(_quantile(half, 0.5))]
    print_row([*line.cells, *cells], _widths(again=True))


def _intervals(trace: xsp.Trace) -> dict[Layer, tuple[float, float, float]]:
    """Return latency, and both ends of its interval, of each layer and of the model."""
    columns = ("latency_ns", "latency_low_ns", "latency_high_ns")
    found = [layer_latencies(trace, column) for column in columns]
    intervals = {key: (found[0][key], found[1][key], found[2][key]) for key in found[0]}
    value, low, high = trace.spans.select(columns).row(0)
    return {MODEL: (value, low, high), **intervals}


def _holds(intervals: np.ndarray, values: np.ndarray) -> np.ndarray:
    return (intervals[:, 1] <= values) & (values <= intervals[:, 2])


def report(case: Case, trace: xsp.Trace, observer: Observer) -> tuple[list[str], str]:
    """Print one line of the table; return its cells, and what a reader should know besides."""
    truth_a, truth_b = (summarize(truth) for truth in observer.truths)
    ours, theirs = layer_latencies(trace), summarize(observer.torch)
    compared = [key for key in truth_a if key in ours and key in theirs]
    truth = {key: (truth_a[key] + truth_b[key]) / 2 for key in compared}
    large = [key for key in compared if truth[key] > SMALLEST_NS]
    noise = _errors(truth_a, truth_b, large)
    error, rival = _errors(ours, truth, large), _errors(theirs, truth, large)
    cells = [case.name, str(case.batch), str(_runs(trace)), str(len(compared))]
    cells.append(str(len(large)))
    for errors in (rival, error, noise):
        cells += [percent(_quantile(errors, 0.5)), percent(_quantile(errors, 0.95))]
    cells += [percent(_share_within(error, noise), 1)]
    cells += [percent(_share_within(error, np.full_like(noise, _quantile(noise, 0.95))), 1)]
    model = trace.spans["latency_ns"][0] / statistic(observer.bare) - 1
    cells.append(percent(model))
    print_row(cells, _widths())
    return cells, _missing(case, truth_a, ours)


def _runs(trace: xsp.Trace) -> int:
    return next(pass_["runs"] for pass_ in trace.metadata["passes"] if pass_["pass"] == "layer")


def _errors(said: dict[Layer, float], true: dict[Layer, float], keys: list[Layer]) -> np.ndarray:
    return np.array([abs(said[key] / true[key] - 1) for key in keys])


def _quantile(values: np.ndarray, at: float) -> float:
    return float(np.quantile(values, at)) if values.size else float("nan")


def _share_within(error: np.ndarray, noise: np.ndarray) -> float:
    return float(np.mean(error <= np.maximum(noise, TOLERANCE))) if error.size else float("nan")


def _missing(case: Case, truth: dict[Layer, float], ours: dict[Layer, float]) -> str:
    lost = sorted(truth.keys() - ours.keys())
    if not lost:
        return ""
    return f"{case.name}, batch {case.batch}: xsp lacks {len(lost)} layers, such as {lost[:3]}"


def _headings(*, again: bool = False) -> list[str]:
    return [name for name, _ in (*COLUMNS, *(AGAIN if again else ()))]


def _widths(*, again: bool = False) -> list[int]:
    return [width for _, width in (*COLUMNS, *(AGAIN if again else ()))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models, a tenth of the time")
    parser.add_argument("--seconds", type=float, default=60, help="of ground truth per line")
    parser.add_argument("--waste", choices=("layer", "op"), help="waste 100 us on every such span")
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="NAME")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument(
        "--again", type=float, metavar="SECONDS", help="measure again so much later"
    )
    chosen = parser.parse_args()
    seconds = chosen.seconds / 10 if chosen.quick else chosen.seconds
    torch.set_num_threads(1)
    print_header("Error of layer latencies against the ground truth, one thread, inference")
    print_row(_headings(), _widths())
    notes, lines = [], []
    with torch.inference_mode():
        for name in chosen.models or (QUICK if chosen.quick else MODELS):
            for batch in chosen.batch:
                case = make(name, batch)
                measured = measure(case, seconds=seconds, waste=chosen.waste)
                cells, note = report(case, *measured)
                notes.append(note)
                if chosen.again is not None:
                    trace = measure_by_default(case, chosen.waste)
                    lines.append(Line(name, batch, cells, trace, perf_counter()))
        if lines:
            print()
            print_row(_headings(again=True), _widths(again=True))
        for line in lines:
            report_again(line, chosen.waste, chosen.again)
    print("\n".join([LEGEND, *([LEGEND_AGAIN] if lines else []), *filter(None, notes)]))


if __name__ == "__main__":
    main()
