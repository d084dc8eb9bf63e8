"""Makes the trace of a program, and of each group of calls, from a program's record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.provider import BACKWARD, CALL, LAYER, OPTIMIZER, PART, REGION
from xsp.reading.monitor import (
    Energy,
    Monitoring,
    attributes_of,
    monitoring_of,
    part_attributes,
    regressed,
)
from xsp.reading.program.cost import CALL_NS, PASS_NS
from xsp.reading.program.deep import Deep, ItemRows, read_deep
from xsp.reading.program.events import ITERATION, STEP, TWIN
from xsp.reading.program.forest import Forest, forest_of, in_windows, with_times
from xsp.reading.program.naming import Naming, naming_of
from xsp.reading.program.operators import RECORDED_WHOLE, with_operators
from xsp.reading.program.self_time import self_time
from xsp.reading.program.spans import only, spans_of
from xsp.reading.program.summary import facts, note_generation, sentences
from xsp.reading.program.system import charge, read_system, with_recording
from xsp.reading.program.tree import Rows, rows_of, self_times, within_parents
from xsp.reading.program.worker_time import worker_time
from xsp.reading.rank import COLLECTIVE_SCHEMA
from xsp.reading.runs import ProcessRuns, describe
from xsp.record.program import ProgramRecord, Records
from xsp.record.session import Settings, describe_environment
from xsp.text import counted, duration, writable
from xsp.trace import Trace, made_of
from xsp.warning import NOTE, TraceWarning, warnings_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_TRACES = 64  # groups that have a trace of their own: those that took most time
_ENCLOSING = (CALL, TWIN, LAYER, BACKWARD, OPTIMIZER, PART, REGION, STEP, ITERATION)


@dataclass(frozen=True, slots=True)
class ProgramTraces:
    """The traces and the collectives of a program.

    Attributes:
        program: The trace of the whole program.
        groups: The trace of one member of each group on average, by the name of the group; those
            that took most time first.
        collectives: The collectives that were recorded (`COLLECTIVE_SCHEMA`).
        began_ns: When the program began, on the session's clock.
        numbers: The numbers of the facts of the calls of each group, by its name.
        windows: What was recorded in each window.
    """

    program: Trace
    groups: dict[str, Trace]
    collectives: pl.DataFrame
    began_ns: int
    numbers: dict[str, tuple[int, ...]]
    windows: tuple[str, ...] = ()


def read_program(
    record: ProgramRecord, *, name: str, settings: Settings, levels: Mapping[str, str]
) -> ProgramTraces:
    """Return the traces of a program.

    Args:
        record: What was recorded.
        name: Name of the program, for people.
        settings: How it was to be measured.
        levels: For every level asked for, "measured" or why it is left out.
    """
    forest = forest_of(record)
    layered, deep_at = in_windows(forest, record)
    deep = _deep(forest, record, naming_of(_untimed(forest), record))
    operators = [deep.operator_begins(thread) for thread, _ in record.log.threads]
    system = read_system(record)
    if system is not None:
        forest = with_recording(forest, system, record)
    forest = with_times(forest, record, operators, layered, deep_at)
    naming = naming_of(forest, record)
    threads = [thread for thread, _ in record.log.threads] or [record.thread]
    exceptions = [each for each, _ in record.log.names]
    rows = rows_of(forest, naming.labels, naming.of, (threads, exceptions), (layered, deep_at))
    charge(rows, forest, system, record)
    rows = with_operators(rows, deep, forest)
    within_parents(rows)
    own = self_time(forest, record, rows.of_item)
    for row, told in worker_time(forest, record, rows).items():
        own[row] = own.get(row, {}) | told
    process = ProcessRuns(
        runs=(), warnings=(), subject=name, levels=levels,
        environment=describe_environment(), origin=record.origin,
    )  # fmt: skip
    # Half the 95 % interval of the mean latency of each group, by its number.
    reaches: dict[int, float] = {}
    for row, label in enumerate(rows.label):
        if label.group >= 0 and not label.name.startswith(("first ", "recompiled ")):
            reach = float(rows.reach_ns[row]) / max(float(rows.count[row]), 1.0)
            reaches[label.group] = max(reaches.get(label.group, 0.0), reach)
    groups = facts(naming, forest, record, reaches, layered, deep_at)
    note_generation(groups, naming, forest, rows)
    warnings = [*program_warnings(naming, forest, record), *record.warnings, *deep.warnings]
    warnings += system.warnings if system is not None else ()
    warnings += warnings_of((*deep.counts, *(system.counts if system is not None else ())))
    monitoring = monitoring_of(record.monitored)
    if monitoring is not None:
        told, contradictions = attributes_of(monitoring, asked=settings.monitor is True)
        own[0] = {**own.get(0, {}), **told}
        for row, energy in _group_energies(monitoring, forest, naming, record, rows).items():
            own[row] = {**own.get(row, {}), **part_attributes(energy)}
        warnings += contradictions
    spans = spans_of(rows, self_times(rows), own, record.thread)
    metadata = _described(process, settings, warnings, spans)
    metadata["groups"] = groups
    metadata["summary"] = sentences(groups, naming, forest, record)
    calls = forest.items.kind == CALL
    numbers = {
        group.label: tuple(
            np.unique(forest.items.number[calls & (naming.group == number)]).tolist()
        )
        for number, group in enumerate(naming.groups)
    }
    return ProgramTraces(
        program=Trace(spans, metadata, readings=monitoring.readings if monitoring else None),
        groups=_group_traces(rows, own, groups, naming, process, settings),
        collectives=_collectives(deep, forest, naming),
        began_ns=record.begin_ns,
        numbers=numbers,
        windows=tuple(window.records.name for window in record.windows),
    )


def _group_energies(
    monitoring: Monitoring, forest: Forest, naming: Naming, record: ProgramRecord, rows: Rows
) -> dict[int, Energy]:
    """Return the energy of one step of each group on average, by the group's row.

    Only where every step was seen, and steps last long enough for an energy counter.
    """
    items = forest.items
    numbers = [number for number in range(len(naming.groups)) if (naming.group == number).any()]
    members = [naming.group == number for number in numbers]
    if any((forest.weight[each] > 1).any() for each in members):
        return {}
    begins, ends = (each.astype(np.float64) - record.begin_ns for each in (items.begin, items.end))
    parts = [(begins[each], ends[each]) for each in members]
    found = dict(zip(numbers, regressed(monitoring.readings, parts), strict=True))
    return {
        row: Energy(energy.joules / calls, energy.half_j / calls, energy.source)
        for row, label in enumerate(rows.label)
        if (energy := found.get(label.group)) is not None
        and label.name == naming.groups[label.group].label
        and (calls := int((naming.group == label.group).sum()))
    }


def _untimed(forest: Forest) -> Forest:
    """Return the forest as if nothing had been subtracted: names are wanted before times."""
    took = (forest.items.end - forest.items.begin).astype(np.float64)
    zero = np.zeros(len(took))
    return replace(forest, took_ns=took, added_ns=zero, learned_ns=zero)


def _deep(forest: Forest, record: ProgramRecord, naming: Naming) -> Deep:
    """Place the operators of windows in the items around them."""
    windows = [
        window
        for window in record.windows
        if window.records >= Records.OPERATORS and window.pass_ is not None and window.end_ns
    ]
    items = forest.items
    threads = np.array([*(thread for thread, _ in record.log.threads), record.thread])
    inside = []
    twin_of = np.zeros(len(items), bool)
    twin_of[forest.parent[items.kind == TWIN]] = True
    usable = np.isin(items.kind, _ENCLOSING) & ~twin_of & ~forest.alone
    for window in windows:
        assert window.end_ns is not None
        chosen = np.flatnonzero(
            usable & (items.begin < window.end_ns) & (items.end > window.begin_ns)
        )
        thread = threads[np.minimum(items.thread[chosen], len(threads) - 1)]
        begin, end = items.begin[chosen], items.end[chosen]
        cut = (begin < window.begin_ns) | (end > window.end_ns)
        cut &= (thread != window.thread) & np.isin(items.kind[chosen], RECORDED_WHOLE)
        labels = [naming.labels[n] for n in naming.of[chosen].tolist()]
        known = [label.attributes for label in labels]
        layer = np.array([label.kind.value == "layer" for label in labels], dtype=bool)
        inside.append(
            ItemRows(
                item=chosen,
                cut=cut,
                is_layer=layer,
                name=writable([label.name for label in labels]),
                path=writable([str(each.get("module_path") or "") for each in known]),
                class_name=[str(each.get("module_class") or "") for each in known],
                begin=np.maximum(begin, window.begin_ns),
                end=np.where(cut, end, np.minimum(end, window.end_ns)),
                thread=thread,
            )
        )
    return read_deep(windows, record.providers, inside)


def _described(
    process: ProcessRuns, settings: Settings, warnings: Sequence[TraceWarning], spans: pl.DataFrame,
    passes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    made = describe([process], settings, warnings, passes=passes, intervals="within this run")
    return made | made_of(spans)


def _group_traces(  # what a trace is made of
    rows: Rows,
    own: Mapping[int, Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    naming: Naming,
    process: ProcessRuns,
    settings: Settings,
) -> dict[str, Trace]:
    """Return the trace of one member of each group on average, first ones left out."""
    tops: dict[int, int] = {}
    for row, label in enumerate(rows.label):
        if label.group < 0:
            continue
        first = label.name != naming.groups[label.group].label
        best = tops.get(label.group)
        if best is None or (
            (not first, float(rows.total_ns[row]))
            > (
                rows.label[best].name == naming.groups[label.group].label,
                float(rows.total_ns[best]),
            )
        ):
            tops[label.group] = row
    of_label = {group.label: number for number, group in enumerate(naming.groups)}
    result = {}
    for facts_of_group in groups[:MOST_TRACES]:
        top = tops.get(of_label[facts_of_group["name"]])
        if top is None:
            continue
        mine = only(rows, top)
        kept = _own_below(rows, own, top)
        spans = spans_of(mine, self_times(mine), kept, int(mine.thread[0]))
        one = replace(process, subject=facts_of_group["name"])
        metadata = _described(one, settings, [], spans, facts_of_group["passes"])
        result[facts_of_group["name"]] = Trace(spans, metadata)
    return result


def _own_below(
    rows: Rows, own: Mapping[int, Mapping[str, Any]], top: int
) -> dict[int, Mapping[str, Any]]:
    inside, number = {top: 0}, 1
    for row in range(top + 1, len(rows)):
        if int(rows.parent[row]) in inside:
            inside[row] = number
            number += 1
    return {inside[row]: what for row, what in own.items() if row in inside}


def _collectives(deep: Deep, forest: Forest, naming: Naming) -> pl.DataFrame:
    """Return the collectives that were recorded, inside of steps and outside.

    All ranks of a job make the same windows, so that a collective is known by its window, its
    name, and its number among those of the name.
    """
    if "attr.collective" not in deep.rows.columns:
        return pl.DataFrame(schema=COLLECTIVE_SCHEMA)
    names = deep.rows["name"].to_list()
    labels = []
    for around in deep.parent.tolist():
        item = int(deep.item[around]) if around >= 0 else -1
        known = naming.labels[int(naming.of[item])].name if item >= 0 else ""
        is_window = around >= 0 and deep.parent[around] < 0
        labels.append(known or ("block" if is_window else names[around]))
    found = deep.rows.with_columns(
        group=pl.lit(0), step=pl.Series(deep.window), label=pl.Series(labels),
        timed=pl.Series(deep.timed),
    ).filter(pl.col("kind") == "op", pl.col("attr.collective").is_not_null(), "timed")  # fmt: skip
    number = pl.int_range(pl.len(), dtype=pl.Int64).over("step", "name")
    return (
        found.sort("start_ns")
        .select(
            pl.col(column).cast(dtype)
            for column, dtype in COLLECTIVE_SCHEMA.items()
            if column != "number"
        )
        .with_columns(number=number)
        .select(*COLLECTIVE_SCHEMA)
    )


# Warnings of a program: what a reader should know before he trusts a number.

_LEAST_PASSED = 0.01  # of the program's time: calls passed over that are worth a sentence
_NAMED = 3
_OFTEN = 50  # preemptions a second: one with a time slice of 4 ms costs a fifth of the time
_MUCH = 0.1  # of a block's time: as much of children's is worth a word
_QUICK_NS, _BOUND_NS = 2_000_000, 2_000  # of a hook: benchmarks/notes/2026-11-windows.md
_HOOKS = 3  # of a training step: of its call, its backward pass and its optimizer

_RAISED = (
    "{} of {} raised. Their time counts up to the exception; handle it if you did not expect it."
)
_CUT = (
    "the span {} starts in one part of your program and ends in another, so the tree shows it in "
    "pieces. Put all of the marked code inside one part."
)
_PASSED = (
    "{} had no weights, so xsp took it for a loss or a transform, not for a model. Its rows are "
    "right; rates leave it out. Mark it with `with prof.step():`."
)
_CUT_SHORT = (
    "{} ended the block early. Times up to then are right; calls still running are missing."
)
_CHILDREN = (
    "child processes used {} of CPU time that xsp cannot see. Start them with "
    "`torchrun … -m xsp profile`, or put `with xsp.profile():` into their code."
)
_SAMPLED = (
    "child processes used {} of CPU time, which xsp only sampled. To see more, start them with "
    "`torchrun … -m xsp profile`, or put `with xsp.profile():` into their code."
)
_WORKERS = (
    "xsp could not look into the {} that load data: it sees workers that are forked inside the "
    'block. Pass `multiprocessing_context="fork"` to the DataLoader, and make it in the block.'
)
_UNSEEN = (
    "xsp saw no model call, so the tree has only regions and lines of code. Call a model, mark "
    "`with prof.step():`, or use xsp.measure(function). Functions of torch.jit stay unseen."
)
_STEPS = (
    "{} of optimizers followed no model call that xsp saw; times are right, but belong to no "
    "step. Call the model itself instead of `forward`, or mark `with prof.step():`."
)
_BUSY = (
    "the system interrupted your program {} times ({} a second), so times are longer than on a "
    "quiet machine. Stop other programs, or try `torch.set_num_threads(1)`; see `xsp doctor`."
)
_COSTS = (
    "subtracted was {} for each layer that was recorded (± {}), {} for each operator (± {}), {} "
    "for each outermost call, {} for each backward pass and each optimizer step, and what xsp "
    "noted of its own work"
)
_QUICK = (
    "calls of {} are so short ({}) that the cost of hooks matters: each time is uncertain by "
    "another ± {}. Use xsp.measure for exact times."
)


def program_warnings(naming: Naming, forest: Forest, record: ProgramRecord) -> list[TraceWarning]:
    """List the warnings of a program, beside those of providers."""
    result = [*_raised(forest, record), *_cut(forest, record)]
    passed = _passed_over(naming, forest, record)
    result += [TraceWarning("passed-over", passed)] if passed else []
    if record.left_by:
        result.append(TraceWarning("cut-short", _CUT_SHORT.format(record.left_by)))
    if said := of_children(record):
        result.append(TraceWarning("child-processes", said))
    workers = max((facts.get("workers") or 0 for _, facts in record.log.names), default=0)
    if workers and not record.forks:
        said = _WORKERS.format(counted(workers, "worker"))
        result.append(TraceWarning("workers-unseen", said))
    if not naming.groups:
        result.append(TraceWarning("nothing-called", _UNSEEN))
    lone = sum(
        g.count for g in naming.groups if g.member.step and g.member.facts.model == "function"
    )
    steps = int((forest.items.kind == OPTIMIZER).sum())
    if lone < _NAMED or not steps:
        lone_steps = []
    else:
        lone_steps = [TraceWarning("steps-without-call", _STEPS.format(counted(lone, "step")))]
    result += lone_steps
    result += _quick(naming, forest)
    per_second = record.preempted / max((record.end_ns - record.begin_ns) / 1e9, 0.01)
    if per_second > _OFTEN and record.preempted >= _OFTEN:
        said = _BUSY.format(f"{record.preempted:,}", f"{per_second:,.0f}")
        result.append(TraceWarning("busy-machine", said))
    costs = forest.costs
    told = (costs.layer, costs.layer_se, costs.operator, costs.operator_se, CALL_NS, PASS_NS)
    return [*result, TraceWarning(NOTE, _COSTS.format(*map(duration, told)))]


def of_children(record: ProgramRecord) -> str:
    """Warn of the processes that a program started, if they used much processor time."""
    loading = any(attributes.get("workers") for _, attributes in record.log.names)
    took_ns = 0.0 if loading else record.children_s * 1e9
    much = took_ns >= _MUCH * (record.end_ns - record.begin_ns)
    said = _SAMPLED if record.workers else _CHILDREN
    return said.format(duration(took_ns)) if took_ns and much else ""


def _raised(forest: Forest, record: ProgramRecord) -> list[TraceWarning]:
    items = forest.items
    raised: Counter[str] = Counter()
    for at in np.flatnonzero((items.kind == CALL) & (items.raised > 0)).tolist():
        raised[record.log.calls[int(items.number[at])].model] += 1
    return [
        TraceWarning("raised", _RAISED.format(counted(count, "call"), model))
        for model, count in raised.items()
    ]


def _cut(forest: Forest, record: ProgramRecord) -> list[TraceWarning]:
    items = forest.items
    cut = np.flatnonzero((items.kind == REGION) & (forest.part > 0))
    names = dict.fromkeys(record.log.regions[int(items.number[at]) - 1].name for at in cut)
    return [TraceWarning("region-cut", _CUT.format(name)) for name in [*names][:_NAMED]]


def _passed_over(naming: Naming, forest: Forest, record: ProgramRecord) -> str:
    """Name the calls that were taken for no model; a loss within a step belongs to that step."""
    items, facts = forest.items, record.log.calls
    took: defaultdict[str, float] = defaultdict(float)
    often: Counter[str] = Counter()
    for at in np.flatnonzero(items.kind == CALL).tolist():
        call = facts[int(items.number[at])]
        if call.passed_over and not naming.inside[at]:
            took[call.model] += float(forest.took_ns[at] * forest.weight[at])
            often[call.model] += round(float(forest.weight[at]))
    least = _LEAST_PASSED * float(forest.took_ns[0])
    much = sorted((name for name in took if took[name] >= least), key=lambda name: -took[name])
    if not much:
        return ""
    said = [f"{often[name]:,} × {name}, {duration(took[name])}" for name in much[:_NAMED]]
    return _PASSED.format("; ".join(said))


def _quick(naming: Naming, forest: Forest) -> list[TraceWarning]:
    """Return the bound of quick calls, where these take most of the time after the first ones."""
    member = (naming.group >= 0) & ~naming.first
    quick = member & (forest.took_ns < _QUICK_NS) & (forest.took_ns > 0)
    if forest.took_ns[quick].sum() < 0.5 * forest.took_ns[member].sum() or not quick.any():
        return []
    number = int(np.bincount(naming.group[quick]).argmax())
    mean = duration(float(forest.took_ns[naming.group == number].mean()))
    group = naming.groups[number]
    bound = duration(_BOUND_NS * (_HOOKS if group.trains else 1))
    return [TraceWarning("quick-calls", _QUICK.format(group.label, mean, bound))]
