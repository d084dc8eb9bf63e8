"""Measures the energy of a target's step, and of its longest layers repeated by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from xsp.matching import Pass
from xsp.measuring.call import interpret_session, visit_all
from xsp.measuring.target.examination import exported
from xsp.measuring.target.part import attempt
from xsp.measuring.target.resolution import resolve
from xsp.measuring.target.spec import Spec, Subject
from xsp.measuring.target.worker import Failure
from xsp.progress import Display, progress_bar, status_line
from xsp.provider import Layered, ModelCall
from xsp.reading.monitor import attributes_of, monitoring_of, with_attributes
from xsp.reading.runs import build_trace
from xsp.record.session import PlannedVisit, Session, Settings, check_energy, exclusively
from xsp.trace import Trace, attribute_column
from xsp.warning import TraceWarning

_LAYER_NS = 2_000_000_000  # of one layer: energy counters move every 20 to 100 ms
_MONITOR = Pass(frozenset(), monitored=True)
_MISSING = TraceWarning(
    "layers-not-repeated",
    "xsp repeats layers of PyTorch models alone, so there is no energy of single layers. Use a "
    "PyTorch model whose call is the step.",
)


def measure_energy(spec: Spec, settings: Settings, top: int) -> Trace:
    """Measure a target in this process, then repeat its longest layers for 2 seconds each.

    Args:
        spec: The target.
        settings: How to measure, with `energy`.
        top: How many layers to repeat.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: The target cannot be measured on this machine, or nothing tells energy.
    """

    def work() -> Trace:
        draw.say(f"loading {spec.source or spec.target}")
        return _measured(resolve(runnable), settings, top, draw)

    check_energy()
    with exported(spec) as runnable, progress_bar(None, spec.name) as draw:
        outcome = attempt(work)
    if isinstance(outcome, Failure):
        raise outcome.error()
    trace: Trace = outcome
    return trace.replaced(metadata={**trace.metadata, "settings": spec.settings})


def _measured(subject: Subject, settings: Settings, top: int, draw: Display) -> Trace:
    with subject.mode():
        draw.say("measuring the step for half a minute")
        session, selection, name = visit_all(
            subject.function, subject.args, subject.kwargs, settings=settings, progress=draw
        )
        calls = (
            watcher.model_call(subject.function, subject.args, subject.kwargs)
            for watcher in session.watchers
        )
        call: object = next((call for call in calls if call is not None), None)
        missing = [] if isinstance(call, Layered) else [_MISSING]
        runs = interpret_session(session, selection, name)
        with status_line(None, "making the trace"):
            trace = build_trace([runs], settings, warnings=missing)
        if not isinstance(call, Layered):
            return trace
        longest, found = _longest(trace, top), dict[str, Mapping[str, Any]]()
        with exclusively("measuring energy"):
            for path, layer in call.layer_calls(longest).items():
                draw.say(f"repeating {path} ({len(found) + 1} of {len(longest)})")
                found[path] = _repeated(session, layer)
        phases = attribute_column(trace.spans, "phase").fill_null("forward")
        paths = enumerate(attribute_column(trace.spans, "module_path"))
        of_row = {
            row: found[path] for row, path in paths if path in found and phases[row] == "forward"
        }
        return trace.replaced(with_attributes(trace.spans, of_row))


def _longest(trace: Trace, top: int) -> list[str]:
    """Return the paths of the layers without layers inside that take longest, over all calls."""
    spans = trace.layers
    around = spans["parent_id"].unique().implode()
    table = spans.select(
        "latency_ns",
        path=attribute_column(spans, "module_path"),
        phase=attribute_column(spans, "phase"),
    ).filter(~spans["span_id"].is_in(around), pl.col("path") != "")
    table = table.filter(pl.col("phase").fill_null("forward") == "forward")
    sums = table.group_by("path").agg(pl.sum("latency_ns")).sort("latency_ns", descending=True)
    return sums["path"].head(top).to_list()


def _repeated(session: Session, call: ModelCall) -> Mapping[str, Any]:
    """Return the attributes of a layer by its energy in one call; none where it is not known."""
    with call.conditions():
        session.visit(PlannedVisit(_MONITOR, round=0, most_ns=_LAYER_NS), call)
    monitoring = monitoring_of(session.monitored)
    told, _ = attributes_of(monitoring) if monitoring else ({}, [])
    names = ("energy_j", "energy_low_j", "energy_high_j", "power_w")
    known = {name: told[name] for name in names if name in told}
    return {**known, "energy_how": "repeated"} if known else {}
