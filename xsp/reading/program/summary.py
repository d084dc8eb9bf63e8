"""Writes sentences about a program: counts and times of calls, and the time outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp.matching import covered
from xsp.provider import CALL, TRANSFORMED
from xsp.reading.program.events import ITERATION
from xsp.reading.program.forest import Forest
from xsp.reading.program.group import Group, shape_range, shapes_of
from xsp.reading.program.naming import Naming
from xsp.reading.program.tree import Rows
from xsp.record.program import ProgramRecord, Records
from xsp.text import counted, duration, percent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

INFERENCE = "inference"
PREFILL, EXTEND, DECODE = "prefill", "extend", "decode"
_NAMED = 4  # groups named in a sentence
_FEWEST_SAMPLES = 2  # of a call, for a rate: a single one may be no batch
_SIZES = 50  # of a group that have a latency of their own
_TOKENS_RANK, _SEQUENCE_SIZES = 2, 3  # of batches of sequences of tokens, and of vectors


def facts(
    naming: Naming, forest: Forest, record: ProgramRecord, reaches: Mapping[int, float],
    layered: NDArray[np.bool_], deep: NDArray[np.bool_],
) -> list[dict[str, Any]]:  # fmt: skip
    """Describe each group as JSON can hold it, the group with most time first.

    Args:
        naming: Groups, and which items are their members.
        forest: The items.
        record: What was recorded.
        reaches: Half the 95 % interval of a group's mean latency, by its number.
        layered: Whether layers were recorded where each item began.
        deep: Whether operators were.
    """
    result = []
    for number, group in enumerate(naming.groups):
        mine = np.flatnonzero((naming.group == number) & (forest.part <= 1))
        warm = mine[~naming.first[mine]]
        took = forest.took_ns[warm if len(warm) else mine]
        mean = float(took.mean())
        reach = reaches.get(number, 0.0)
        result.append(
            {
                "name": group.label,
                "model": group.member.facts.model,
                "phase": group.phase or INFERENCE,
                "shapes": shapes_of(group),
                "calls": round(float(forest.weight[mine].sum())),
                "total_ns": float((forest.took_ns * forest.weight)[mine].sum()),
                "samples": _samples(group, mine, forest, record),
                "latency_ns": mean,
                "latency_low_ns": max(mean - reach, 0.0) if reach else None,
                "latency_high_ns": mean + reach if reach else None,
                "least_ns": float(took.min()),
                "median_ns": float(np.median(took)),
                "most_ns": float(took.max()),
                "passes": _passes(mine, forest, record, layered, deep),
                "sizes": _per_size(group, mine, forest, record) if group.varies else [],
            }
        )
    return sorted(result, key=lambda entry: -entry["total_ns"])


def _passes(
    mine: Ints, forest: Forest, record: ProgramRecord, layered: NDArray[np.bool_],
    deep: NDArray[np.bool_],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return for each kind of span the number of members in which it was recorded."""
    passes = [{"pass": "region", "runs": len(mine)}]
    if record.layers:
        passes.append({"pass": "layer", "runs": int(layered[mine].sum())})
    names = {w.pass_.name: w.pass_ for w in record.windows if w.pass_ is not None and w.pass_.timed}
    known = [*names] or (["op"] if record.operators else [])
    passes += [{"pass": name, "runs": int(deep[mine].sum())} for name in known]
    if names and "op" not in names:
        passes.insert(len(passes) - len(names), {"pass": "op", "runs": int(deep[mine].sum())})
    return passes


def _samples(group: Group, mine: Ints, forest: Forest, record: ProgramRecord) -> int | None:
    """Return how many samples a member takes on average: the leading sizes of leading inputs.

    None where inputs of calls differ in that size, or otherwise and are no sentences; where the
    leading input has no such size, or may lead with a sequence; and where a call may be of many
    samples that its inputs do not show (`torch.func.vmap`).
    """
    facts = group.member.facts
    if group.member.marked or not facts.owner or TRANSFORMED in facts.settings:
        return None
    shapes = {inputs[0][0] for inputs in group.inputs if inputs}
    unlike = {(len(shape), *shape[:1]) for shape in shapes}
    if len(unlike) != 1:
        return None
    [(rank, *leading)] = unlike
    if rank < 2 or (rank <= _SEQUENCE_SIZES and not facts.batch_first):
        return None
    if len(shapes) > 1 and rank != _TOKENS_RANK:  # a photograph leads with its colors
        return None
    inside = np.zeros(len(forest.items), bool)
    inside[mine[forest.step[mine] >= 0]] = True
    for rows in forest.levels[1:]:
        inside[rows] |= inside[forest.parent[rows]]
    inside &= forest.items.kind == CALL
    calls = [record.log.calls[number] for number in forest.items.number[inside].tolist()]
    sizes = [
        each.inputs[0][0][0] if each.inputs and each.inputs[0][0] else 0
        for each in calls if each.owner == facts.owner
    ]  # fmt: skip
    if sizes:  # the micro-batches of a step need not be alike
        return round(sum(sizes) / len(mine))
    return round(leading[0] * max(group.average_calls, 1))


def _per_size(
    group: Group, mine: Ints, forest: Forest, record: ProgramRecord
) -> list[dict[str, Any]]:
    """Return a latency per number of calls and set of input shapes."""
    calls = record.log.calls
    step = forest.step[mine]
    known = step >= 0
    number = np.where(known, 0, forest.items.number[mine])
    often = np.ones(len(mine), np.int64)
    if known.any():
        number[known] = np.maximum(forest.steps.first[step[known]], 0)
        often[known] = forest.steps.calls[step[known]]
    sizes: dict[tuple[int, Any], list[float]] = {}
    for times, which, took in zip(
        often.tolist(), number.tolist(), forest.took_ns[mine].tolist(), strict=True
    ):
        inputs = calls[which].inputs if which < len(calls) else ()
        sizes.setdefault((times, inputs), []).append(took)
    most = sorted(sizes.items(), key=lambda item: -sum(item[1]))[:_SIZES]
    return [
        {
            "model_calls": times,
            "shapes": [shape_range([shape]) for shape, _ in inputs],
            "calls": len(took),
            "latency_ns": float(np.median(took)),
        }
        for (times, inputs), took in most
    ]


def sentences(
    groups: Sequence[Mapping[str, Any]], naming: Naming, forest: Forest, record: ProgramRecord
) -> list[str]:
    """Write the sentences that stand above the views of a program's trace."""
    if not groups:
        called = "called: no model"
    else:
        about = "~" if forest.weight.max(initial=1.0) > 1.0 else ""
        parts = [f"{about}{group['calls']:,} × {group['name']}" for group in groups[:_NAMED]]
        more = len(groups) - _NAMED
        parts += [f"{counted(more, 'further group')}"] if more > 0 else []
        called = f"called: {', '.join(parts)}"
    found = [
        called,
        _outside(naming, forest),
        _watched(record),
        _generation(groups, naming, forest),
        _training(groups, naming, forest),
        _inference(groups, naming, forest),
    ]
    return [sentence for sentence in found if sentence]


def _outside(naming: Naming, forest: Forest) -> str:
    """Return for how long no thread was in a member."""
    inside = np.flatnonzero(naming.group >= 0)
    whole = float(forest.took_ns[0])
    if whole <= 0:
        return ""
    outside = max(whole - _busy_ns(forest, inside), 0.0)
    return f"outside of steps: {duration(outside)}, {percent(outside / whole)}"


def _watched(record: ProgramRecord) -> str:
    """Return the share of time in which hooks were in, where that is not all."""
    outs = [w for w in record.windows if w.records is Records.OUT and not w.between]
    out = sum((record.end_ns if w.end_ns is None else w.end_ns) - w.begin_ns for w in outs)
    if not out:
        return ""
    part = 1.0 - out / max(record.end_ns - record.begin_ns, 1)
    if len(outs) == 1 and outs[0] is record.windows[-1]:  # by `schedule`, or the log was full
        return (
            f"profiled: {percent(part)} of the time, then xsp took its hooks out; later calls "
            "count as time outside of steps"
        )
    return (
        f"profiled: {percent(part)} of the time, so that your program slows down by 1 % at most; "
        "xsp extrapolates counts and times of the rest (~)"
    )


def _busy_ns(forest: Forest, members: Ints) -> float:
    """Return for how long at least one thread was in one of some items, which do not nest."""
    items = forest.items
    sum_ns = float((forest.took_ns * forest.weight)[members].sum())
    crowded = forest.alone[members].any() or len(np.unique(items.thread[members])) > 1
    if not crowded:
        return sum_ns
    begin, end = items.begin[members], items.end[members]
    union_ns = covered(np.zeros(len(members), dtype=np.int64), begin, end, 1)[0]
    return sum_ns * float(union_ns) / max(float((end - begin).sum()), 1.0)


def _training(groups: Sequence[Mapping[str, Any]], naming: Naming, forest: Forest) -> str:
    """Return how long training iterations take, and how many samples are trained with a second."""
    chosen = (forest.items.kind == ITERATION) & ~naming.first
    times = forest.took_ns[chosen]
    if not len(times):
        return ""
    seconds = float(times.sum()) / 1e9
    rate = f"{len(times) / seconds:,.1f} per second"
    steps = [group for group in groups if group["phase"] == "training step"]
    models = {group["model"] for group in steps}
    if len(models) == 1 and all(group["samples"] for group in steps):
        samples = sum(group["samples"] * group["calls"] for group in steps)
        samples /= max(sum(group["calls"] for group in steps), 1)
        rate += f", {samples * len(times) / seconds:,.0f} samples/s"
    each = f", one for each step of {len(models)} models," if len(models) > 1 else ""
    mean = duration(float(times.mean()))
    whole = int((forest.items.kind == ITERATION).sum())
    apart = ", the first left out" if whole > len(times) else ""
    return f"training: {counted(whole, 'iteration')}{each} of {mean} on average{apart} ({rate})"


def _inference(groups: Sequence[Mapping[str, Any]], naming: Naming, forest: Forest) -> str:
    """Return the samples per second of the model that took most inference time."""
    for group in groups:
        if group["phase"] != INFERENCE or (group["samples"] or 0) < _FEWEST_SAMPLES:
            continue
        number = next(n for n, each in enumerate(naming.groups) if each.label == group["name"])
        mine = np.flatnonzero(naming.group == number)
        warm = mine[~naming.first[mine]]
        mine = warm if len(warm) else mine
        if busy_ns := _busy_ns(forest, mine):
            rate = 1e9 * group["samples"] * float(forest.weight[mine].sum()) / busy_ns
            return f"inference: {rate:,.0f} samples/s in {group['name']} while it runs"
    return ""


def _generation(groups: Sequence[Mapping[str, Any]], naming: Naming, forest: Forest) -> str:
    """Return the time to the first token, and per token after it; empty if no model generates.

    Of several models that generate, as in assisted generation, that which took most time. Each
    call of `generate` is read by itself: several tokens that extend a cache are a chunk of the
    prompt before the first single one, and a check of candidates after it.
    """
    generating = [g for g in groups if g["phase"] in (PREFILL, EXTEND, DECODE)]
    for model in dict.fromkeys(group["model"] for group in generating):
        phases = {g["name"]: g["phase"] for g in generating if g["model"] == model}
        runs = _runs(phases, naming, forest)
        first, later = [run.first_ns for run in runs], [ns for run in runs for ns in run.later_ns]
        checks = any(run.checked for run in runs)
        if first and later:
            mean = float(np.mean(later))
            several = len({g["model"] for g in generating}) > 1
            rate = f"{1e9 / mean:,.1f}"
            tokens = f"per token ({rate} tokens/s in each sequence)"
            if checks:
                tokens = f"per step of one or more tokens ({rate} steps/s)"
            shown = duration(float(np.median(first)))
            if len(first) > 1 and max(first) > 2 * min(first):
                shown = f"{duration(min(first))} to {duration(max(first))}"
            return (
                f"generation{f' of {model}' if several else ''}: first token after {shown} in the "
                f"model, then {duration(mean)} {tokens}"
            )
    return ""


@dataclass(frozen=True, slots=True)
class _Run:
    """The calls of a model that one call of `generate` made.

    Attributes:
        around: Number of the item around the calls.
        first_ns: Time to the first token, in the model.
        later_ns: Time of each later token, or of each step of one or more tokens.
        checked: Whether later steps check candidates, so that nobody knows how many tokens come.
        sequences: How many sequences grow at once; 0: not known.
        tokens: How many tokens the prompt of each has.
    """

    around: int
    first_ns: float
    later_ns: Sequence[float]
    checked: bool
    sequences: int
    tokens: int


def note_generation(
    groups: Sequence[Mapping[str, Any]], naming: Naming, forest: Forest, rows: Rows
) -> None:
    """Note in the rows around calls of a language model what its tokens are, on average."""
    generating = [g for g in groups if g["phase"] in (PREFILL, EXTEND, DECODE)]
    found: dict[int, dict[str, list[_Run]]] = {}
    for model in dict.fromkeys(group["model"] for group in generating):
        phases = {g["name"]: g["phase"] for g in generating if g["model"] == model}
        for run in _runs(phases, naming, forest):
            row = found.setdefault(int(rows.of_item[run.around]), {})
            row.setdefault(model, []).append(run)
    for at, models in found.items():
        # A draft model beside the model, or a region with several answers, has no such numbers.
        (model, answers), told = next(iter(models.items())), rows.found[at]
        several = len(models) > 1 or len(answers) != round(float(rows.count[at]))
        if several or not any(run.later_ns for run in answers):
            continue
        told |= {"generation": "text_completion", "generating_model": model}
        told["first_token_s"] = float(np.mean([run.first_ns for run in answers])) / 1e9
        if all(run.sequences for run in answers):
            given = [run.sequences * run.tokens for run in answers]
            told["input_tokens"] = round(float(np.mean(given)))
            if not any(run.checked for run in answers):
                made = [run.sequences * (1 + len(run.later_ns)) for run in answers]
                told["output_tokens"] = round(float(np.mean(made)))


def _runs(phases: Mapping[str, str], naming: Naming, forest: Forest) -> list[_Run]:
    """Return the calls of `generate` of one model, whose groups have these phases."""
    items = forest.items
    of = [phases.get(group.label, "") for group in naming.groups]
    chosen = [
        at
        for at in np.flatnonzero((naming.group >= 0) & (items.kind == CALL)).tolist()
        if of[int(naming.group[at])]
    ]
    chosen.sort(key=lambda at: (int(items.thread[at]), int(items.begin[at])))
    runs: list[list[int]] = []
    for at in chosen:
        before = runs[-1][-1] if runs else -1
        same = before >= 0 and items.thread[before] == items.thread[at]
        same = same and forest.parent[before] == forest.parent[at]
        if not same or of[int(naming.group[at])] == PREFILL:
            runs.append([])
        runs[-1].append(at)
    result = []
    for run in runs:
        told = [of[int(naming.group[at])] for at in run]
        given = [_tokens_given(naming.groups[int(naming.group[at])]) for at in run]
        chunks, checked = _chunks(told, given)
        after = [_since(forest, run[n - 1], run[n]) for n in range(1, len(run))]
        first_ns = float(forest.took_ns[run[0]]) + sum(after[: chunks - 1])
        inputs = naming.groups[int(naming.group[run[0]])].member.facts.inputs
        shape = inputs[0][0] if inputs else ()
        sequences = shape[0] if len(shape) == _TOKENS_RANK else 0
        result.append(
            _Run(
                int(forest.parent[run[0]]), first_ns, after[chunks - 1 :], checked, sequences,
                sum(given[:chunks]),
            )
        )  # fmt: skip
    return result


def _tokens_given(group: Group) -> int:
    inputs = group.member.facts.inputs
    return int(inputs[0][0][-1]) if inputs and inputs[0][0] else 0


def _chunks(phases: Sequence[str], given: Sequence[int]) -> tuple[int, bool]:
    """Return how many calls take in the prompt, and whether later ones check candidates.

    The chunks of a prompt are as long as the first one, but for the last, and one token at a time
    comes after them.

    >>> _chunks(["prefill", "extend", "extend", "decode", "decode"], [8, 8, 3, 1, 1])
    (3, False)
    >>> _chunks(["prefill", "extend", "extend", "extend"], [20, 6, 6, 4])
    (1, True)
    """
    short = [p == EXTEND and n < given[0] for p, n in zip(phases, given, strict=True)]
    checked = sum(short) > sum(phase == DECODE for phase in phases)
    count = 1
    while count < len(phases) and phases[count] == EXTEND and not (checked and short[count]):
        count += 1
    return count, checked


def _since(forest: Forest, before: int, at: int) -> float:
    """Compute the time of a token: from the end of the step before to the end of its own step."""
    items = forest.items
    added = float(forest.added_ns[at]) + float(items.noted[at])
    return max(float(items.end[at] - items.end[before]) - added, 0.0)
