"""How much slower is a model while it is profiled? Each pass beside torch.profiler.

Rounds are interleaved: in each, every way of profiling is armed, evaluated a few
times, and disarmed, in an order that turns. What is compared is the time of the
steps, not that of arming. xsp's providers are armed by its own session.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns

import torch
from models import MODELS, QUICK, Case, make
from table import percent, print_header, print_row
from torch.profiler import ProfilerActivity, profile
from turns import take_turns, time_bare

from xsp.level import Kind
from xsp.matching.run import Pass, ladder
from xsp.record.session import registry
from xsp.record.session.recorder import Session
from xsp.record.session.visit import PlannedVisit
from xsp_levels.native.stderr_filter import vendor_silenced

COLUMNS = (
    ("model", 20),
    ("batch", 5),
    ("bare ms", 9),
    ("model level", 11),
    ("layers", 8),
    ("us/call", 7),
    ("layers+ops", 10),
    ("us/op", 6),
    ("torch.profiler", 14),
    ("us/op", 6),
    ("ratio", 5),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
model level, layers, layers+ops   xsp's passes: time added to a step, as a share of it
torch.profiler                    operators only: CPU activity, shapes on, nothing annotated
us/call, us/op                    the time added, per module call and per operator recorded
ratio                             what layers+ops add, to what torch.profiler adds"""

Way = Callable[[int], list[float]]


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of module calls and operators in one step."""

    calls: int
    operators: int


def ways(case: Case) -> dict[str, Way]:
    """Return each way of profiling: a function that evaluates so often and times it."""
    session = Session(registry.installed_providers())
    found = (watcher.model_call(case.model, (case.inputs,), {}) for watcher in session.watchers)
    call = next(call for call in found if call is not None)

    def on(pass_: Pass) -> Way:
        def visit(evaluations: int) -> list[float]:
            session.visits.clear()
            latencies = session.visit(PlannedVisit(pass_, evaluations, untimed=1), call)
            return [float(latency) for latency in latencies]

        return visit

    passes = ladder({Kind.REGION, Kind.LAYER, Kind.OP})
    return {pass_.name: on(pass_) for pass_ in passes} | {
        "torch": lambda n: _torch_profiler(case, n)
    }


def _torch_profiler(case: Case, evaluations: int) -> list[float]:
    with vendor_silenced(), profile(activities=[ProfilerActivity.CPU], record_shapes=True):
        case.evaluate()
        return time_bare(case.evaluate, evaluations)


def count(case: Case) -> Counts:
    calls = 0

    def hook(*_: object) -> None:
        nonlocal calls
        calls += 1

    handles = [module.register_forward_hook(hook) for module in case.model.modules()]
    case.evaluate()
    for handle in handles:
        handle.remove()
    with vendor_silenced(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        case.evaluate()
    return Counts(calls, len(profiler.profiler.kineto_results.events()))


def measure(case: Case, *, quick: bool) -> dict[str, float]:
    """Return the latency of a step in ns, for each way of profiling."""
    begin = monotonic_ns()
    case.evaluate()
    latency_ns = monotonic_ns() - begin
    evaluations = max(1, min(40, 20_000_000 // latency_ns))
    total_ns = (3 if quick else 30) * 1_000_000_000
    rounds = max(6, min(200, total_ns // (evaluations * latency_ns * 6)))
    every = {name: partial(way, evaluations) for name, way in ways(case).items()}
    return take_turns(every, rounds)


def report(case: Case, found: dict[str, float], counts: Counts) -> None:
    bare = found["bare"]
    cells = [case.name, str(case.batch), f"{bare / 1e6:.3f}"]
    cells += [percent(found["region"] / bare)]
    cells += [percent(found["layer"] / bare), f"{found['layer'] / 1e3 / counts.calls:.2f}"]
    cells += [percent(found["op"] / bare), f"{found['op'] / 1e3 / counts.operators:.2f}"]
    cells += [percent(found["torch"] / bare), f"{found['torch'] / 1e3 / counts.operators:.2f}"]
    print_row([*cells, f"{found['op'] / found['torch']:.2f}"], WIDTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models, fewer rounds")
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="NAME")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print_header("Time that profiling adds to a step, one thread, inference")
    print_row(HEADINGS, WIDTHS)
    with torch.inference_mode():
        for name in chosen.models or (QUICK if chosen.quick else MODELS):
            for batch in chosen.batch:
                case = make(name, batch)
                counts = count(case)
                report(case, measure(case, quick=chosen.quick), counts)
    print(LEGEND)


if __name__ == "__main__":
    main()
