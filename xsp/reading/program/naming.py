"""Names items, and thereby decides which items share a row of the tree.

The first of a kind (the first call, which compiles; the first wait for data) is a row of its own
where it is unlike the rest, so that rates and means leave it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import numbered
from xsp.provider import BACKWARD, CALL, LAYER, OPTIMIZER, PART, REGION, CallFacts, NamedLayer
from xsp.reading.program.events import ITERATION, ROOT, STEP, TWIN
from xsp.reading.program.forest import Forest
from xsp.reading.program.group import Group, Member, groups_of
from xsp.reading.program.tree import Label
from xsp.record.program import ProgramRecord, RegionFacts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ITERATION_NAME, OPTIMIZER_NAME, PASS_NAME = "training iteration", "optimizer step", "backward"
RECOMPILED = "recompiled"
UNKNOWN = "?"  # a module that was not known before the call, or has died since
_FIRST_TIMES, _FIRST_OF_MOST = 2.0, 1.5  # as long as the median of the rest, and nine in ten of it
_FIRST_NS = 50_000  # shorter ones are not worth a row


@dataclass(slots=True)
class Naming:
    """The labels of items, and the groups of members.

    Attributes:
        labels: The labels.
        of: Index of the label of each item.
        groups: The groups.
        group: Number of the group of each item that is a member, else -1.
        first: Whether an item is the first of its kind, and unlike the rest.
        inside: Whether an item lies in a member.
    """

    labels: list[Label]
    of: Ints
    groups: list[Group]
    group: Ints
    first: Bools
    inside: Bools


class _Labels:
    """Labels with their numbers."""

    def __init__(self) -> None:
        self.labels: list[Label] = []
        self._known: dict[Hashable, int] = {}

    def number(
        self, kind: Kind, name: str, group: int = -1, attributes: Mapping[str, Any] | None = None,
        key: Hashable = None,
    ) -> int:  # fmt: skip
        full = kind, name, group, key
        if full not in self._known:
            self._known[full] = len(self.labels)
            self.labels.append(Label(kind, name, group, attributes or {}))
        return self._known[full]


def naming_of(forest: Forest, record: ProgramRecord) -> Naming:
    """Return the labels of all items."""
    # Which items lie in a training step, a marked step, or another call.
    items = forest.items
    marked = np.array([False, *(facts.marked for facts in record.log.regions)])
    is_region = items.kind == REGION
    whole = np.isin(items.kind, (STEP, CALL, BACKWARD, OPTIMIZER))
    whole |= is_region & marked[items.number * is_region]
    inside = np.zeros(len(items), bool)
    for rows in forest.levels[1:]:
        above = forest.parent[rows]
        inside[rows] = inside[above] | whole[above]
    groups, group = _groups(forest, record, inside)
    labels = _Labels()
    of = np.zeros(len(forest.items), np.int64)
    kind = forest.items.kind
    of[kind == ROOT] = labels.number(Kind.REGION, "block", attributes={"whole_block": True})
    of[kind == ITERATION] = labels.number(Kind.REGION, ITERATION_NAME)
    of[kind == BACKWARD] = labels.number(Kind.REGION, PASS_NAME)
    of[kind == OPTIMIZER] = labels.number(Kind.REGION, OPTIMIZER_NAME)
    _name_regions(forest, record, labels, of)
    _name_parts(forest, record, labels, of, groups, group)
    _name_calls(forest, record, labels, of, group)
    _name_layers(forest, record, labels, of)
    for number, each in enumerate(groups):
        mine = np.flatnonzero(group == number)
        marked_ones = items.number[mine].tolist() if each.member.marked else []
        told = [_told(record.log.regions[n - 1]) for n in marked_ones]
        known = told[0] if told and all(one == told[0] for one in told) else {}
        of[mine] = labels.number(Kind.REGION, each.label, number, known)
    again = _recompiled(forest, record, group)
    first = _firsts(forest, of, group) & ~again
    for at in np.flatnonzero(first | again).tolist():
        label = labels.labels[of[at]]
        calls = label.group >= 0 and not groups[label.group].trains
        word = RECOMPILED if again[at] else "first"
        name = f"{word} call of {label.name}" if calls else f"{word} {label.name}"
        known = {**label.attributes, RECOMPILED: True} if again[at] else label.attributes
        of[at] = labels.number(label.kind, name, label.group, known, key=word)
    first |= again
    return Naming(labels.labels, of, groups, group, first, inside)


def _region_paths(forest: Forest, record: ProgramRecord) -> tuple[Ints, list[str]]:
    """Return for each item the number of the path of regions around it, and the paths' names."""
    names = ["", *(facts.name for facts in record.log.regions)]
    paths = [""]
    known = {(0, ""): 0}
    of = np.zeros(len(forest.items), np.int64)
    is_region = forest.items.kind == REGION
    for rows in forest.levels[1:]:
        of[rows] = of[forest.parent[rows]]
        for at in rows[is_region[rows]].tolist():
            around, name = int(of[at]), names[int(forest.items.number[at])]
            if (around, name) not in known:
                known[around, name] = len(paths)
                paths.append(f"{paths[around]}/{name}".lstrip("/"))
            of[at] = known[around, name]
    return of, paths


def _groups(forest: Forest, record: ProgramRecord, inside: Bools) -> tuple[list[Group], Ints]:
    """Return the groups, and the group of each item that is a member."""
    items, steps, calls = forest.items, forest.steps, record.log.calls
    passed = np.array([facts.passed_over for facts in calls] or [False])
    by_hand = any(facts.marked for facts in record.log.regions)
    marked = np.array([False, *(facts.marked for facts in record.log.regions)])
    is_call, is_region = items.kind == CALL, items.kind == REGION
    member = is_region & marked[items.number * is_region] & (forest.part <= 1)
    if not by_hand:
        member |= items.kind == STEP
        member |= is_call & ~inside & ~passed[items.number * is_call]
    path, paths = _region_paths(forest, record)
    at = np.flatnonzero(member)
    around = path[np.maximum(forest.parent[at], 0)]
    step = forest.step[at]
    known = step >= 0
    own = np.where(known, step, 0)
    columns = [items.kind[at], np.where(known, -1, items.number[at]), around]
    if len(steps):
        columns += [
            np.where(known, each[own], 0)
            for each in (steps.first, steps.calls, steps.passes, steps.optimizers)
        ]
    else:
        columns += [np.zeros(len(at), np.int64)] * 4
    names = ["", *(facts.name for facts in record.log.regions)]
    by_name: dict[str, int] = {}
    is_marked = columns[0] == REGION
    columns[1] = np.array(
        [
            by_name.setdefault(names[n], len(by_name)) if m else n
            for n, m in zip(columns[1].tolist(), is_marked.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    first, of = numbered(*columns)
    count = np.bincount(of)
    order = np.argsort(first)
    members = [
        _member([int(column[first[n]]) for column in columns], list(by_name), calls)
        for n in order.tolist()
    ]
    groups, group_of = groups_of(members, count[order].tolist(), paths)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.array(group_of, dtype=np.int64)
    group = np.full(len(items), -1)
    group[at] = rank[of]
    return groups, group


def _member(row: list[int], names: list[str], calls: Sequence[CallFacts]) -> Member:
    kind, number, region, first, often, passes, optimizers = row
    if kind == REGION:
        return Member(CallFacts(names[number]), region=region, marked=names[number])
    if kind == STEP:
        facts = calls[first] if first >= 0 else CallFacts("function")
        return Member(facts, True, often, passes, optimizers, region)
    return Member(calls[number], region=region)


def _name_regions(forest: Forest, record: ProgramRecord, labels: _Labels, of: Ints) -> None:
    items = forest.items
    for at in np.flatnonzero(items.kind == REGION).tolist():
        facts = record.log.regions[int(items.number[at]) - 1]
        cut = int(forest.part[at])
        known = _told(facts) | ({"cut": True} if cut else {})
        of[at] = labels.number(facts.kind, facts.name, -1, known, key=(cut > 0, facts.error))


def _told(facts: RegionFacts) -> dict[str, Any]:
    """Make the attributes of a region."""
    known: dict[str, Any] = {f"user.{name}": value for name, value in facts.attributes.items()}
    return known | ({"error": facts.error} if facts.error else {})


def _name_parts(  # what the names of parts need
    forest: Forest,
    record: ProgramRecord,
    labels: _Labels,
    of: Ints,
    groups: Sequence[Group],
    group: Ints,
) -> None:
    """Name parts; those that call unlike models are told apart by these."""
    items, names = forest.items, record.log.names
    chosen = np.flatnonzero(items.kind == PART)
    renamed = np.where(items.renamed > 0, items.renamed, items.number)
    models: defaultdict[int, set[str]] = defaultdict(set)
    for at in np.flatnonzero(group >= 0).tolist():
        around = int(forest.parent[at])
        while around > 0:
            if items.kind[around] == PART:
                models[around].add(groups[int(group[at])].member.facts.model)
            around = int(forest.parent[around])
    variants: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for at, called in models.items():
        variants[names[int(renamed[at]) - 1][0]].add(tuple(sorted(called)))
    for number in np.unique(renamed[chosen]).tolist():
        name, attributes = names[number - 1]
        own = tuple((key, value) for key, value in attributes.items() if key != "batches_ready")
        mine = chosen[renamed[chosen] == number]
        of[mine] = labels.number(Kind.REGION, name, -1, dict(attributes), key=own)
        if len(variants[name]) > 1:
            for at in (at for at in mine.tolist() if at in models):
                whose = f"{name} ({', '.join(sorted(models[at]))})"
                of[at] = labels.number(Kind.REGION, whose, -1, dict(attributes), key=own)


def _name_calls(
    forest: Forest, record: ProgramRecord, labels: _Labels, of: Ints, group: Ints
) -> None:
    """Name calls that are no members, as the layers that they are, and outermost layers."""
    items = forest.items
    chosen = np.flatnonzero(np.isin(items.kind, (CALL, TWIN)) & (group < 0))
    for number in np.unique(items.number[chosen]).tolist():
        facts = record.log.calls[number]
        path, _, kind = facts.layer.rpartition(" ")
        path = path if path else ""
        name = path.rpartition(".")[2] or kind or facts.model
        if facts.layer and record.layers:
            known = {"module_path": path, "module_class": kind, "phase": "forward"}
            label = labels.number(Kind.LAYER, name, -1, known, key=(facts.owner, path))
        else:
            label = labels.number(Kind.REGION, f"call of {facts.model}")
        of[chosen[items.number[chosen] == number]] = label


def _name_layers(forest: Forest, record: ProgramRecord, labels: _Labels, of: Ints) -> None:
    """Name layers by the ids of their modules, in the model whose call they lie in."""
    items = forest.items
    layers = np.flatnonzero(items.kind == LAYER)
    if not len(layers):
        return
    call = forest.call[layers]
    of_call = items.kind[call] == CALL
    twin = items.kind[call] == TWIN
    number = np.where(of_call | twin, items.number[call], -1)
    owners = np.array([facts.owner for facts in record.log.calls] or [0])
    owner = np.where(number >= 0, owners[np.maximum(number, 0)], -1)
    base = [facts.layer.rpartition(" ")[0] for facts in record.log.calls]
    deaths: defaultdict[int, list[int]] = defaultdict(list)
    for ident, time in record.log.deaths:
        deaths[ident].append(time)
    first, which = numbered(owner, items.number[layers], number)
    order = np.argsort(which, kind="stable")
    places = np.split(layers[order], np.cumsum(np.bincount(which))[:-1])
    for at, chosen in zip(first.tolist(), places, strict=True):
        own, ident, called = int(owner[at]), int(items.number[layers[at]]), int(number[at])
        prefix = base[called] if called >= 0 else ""
        known = _known(record, own, ident, called)
        for layer, inside in _by_time(known, deaths.get(ident, ()), items.begin[chosen]):
            of[chosen[inside]] = _layer_label(labels, layer, own, prefix)


def _known(record: ProgramRecord, owner: int, ident: int, number: int) -> Sequence[NamedLayer]:
    """Name the layer of an id in the calls of one model; in a backward pass, of any model."""
    tables = record.log.layers
    if number >= 0:
        # A part that is called outermost has a table of its own, by its own number.
        found = [t[ident] for n, t in tables.items() if n == owner and ident in t]
        found = found or [t[ident] for t in tables.values() if ident in t]
    else:
        found = [t[ident] for t in tables.values() if ident in t]
    return found[0] if found else ()


def _by_time(
    known: Sequence[NamedLayer], deaths: Sequence[int], begins: Ints
) -> list[tuple[NamedLayer | None, Bools]]:
    """Return which of several modules with one id each call was of; None: it is not known."""
    if not known:
        return [(None, np.ones(len(begins), bool))]
    result: list[tuple[NamedLayer | None, Bools]] = []
    since = np.array([layer.since_ns for layer in known])
    place = np.searchsorted(since, begins, side="right") - 1
    dead = np.zeros(len(begins), bool)
    for time in deaths:
        later = begins > time
        # Named anew after that death, it lives.
        again = since[np.maximum(place, 0)] >= time
        dead |= later & ~again
    for number in np.unique(place).tolist():
        chosen = (place == number) & ~dead
        result.append((known[number] if number >= 0 else None, chosen))
    return [*result, (None, dead)] if dead.any() else result


def _layer_label(labels: _Labels, layer: NamedLayer | None, owner: int, prefix: str) -> int:
    if layer is None:
        return labels.number(Kind.LAYER, UNKNOWN, -1, {"phase": "forward"})
    path = ".".join(filter(None, (prefix, layer.path)))
    name = path.rpartition(".")[2] or layer.name
    known = {"module_path": path, "module_class": layer.name, "phase": "forward"}
    return labels.number(Kind.LAYER, name, -1, known, key=(owner, path))


def _recompiled(forest: Forest, record: ProgramRecord, group: Ints) -> Bools:
    """Return in which members a framework compiled or traced again what it had compiled."""
    items, parent = forest.items, forest.parent
    numbers = [n for n, (_, facts) in enumerate(record.log.names, 1) if "recompile_reason" in facts]
    result = np.zeros(len(items), bool)
    at = np.flatnonzero((items.kind == PART) & np.isin(items.number, numbers))
    while len(at):
        result[at] |= group[at] >= 0
        at = parent[at[group[at] < 0]]
        at = at[at >= 0]
    return result


def _firsts(forest: Forest, of: Ints, group: Ints) -> Bools:
    """Return which items are the first of their kind, and unlike the rest.

    What lies in such an item is in rows of its own anyway.
    """
    items = forest.items
    result = np.zeros(len(items), bool)
    chosen = np.flatnonzero(np.isin(items.kind, (PART, ITERATION)) | (group >= 0))
    chosen = chosen[np.argsort(of[chosen], kind="stable")]
    starts = np.flatnonzero(np.append(True, of[chosen][1:] != of[chosen][:-1]))
    for begin, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
        mine = chosen[begin:end]
        if len(mine) < 2:
            continue
        first, rest = mine[0], forest.took_ns[mine[1:]]
        took = forest.took_ns[first]
        unlike = took >= _FIRST_TIMES * np.median(rest) + _FIRST_NS
        result[first] = unlike and took >= _FIRST_OF_MOST * np.quantile(rest, 0.9)
    inside = np.zeros(len(items), bool)
    for rows in forest.levels[1:]:
        above = forest.parent[rows]
        inside[rows] = inside[above] | result[above]
    return result & ~(inside & (group < 0))
