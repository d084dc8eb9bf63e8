"""Summaries: the groups of a program in; facts on each, sentences, a table of their layers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.composition.generation import generation_sentence
from xsp.composition.group import TRAINING_STEP, Group, Size, shape_range
from xsp.composition.nested import ITERATION, UNWATCHED, Part
from xsp.composition.timeline import Timeline
from xsp.evaluation import covered
from xsp.level import Kind
from xsp.provider import NO_BACKWARD
from xsp.text import counted, duration, percent
from xsp.trace import Trace, attribute_column

Floats = NDArray[np.float64]

INFERENCE = "inference"

_SIZES = 50  # numbers of calls and sets of input shapes of a group that have a latency of their own
_TOKENS_RANK, _SEQUENCE_SIZES = 2, 3  # of batches of sequences of tokens, and of vectors
_NAMED = 4  # groups named in a sentence
_KEYS = ("module_path", "module_class", "phase")  # what a layer is known by in all groups


def facts(
    groups: Mapping[str, Group],
    times: Mapping[int, Mapping[Size, Sequence[float]]],
    own: Mapping[int, Mapping[str, float]],
    traces: Mapping[int, Trace],
    repeated: Mapping[int, int],
) -> list[dict[str, Any]]:
    """Return what is known of each group, as JSON can hold it; that with most time first.

    Args:
        groups: The groups by their names.
        times: How long evaluations of each group and size take (`times_by_size`).
        own: Latencies of groups by the program's evaluations alone (`own_latencies`).
        traces: The traces of groups, by their numbers.
        repeated: How often groups were repeated after the program, by their numbers.
    """
    result = [
        {
            "name": label,
            "model": group.subject,
            "phase": _phase(group),
            "variant": group.variant,
            "shapes": _shapes(group),
            "calls": group.calls,
            "repeated": repeated.get(group.number, 0),
            "total_ns": sum(sum(took) for took in times.get(group.number, {}).values()),
            "samples": _samples(group, traces.get(group.number)),
            **_measured(traces.get(group.number)),
            **(own.get(group.number, {}) if repeated.get(group.number) else {}),
            "sizes": _per_size(times.get(group.number, {})) if group.varies else [],
        }
        for label, group in groups.items()
    ]
    return sorted(result, key=lambda entry: -entry["total_ns"])


def _phase(group: Group) -> str:
    """Return what the model does: without a backward pass that is inference in training mode."""
    return INFERENCE if group.variant == NO_BACKWARD else group.phase or INFERENCE


def _samples(group: Group, trace: Trace | None) -> int | None:
    """Return how many samples an evaluation takes: the leading size of the leading input.

    Where the number of calls varies, that is the average. None where inputs differ in that size, or
    otherwise and are no sentences; where the leading input has no such size, or may lead with a
    sequence; and of a function of TensorFlow's or JAX's without layers, whose leading input may be
    anything.
    """
    if trace is not None and _is_bare_function(trace):
        return None
    shapes = {inputs[0][0] for inputs in group.inputs if inputs}
    unlike = {(len(shape), *shape[:1]) for shape in shapes}
    if len(unlike) != 1:
        return None
    [(rank, *leading)] = unlike
    if rank < 2 or (rank <= _SEQUENCE_SIZES and not group.batch_first):
        return None
    if len(shapes) > 1 and rank != _TOKENS_RANK:  # a photograph leads with its colours
        return None
    return round(leading[0] * group.average_calls)


def _is_bare_function(trace: Trace) -> bool:
    graph = attribute_column(trace.spans, "framework").is_in(["tensorflow", "jax"])
    layers = attribute_column(trace.spans, "module_path").drop_nulls()
    return bool(graph.any()) and not (layers != "").any()


def _shapes(group: Group) -> list[str]:
    unlike = group.inputs
    width = max((len(inputs) for inputs in unlike), default=0)
    known = [[inputs[at] for inputs in unlike if len(inputs) > at] for at in range(width)]
    return [
        f"{shape_range([shape for shape, _ in each])} {'/'.join(dict.fromkeys(d for _, d in each))}"
        for each in known
    ]


def _measured(trace: Trace | None) -> dict[str, Any]:
    if trace is None:
        return {"latency_ns": None, "latency_low_ns": None, "latency_high_ns": None, "rungs": []}
    root = trace.root
    return {
        "latency_ns": root.latency_ns,
        "latency_low_ns": root.latency_low_ns,
        "latency_high_ns": root.latency_high_ns,
        "rungs": [dict(rung) for rung in trace.metadata["rungs"]],
    }


def _per_size(sizes: Mapping[Size, Sequence[float]]) -> list[dict[str, Any]]:
    most = sorted(sizes.items(), key=lambda item: -sum(item[1]))[:_SIZES]
    return [
        {
            "model_calls": model_calls,
            "shapes": [shape_range([shape]) for shape, _ in inputs],
            "calls": len(times),
            "latency_ns": float(np.median(times)),
        }
        for (model_calls, inputs), times in most
    ]


def sentences(
    groups: Sequence[Mapping[str, Any]],
    parts: Sequence[Part],
    lasting_ns: Floats,
    timeline: Timeline,
    first: Mapping[int, float],
) -> list[str]:
    """Return what stands first in the views: what was evaluated, how often, and what lies outside.

    Args:
        groups: What is known of each group (`facts`).
        parts: Parts of the program, the block first.
        lasting_ns: How long each part takes without xsp.
        timeline: How long anything takes without xsp.
        first: What first calls take more than the others (ns), which is in no rate, by their
            parts (`first_calls`).
    """
    warm_ns = lasting_ns.copy()
    for number, more_ns in first.items():
        around = number
        while around > 0:
            warm_ns[around] -= more_ns
            around = parts[around].parent
    found = [_evaluated(groups), _outside(parts, lasting_ns), _unwatched(parts, lasting_ns)]
    found += [
        generation_sentence(parts, groups, timeline, first),
        _training(parts, warm_ns, groups),
    ]
    found.append(_inference(parts, warm_ns, groups, first))
    return [sentence for sentence in found if sentence]


def _evaluated(groups: Sequence[Mapping[str, Any]]) -> str:
    if not groups:
        return "evaluated: no model was called"
    parts = [
        f"{group['calls']:,} × {group['name']}"
        + (f" (repeated {group['repeated']:,} × afterwards)" if group["repeated"] else "")
        for group in groups[:_NAMED]
    ]
    more = len(groups) - _NAMED
    parts += [f"{counted(more, 'further group')}"] if more > 0 else []
    return f"evaluated: {', '.join(parts)}"


def _outside(parts: Sequence[Part], lasting_ns: Floats) -> str:
    """Return for how long no thread was in an evaluation while the program was watched."""
    unwatched_ns = _unwatched_ns(parts, lasting_ns)
    watched_ns = float(lasting_ns[0]) - unwatched_ns
    if watched_ns <= 0:
        return ""
    inside = [number for number, part in enumerate(parts) if part.evaluation >= 0]
    outside = max(watched_ns - _busy_ns(parts, lasting_ns, inside), 0.0)
    of = f" of the {duration(watched_ns)} watched" if unwatched_ns else ""
    return f"outside of evaluations: {duration(outside)}, {percent(outside / watched_ns)}{of}"


def _unwatched(parts: Sequence[Part], lasting_ns: Floats) -> str:
    """Return for how long the program ran unwatched, and after how many evaluations."""
    unwatched_ns = _unwatched_ns(parts, lasting_ns)
    if not unwatched_ns:
        return ""
    evaluations = sum(part.evaluation >= 0 for part in parts)
    return (
        f"unwatched: {duration(unwatched_ns)}, after {counted(evaluations, 'evaluation')}, "
        "for nothing was left to be measured"
    )


def _unwatched_ns(parts: Sequence[Part], lasting_ns: Floats) -> float:
    return float(lasting_ns[[part.name == UNWATCHED for part in parts]].sum())


def _busy_ns(parts: Sequence[Part], lasting_ns: Floats, members: Sequence[int]) -> float:
    """Return for how long at least one thread was in one of some parts, which do not nest."""
    sum_ns = float(lasting_ns[members].sum())
    if len({parts[number].thread for number in members}) < 2:
        return sum_ns
    times = [(parts[number].start_ns, parts[number].end_ns) for number in members]
    start, end = np.array(times, dtype=np.int64).T
    union_ns = covered(np.zeros(len(members), dtype=np.int64), start, end, 1)[0]
    return sum_ns * float(union_ns) / max(float((end - start).sum()), 1.0)


def _training(parts: Sequence[Part], warm_ns: Floats, groups: Sequence[Mapping[str, Any]]) -> str:
    """Return how long training iterations take, and how many samples are trained with a second."""
    times = [
        lasting
        for part, lasting in zip(parts, warm_ns.tolist(), strict=True)
        if part.name == ITERATION
    ]
    if not times:
        return ""
    seconds = sum(times) / 1e9
    rate = f"{len(times) / seconds:,.1f} per second"
    if samples := _samples_per_step(groups):
        rate += f", {samples * len(times) / seconds:,.0f} samples/s"
    mean = duration(sum(times) / len(times))
    kinds = {(group["model"], group["variant"]) for group in groups if _trains(group)}
    each = f", one for each step of {len(kinds)} kinds," if len(kinds) > 1 else ""
    return f"training: {counted(len(times), 'iteration')}{each} of {mean} on average ({rate})"


def _trains(group: Mapping[str, Any]) -> bool:
    return bool(group["phase"] == TRAINING_STEP)


def _samples_per_step(groups: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how many samples a training step takes on average; None if that is not known.

    Steps of several models, or with several optimizers in turn, may share their samples, as
    those of generator and discriminator do.
    """
    steps = [group for group in groups if _trains(group)]
    unlike = {(group["model"], group["variant"]) for group in steps}
    if len(unlike) != 1 or not all(group["samples"] for group in steps):
        return None
    samples = sum(group["samples"] * group["calls"] for group in steps)
    return float(samples / sum(group["calls"] for group in steps))


def _inference(
    parts: Sequence[Part],
    warm_ns: Floats,
    groups: Sequence[Mapping[str, Any]],
    first: Mapping[int, float],
) -> str:
    """Return how many samples a second the model takes that inference spent most time in."""
    for group in groups:
        if group["phase"] != INFERENCE or not group["samples"]:
            continue
        calls = [
            number
            for number, part in enumerate(parts)
            if part.evaluation >= 0 and part.name == group["name"]
        ]
        # How many threads were in calls at once, a long first call would not tell.
        calls = [number for number in calls if number not in first] or calls
        if busy_ns := _busy_ns(parts, warm_ns, calls):
            rate = 1e9 * group["samples"] * len(calls) / busy_ns
            return f"inference: {rate:,.0f} samples/s in {group['name']} while it runs"
    return ""


def side_by_side(groups: Mapping[str, Trace]) -> pl.DataFrame:
    """Return the latency of each layer in one evaluation of each group.

    Layers are the same where path, class and phase are. A layer that is called several times in an
    evaluation has the sum of its calls. Rows are in the order of the first group that has them.

    Args:
        groups: The trace of one evaluation of each group, by the group's name.

    Returns:
        Columns `module_path`, `module_class` and `phase`, and a column with the name of each group:
        nanoseconds, null where the group has no such layer, or its latency is not known.
    """
    table = pl.DataFrame(schema=dict.fromkeys(_KEYS, pl.String))
    for name, trace in groups.items():
        table = table.join(
            _layers(trace, name), on=_KEYS, how="full", coalesce=True, nulls_equal=True,
            maintain_order="left_right",
        )  # fmt: skip
    return table


def _layers(trace: Trace, name: str) -> pl.DataFrame:
    spans = trace.spans
    keys = {key: attribute_column(spans, key) for key in _KEYS}
    return (
        spans.select("kind", "latency_ns", **keys)
        .filter(pl.col("kind") == Kind.LAYER.value, pl.col("module_path").is_not_null())
        .group_by(_KEYS, maintain_order=True)
        .agg(
            pl.when(pl.col("latency_ns").is_not_null().any()).then(pl.sum("latency_ns")).alias(name)
        )
    )
