"""Iterations: the nested parts of a program in, the same with its training iterations out.

A training iteration is put around each training step and the parts since the step before:

    block                         block
    ├─ data loading               ├─ training iteration
    ├─ training step              │  ├─ data loading
    ├─ data loading               │  └─ training step
    ├─ teacher                    └─ training iteration
    └─ training step                 ├─ …

What does not usually lie between two steps, such as validation, is no part of one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from xsp.composition.group import Group
from xsp.composition.nested.part import Part
from xsp.level import Kind

ITERATION = "training iteration"

_FEWEST_STEPS = 2
_MOST_TIMES = 10  # as many calls of a model as usual: more of them are something else
_NONE: Counter[str] = Counter()

_Kind = tuple[str, str]  # model and variant of a training step


def with_iterations(nested: Sequence[Part], groups: Sequence[Group]) -> list[Part]:
    """Return the parts with a training iteration around each training step and what led to it.

    Args:
        nested: Parts of the program, parents before children.
        groups: For each evaluation of the journal, its group.
    """
    children: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, part in enumerate(nested[1:], 1):
        children[part.parent, part.thread].append(number)
    models = _models(nested, groups)
    iterations: list[Part] = []
    inside: dict[int, int] = {}  # iteration of each part
    for (parent, thread), members in children.items():
        rounds = _rounds(nested, members, groups)
        if len(rounds) < _FEWEST_STEPS:
            continue
        before_ns: int | None = None  # end of the training step before
        for led, room in zip(rounds, _rooms(nested, rounds, groups, models), strict=True):
            content = _last(led, room, models)
            start_ns, end_ns = nested[content[0]].start_ns, nested[content[-1]].end_ns
            if before_ns is not None and len(content) == len(led):
                start_ns = before_ns
            inside |= dict.fromkeys(content, len(iterations))
            iterations.append(Part(ITERATION, Kind.PIPELINE, start_ns, end_ns, thread, parent))
            before_ns = end_ns
    return _put_together(nested, iterations, inside)


def _models(nested: Sequence[Part], groups: Sequence[Group]) -> Mapping[int, Counter[str]]:
    """Return how often each part calls which models, but for training steps."""
    result: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for number, part in enumerate(nested):
        if part.evaluation >= 0 and not groups[part.evaluation].trains:
            around = number
            while around > 0:
                result[around][groups[part.evaluation].subject] += 1
                around = nested[around].parent
    return result


def _rounds(
    nested: Sequence[Part], members: Sequence[int], groups: Sequence[Group]
) -> list[list[int]]:
    """Return the training steps among the parts of one parent, each after what led to it."""
    result: list[list[int]] = [[]]
    for number in sorted(members, key=lambda n: nested[n].start_ns):
        result[-1].append(number)
        evaluation = nested[number].evaluation
        if evaluation >= 0 and groups[evaluation].trains:
            result.append([])
    return result[:-1]


def _rooms(
    nested: Sequence[Part],
    rounds: Sequence[Sequence[int]],
    groups: Sequence[Group],
    models: Mapping[int, Counter[str]],
) -> list[Counter[str]]:
    """Return how many calls of each model belong to each training step.

    All of them, as a rule; as many as usual before steps of its kind, such as those of a
    discriminator, where there are many times as many, or where there usually are none.
    """
    called: list[Counter[str]] = [
        sum((models.get(number, _NONE) for number in led), Counter()) for led in rounds
    ]
    steps = [groups[nested[led[-1]].evaluation] for led in rounds]
    kinds: list[_Kind] = [(step.subject, step.variant) for step in steps]
    of: defaultdict[_Kind, list[Counter[str]]] = defaultdict(list)
    for kind, counts in zip(kinds, called, strict=True):
        of[kind].append(counts)
    usual = {
        kind: {model: median_low(each[model] for each in known) for model in {*sum(known, _NONE)}}
        for kind, known in of.items()
    }
    return [
        Counter(
            {
                model: count if count <= _MOST_TIMES * usual[kind][model] else usual[kind][model]
                for model, count in counts.items()
            }
        )
        for kind, counts in zip(kinds, called, strict=True)
    ]


def _last(
    led: Sequence[int], room: Counter[str], models: Mapping[int, Counter[str]]
) -> Sequence[int]:
    """Return the last of the parts that led to a step: as many as there is room for."""
    left = Counter(room)
    for at in reversed(range(len(led))):
        for model, count in models.get(led[at], _NONE).items():
            left[model] -= count
            if left[model] < 0:
                return led[at + 1 :]
    return led


def _put_together(
    nested: Sequence[Part], iterations: Sequence[Part], inside: Mapping[int, int]
) -> list[Part]:
    """Return all parts, parents before children, each iteration before its first part."""
    result: list[Part] = []
    place: dict[int, int] = {}
    placed: dict[int, int] = {}
    for number, part in enumerate(nested):
        parent = place[part.parent] if part.parent >= 0 else -1
        iteration = inside.get(number)
        if iteration is not None:
            if iteration not in placed:
                placed[iteration] = len(result)
                result.append(replace(iterations[iteration], parent=parent))
            parent = placed[iteration]
        place[number] = len(result)
        result.append(replace(part, parent=parent))
    return result
