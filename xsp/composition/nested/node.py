"""The nodes of a program's tree: nested parts in, those that are one span and their place out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from xsp.composition.nested.part import Part
from xsp.evaluation import covered
from xsp.level import Kind

Floats = NDArray[np.float64]

_MOST_NAMES, _FURTHER = 500, "further parts"  # within one part, and the one span of all others
_FIRST_CALL = "first call of {}: more than the others"


@dataclass(slots=True)
class Node:
    """Parts that are one span.

    Attributes:
        part: The first of the parts.
        parent: Index of the node around.
        lasts_ns: Sum of what the parts take without xsp.
        ran_ns: Sum of what evaluations took as they ran, recorded or not: they take no longer.
        estimated_ns: Sum of what those evaluations take whose time is not simply the clock's.
        measured_ns: Sum of what the parts took with xsp, pauses and all.
        group: Number of the group of evaluations; -1 for other parts.
    """

    part: Part
    parent: int
    group: int = -1
    lasts_ns: float = 0.0
    ran_ns: float = 0.0
    estimated_ns: float = 0.0
    measured_ns: int = 0
    calls: int = 0
    least_ns: float = float("inf")
    most_ns: float = 0.0
    busy_ns: float | None = None
    start: int = 0  # drawn
    length: int = 0
    measured: tuple[int, int] = (0, 0)
    threads: set[int] = field(default_factory=set)

    def add(self, part: Part, lasts_ns: float) -> None:
        """Take in another part, which takes so long without xsp."""
        self.lasts_ns += lasts_ns
        self.measured_ns += part.end_ns - part.start_ns
        self.calls += 1
        self.least_ns = min(self.least_ns, lasts_ns)
        self.most_ns = max(self.most_ns, lasts_ns)
        self.threads.add(part.thread)


@dataclass(frozen=True, slots=True)
class Made:
    """What is known of the evaluations of a journal.

    Attributes:
        groups: The number of the group of each, in the journal's order.
        ran_ns: How long each ran, pauses left out.
        estimated: The numbers of those whose time is not simply what the clock had.
        first: What first calls took more than the others (ns), by their parts (`first_calls`).
        varying: The numbers of the groups whose evaluations have unlike sizes.
    """

    groups: Sequence[int]
    ran_ns: Sequence[float]
    estimated: Collection[int]
    first: Mapping[int, float]
    varying: Collection[int] = ()


def nodes_of(
    parts: Sequence[Part], lasting_ns: Floats, made: Made
) -> tuple[list[Node], dict[int, list[int]], list[int]]:
    """Return the nodes, the block's first; the children of each; and the node of each part.

    Args:
        parts: The parts, the block first, parents before children.
        lasting_ns: How long each part takes without xsp.
        made: The evaluations of the journal.
    """
    nodes, of = _nodes(parts, lasting_ns, made)
    _set_apart(nodes, parts, of, made.first)
    _note_concurrency(nodes, parts, of)
    children: defaultdict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes[1:], 1):
        children[node.parent].append(number)
    _draw(nodes, children)
    return nodes, dict(children), of


def _nodes(parts: Sequence[Part], lasting_ns: Floats, made: Made) -> tuple[list[Node], list[int]]:
    """Return the nodes, and for each part the index of its node."""
    nodes: list[Node] = []
    known: dict[tuple[int, str, int], int] = {}
    names: defaultdict[int, int] = defaultdict(int)
    of: list[int] = []
    estimated = frozenset(made.estimated)
    for number, (part, lasts_ns) in enumerate(zip(parts, lasting_ns.tolist(), strict=True)):
        parent = of[part.parent] if part.parent >= 0 else -1
        group = made.groups[part.evaluation] if part.evaluation >= 0 else -1
        key, first = (parent, part.name, group), part
        if key not in known and names[parent] >= _MOST_NAMES and group < 0:
            key = parent, _FURTHER, -1
            first = replace(part, name=_FURTHER, attributes=None)
        if key not in known:
            known[key] = len(nodes)
            names[parent] += 1
            nodes.append(Node(first, parent, group))
        of.append(known[key])
        node, at = nodes[of[-1]], part.evaluation
        node.add(part, lasts_ns)
        node.ran_ns += made.ran_ns[at] if at >= 0 else 0.0
        more = made.first.get(number, 0.0)  # the rest is taken to last as others
        node.estimated_ns += lasts_ns - more if more or at in estimated else 0.0
    return nodes, of


def _set_apart(
    nodes: list[Node], parts: Sequence[Part], of: Sequence[int], first: Mapping[int, float]
) -> None:
    """Make spans of their own of what first calls take beyond the latency of their group."""
    for number in sorted(first, key=lambda n: parts[n].start_ns):
        part, node, more = parts[number], nodes[of[number]], first[number]
        node.lasts_ns -= more
        node.ran_ns -= more
        node.measured_ns -= round(more)
        name = _FIRST_CALL.format(part.name)
        times = part.start_ns, part.start_ns + round(more)
        nodes.append(Node(Part(name, Kind.PIPELINE, *times, part.thread), node.parent))
        nodes[-1].add(nodes[-1].part, more)


def _note_concurrency(nodes: Sequence[Node], parts: Sequence[Part], of: Sequence[int]) -> None:
    """Note for how long at least one of the parts of a node ran, where several ran at once."""
    if len({part.thread for part in parts}) < 2:
        return
    start, end = np.array([(part.start_ns, part.end_ns) for part in parts], dtype=np.int64).T
    union = covered(np.array(of, dtype=np.int64), start, end, len(nodes))
    for node, busy in zip(nodes, union.tolist(), strict=True):
        if len(node.threads) > 1 and busy < node.measured_ns:
            node.busy_ns = node.lasts_ns * busy / node.measured_ns


def _draw(nodes: Sequence[Node], children: Mapping[int, Sequence[int]]) -> None:
    """Give each node its place in the timeline: side by side in the node around it."""
    for node in nodes:
        node.length = round(node.lasts_ns if node.busy_ns is None else node.busy_ns)
    nodes[0].measured = (0, nodes[0].measured_ns)
    for number, node in enumerate(nodes):
        lanes: defaultdict[int, list[Node]] = defaultdict(list)
        for child in sorted(children.get(number, ()), key=lambda n: nodes[n].part.start_ns):
            lanes[nodes[child].part.thread].append(nodes[child])
        for lane in lanes.values():
            _fill(lane, node.start, node.length, node.measured)


def _fill(lane: Sequence[Node], start: int, room: int, measured: tuple[int, int]) -> None:
    """Place nodes of one thread one after the other, shrunk where they have no room."""
    fits = min(1.0, room / max(sum(node.length for node in lane), 1))
    needed = sum(node.measured_ns for node in lane)
    measured_fits = min(1.0, (measured[1] - measured[0]) / max(needed, 1))
    at, at_measured = start, measured[0]
    for node in lane:
        node.length = int(node.length * fits)
        node.start = at
        at += node.length
        node.measured = at_measured, at_measured + int(node.measured_ns * measured_fits)
        at_measured = node.measured[1]
