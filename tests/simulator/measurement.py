"""Measures a simulated machine, and merges its latencies.

`xsp.record.session` visits the passes, as the plan wants it, and `xsp.reading.merge` merges the
runs. `xsp.reading.runs` interprets them, or, where a table needs thousands of measurements, made
directly of what the machine knows; a test shows that both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from simulator.machine import Machine, Recorded, SimulatedProvider, shown_parents, span_columns
from xsp.level import Kind
from xsp.matching import Pass, Run, ladder, with_inside_costs
from xsp.measuring.call.repeat import carry_out
from xsp.provider import ModelCall, span_rows
from xsp.reading.merge import Merged, merge
from xsp.reading.runs.interpretation import interpret
from xsp.record.session import InsideCost, Plan, Session, Settings, Visit

PASSES = ladder({Kind.REGION, Kind.LAYER, Kind.OP})


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one simulated measurement.

    Attributes:
        runs: All steps that count.
        merged: What xsp makes of them.
        seconds: Simulated time that the measurement took.
    """

    runs: tuple[Run, ...]
    merged: Merged
    seconds: float


def measure(machine: Machine, settings: Settings, *, interpreted: bool = True) -> Measurement:
    """Measure all passes in one process, as `xsp.measure` does.

    Args:
        machine: The machine.
        settings: How to measure.
        interpreted: Whether xsp interprets the records; else runs are made directly.
    """
    session = Session([SimulatedProvider(machine)], machine.clock)
    began = machine.clock.now()
    carry_out(Plan(PASSES, settings), session, _call(machine), lambda _: None)
    seconds = (machine.clock.now() - began) / 1e9
    runs = _runs(machine, session, interpreted=interpreted)
    return Measurement(runs, merge(runs), seconds)


def measure_processes(
    machine: Machine, settings: Settings, speeds: Sequence[float], *, interpreted: bool = True
) -> Measurement:
    """Measure each pass in processes of its own, beside bare visits, in turns, as targets are.

    Args:
        machine: The machine.
        settings: How to measure; the budget is divided.
        speeds: Factor of each process; as many as there are passes, or a multiple.
        interpreted: As for `measure`.
    """
    settings = replace(settings, budget_s=settings.budget_s / len(speeds))
    processes = [
        (Plan((PASSES[0], pass_), settings), _session(machine), speed)
        for pass_, speed in zip(PASSES[1:] * (len(speeds) // len(PASSES[1:])), speeds, strict=True)
    ]
    began = machine.clock.now()
    while sum(_turn(machine, *process) for process in processes):
        pass
    seconds = (machine.clock.now() - began) / 1e9
    runs = tuple(
        replace(run, process=number)
        for number, (_, session, _) in enumerate(processes)
        for run in _runs(machine, session, interpreted=interpreted)
    )
    return Measurement(runs, merge(runs), seconds)


def _session(machine: Machine) -> Session:
    return Session([SimulatedProvider(machine)], machine.clock)


def _call(machine: Machine) -> ModelCall:
    return ModelCall(machine.evaluate, subject="a simulated model")


def _turn(machine: Machine, plan: Plan, session: Session, speed: float) -> bool:
    """Make one visit of a process; return whether there was one to make."""
    step = plan.next()
    if step is None:
        return False
    machine.speed = speed
    before = machine.clock.now()
    latencies = session.visit(step, _call(machine))
    plan.record(step, latencies, began_ns=before, ended_ns=machine.clock.now())
    return True


def _runs(machine: Machine, session: Session, *, interpreted: bool) -> tuple[Run, ...]:
    failed = [warning for warning in session.warnings if warning.code == "provider-failed"]
    if failed:
        raise AssertionError(failed[0].message)
    costs = session.inside_costs()
    if interpreted:
        found = interpret(session.visits, session.providers, inside_costs=costs).runs
        # Page faults are those of the process that simulates.
        return tuple(replace(run, page_faults=None) for run in found)
    by_pass: dict[Pass, list[Visit]] = {}
    for visit in session.visits:
        if visit.planned.counts:
            by_pass.setdefault(visit.planned.pass_, []).append(visit)
    return tuple(
        run for pass_, visits in by_pass.items() for run in _direct(machine, pass_, visits, costs)
    )


def _direct(
    machine: Machine, pass_: Pass, visits: Sequence[Visit], costs: Sequence[InsideCost]
) -> list[Run]:
    """Return the runs of a pass, made of what the machine knows."""
    frames = _frames(machine, visits, costs) if pass_.kinds else None
    windows = [(visit, *window) for visit in visits for window in visit.windows]
    return [
        Run(
            pass_,
            end - begin,
            None if frames is None else frames[number],
            round=visit.planned.round,
            began_ns=begin,
            host_ns=end - begin,
        )
        for number, (visit, begin, end) in enumerate(windows)
    ]


def _frames(
    machine: Machine, visits: Sequence[Visit], costs: Sequence[InsideCost]
) -> list[pl.DataFrame]:
    """Return the tree of each step that counts."""
    kinds = visits[0].records[0][1].data.kinds
    shown = machine.layout(kinds).shown
    windows = np.array([window for visit in visits for window in visit.windows])
    start, end = windows[:, :1], windows[:, 1:]
    if len(shown):
        times = [machine.span_times(_counted(visit)) for visit in visits]
        start, end = (
            np.concatenate([whole, np.concatenate(parts)], axis=1)
            for whole, parts in zip((start, end), zip(*times, strict=True), strict=True)
        )
    columns = span_columns(machine.tree, [0, *shown], start, end)
    height = len(shown) + 1
    parents = np.tile([-1, *shown_parents(machine.tree, shown)], len(windows))
    rows = span_rows(columns).with_columns(parent=pl.Series(parents))
    if len(shown) and costs:
        known = {cost.kind: (cost.cost_ns, cost.error_ns) for cost in costs}
        rows = with_inside_costs(rows, known)
    return [rows.slice(at * height, height) for at in range(len(windows))]


def _counted(visit: Visit) -> Recorded:
    """Return the records of the timed steps of a visit, which are its last."""
    recorded: Recorded = visit.records[0][1].data
    return recorded.last(len(visit.windows))
