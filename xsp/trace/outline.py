"""The outline of a trace: its tree folded and cut to so many rows, before it is drawn anywhere."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Ints, generations
from xsp.provider import ON_DEVICE
from xsp.quantity import counted, duration, printable
from xsp.trace import folding
from xsp.trace.attribute import attribute_column

# Opening a layer to show operators is worth less than opening one to show layers.
_OPERATOR_WEIGHT = 0.25
# A chain of operators that call one another is one row while each does so much of its caller.
_CHAIN_SHARE = 0.8
# A list cut to fewer rows than this says little: it stays closed where it does not fit.
_FEWEST = 10
# Hidden children are told apart by class or name where they take so many times the smallest share.
_MUCH = 5
# Kinds of row that are no span: collected by class or name, the rest, a span's own time.
_SUMS = ("some", "rest", "own")
_MODULES = ("pipeline", "layer")
_NOUNS = {
    "pipeline": "pipeline span",
    "memcpy": "copy",
    "memset": "set",
    "sync": "synchronisation",
    "syscall": "system call",
}
_NUMBERS = (*folding.SUMMED, "latency_low_ns", "latency_high_ns")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tree: a span, several that look alike, or the sum of what is hidden.

    Attributes:
        depth: How deep it hangs; the root is at 0.
        last: Whether no sibling follows.
        parent: Whether rows of its own hang below it.
        kind: Kind of span; `"some"` for hidden siblings of one class or name, `"rest"`
            for other hidden ones, `"own"` for a span's own time.
        name: Printable name.
        detail: What else it is: class, phase, exception; may be empty.
        count: How many spans it stands for.
        latency_ns: Sum of their latencies; None where none of them has one.
        margin_ns: Half the width of the latency's interval. Intervals of folded
            spans are added up, as if they erred together: the safe assumption.
        overhead_ns: Sum of what was removed.
        share: Latency as a fraction of the model's.
        device_ns: Sum of the time that devices worked for each of them; None without any.
    """

    depth: int
    last: bool
    parent: bool
    kind: str
    name: str
    detail: str
    count: int
    latency_ns: float | None
    margin_ns: float | None
    overhead_ns: float | None
    share: float | None
    device_ns: float | None = None

    @property
    def mean_ns(self) -> float | None:
        """Latency of each of the spans, None where it stands for one or for a mixture."""
        if self.count == 1 or self.latency_ns is None or self.kind in ("rest", "own"):
            return None
        return self.latency_ns / self.count

    def each(self, width: int = 0) -> str:
        """Return how many spans it stands for and what each takes, right-aligned; or nothing."""
        if self.mean_ns is None:
            return ""
        return f"{self.count:,} \u00d7 {duration(self.mean_ns).rjust(width)}"


@dataclass(frozen=True, slots=True)
class Outline:
    """Rows of the tree in the order they are drawn, and how many spans they stand for."""

    rows: tuple[Row, ...]
    spans: int

    @property
    def cut(self) -> bool:
        """Whether spans are in the tree that have no row of their own."""
        return self.spans > sum(row.count for row in self.rows if row.kind not in _SUMS)


@dataclass(slots=True)
class _Node:
    """One row to be: the groups that it sums up, and the one whose children hang below it."""

    kind: str
    names: tuple[str, ...]
    groups: Ints
    tail: int
    count: int
    totals: dict[str, float]
    children: list[_Node] = field(default_factory=list)


def outline(spans: pl.DataFrame, *, rows: int | None = 60, smallest: float = 0.01) -> Outline:
    """Return the outline of a trace's tree.

    The largest spans are opened first, until there are so many rows. Siblings
    next to each other that look alike are one row, and so are those of a pattern
    that recurs; so is a chain of operators that only call one another.

    Args:
        spans: Frame with the columns of `trace.spans`.
        rows: About how many rows at most; None for all.
        smallest: Fraction of the model's latency below which a span is only
            counted; a tree that fits into `rows` anyway is shown whole.
    """
    if not spans.height:
        return Outline((), 0)
    if rows is None or spans.height <= rows:
        rows, smallest = spans.height * 2, 0.0
    builder = _Builder(spans, smallest)
    root = builder.grow(rows)
    return Outline(tuple(builder.flatten(root)), spans.height)


class _Builder:
    """Holds the groups of alike neighbours that every step of one outline reads.

    Numbers in its arrays are those of groups; a group's children follow their order.
    """

    def __init__(self, spans: pl.DataFrame, smallest: float) -> None:
        parent = folding.parent_rows(spans)
        levels = list(generations(parent))
        shapes = folding.shapes(spans, parent, levels)
        folded = folding.fold(folding.neighbours(shapes, parent), parent, levels)
        heads = _heads(spans, folded.first)
        # What is short on the host may keep a device busy for long.
        weight = pl.max_horizontal("latency_ns", "device_ns").fill_nan(None)
        sums = folding.sums(
            spans, folded.of, weight.sum().alias("weight"), pl.last("name").alias("last_name")
        )
        self._table = heads.with_columns(sums["last_name"], sums["weight"], sums["count"])
        self._kinds = heads["kind"]
        self._weights = sums["weight"].to_numpy()
        self._counts = folded.count
        self._numbers = {
            name: sums[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
            for name in _NUMBERS
        }
        self._order = np.argsort(folded.parent, kind="stable")[1:]
        self._starts = np.searchsorted(
            folded.parent[self._order], np.arange(len(folded.parent) + 1)
        )
        self._model_ns = self._root_ns(spans)
        self._wait_ns = attribute_column(spans, "device_wait_ns", pl.Float64)[0] or 0.0
        self._least_ns = smallest * self._model_ns
        self._own_least_ns = max(smallest, 0.01) * self._model_ns

    def grow(self, rows: int) -> _Node:
        """Return the root with as many rows below it as fit, the largest spans opened first."""
        root = self._node(0)
        left, ticket = rows - 1, count()
        fewest = max(3, min(_FEWEST, rows // 4))
        heap = [(0.0, next(ticket), root)] if self._order.size else []
        while heap and left > 0:
            node = heapq.heappop(heap)[2]
            children = self._children(node, max(left, fewest))
            if len(children) > left:
                continue
            node.children = children
            left -= len(children)
            for child in children:
                score = self._score(child)
                if score > 0:
                    heapq.heappush(heap, (-score, next(ticket), child))
        return root

    def flatten(self, root: _Node) -> Iterator[Row]:
        """Yield rows from the root down, without recursion: call stacks can be deep."""
        stack = [(root, 0, True)]
        while stack:
            node, depth, last = stack.pop()
            yield self._row(node, depth=depth, last=last)
            end = len(node.children) - 1
            stack.extend(
                (child, depth + 1, place == end)
                for place, child in reversed(list(enumerate(node.children)))
            )

    def _root_ns(self, spans: pl.DataFrame) -> float:
        latency = self._numbers["latency_ns"][0]
        if np.isfinite(latency):
            return float(latency)
        return float(spans["end_ns"][0] - spans["start_ns"][0])

    def _below(self, group: int) -> Ints:
        return self._order[self._starts[group] : self._starts[group + 1]]

    def _score(self, node: _Node) -> float:
        below = self._below(node.tail)
        if not below.size or node.kind in _SUMS:
            return 0.0
        weight = float(self._weights[node.groups].sum())
        if self._least_ns and weight < self._least_ns:
            return 0.0
        modules = self._kinds[int(below[0])] in _MODULES
        return max(weight, 1e-9) * (1.0 if modules else _OPERATOR_WEIGHT)

    def _children(self, node: _Node, most: int) -> list[_Node]:
        """Return what hangs below a node: large groups, then the rest, then its own time."""
        below = self._below(node.tail)
        weights = self._weights[below]
        shown = weights >= self._least_ns
        if (~shown).sum() == 1 and shown.any():
            shown[:] = True
        if shown.sum() > most:
            shown[np.argsort(-weights, kind="stable")[most - 2 :]] = False
        children = [self._node(group) for group in below[shown].tolist()]
        children += self._summed(below[~shown], most - len(children) - 1)
        children += self._own(node)
        # Opened, it would say no more than it does closed.
        return [] if all(child.kind in ("rest", "own") for child in children) else children

    def _node(self, group: int) -> _Node:
        tail, names = group, [self._name(group)]
        while self._kinds[tail] == "op" and (called := self._next_called(tail)) is not None:
            tail = called
            names.append(self._name(tail))
        return self._sum(np.array([group]), self._kinds[group], tuple(names), tail)

    def _sum(self, groups: Ints, kind: str, names: tuple[str, ...], tail: int) -> _Node:
        spans = int(self._counts[groups].sum())
        return _Node(kind, names, groups, tail, spans, self._totals(groups))

    def _next_called(self, group: int) -> int | None:
        """Return the one operator that does the work of these, None where there is no such."""
        below = self._below(group)
        if not below.size:
            return None
        latencies = np.nan_to_num(self._numbers["latency_ns"][below])
        largest = int(latencies.argmax())
        called = int(below[largest])
        others = latencies.sum() - latencies[largest]
        alone = len(below) == 1 or others < self._least_ns
        once = self._counts[called] == self._counts[group]
        whole = np.nan_to_num(self._numbers["latency_ns"][group])
        enough = latencies[largest] >= _CHAIN_SHARE * whole
        return called if alone and once and enough and self._kinds[called] == "op" else None

    def _summed(self, groups: Ints, most: int) -> list[_Node]:
        """Return hidden children summed up: by class or name where it is much, then the rest."""
        if not groups.size:
            return []
        if self._weights[groups].sum() < _MUCH * self._least_ns:
            return [self._rest(groups)]
        labelled = self._table[groups].with_columns(group=groups)
        found = (
            labelled.group_by("kind", "label", maintain_order=True)
            .agg(pl.sum("weight", "count"), pl.col("group"))
            .filter((pl.col("weight") >= self._least_ns) & (pl.col("count") > 1))
            .sort("weight", descending=True, maintain_order=True)
            .head(max(most - 1, 0))
        )
        nodes = [
            self._sum(np.array(members), "some", (f"… {printable(label)}",), members[0])
            for label, members in found.select("label", "group").iter_rows()
        ]
        left = np.setdiff1d(groups, found["group"].explode().to_numpy())
        return [*nodes, self._rest(left)] if left.size else nodes

    def _rest(self, groups: Ints) -> _Node:
        kinds = self._table[groups].group_by("kind", maintain_order=True).agg(pl.sum("count"))
        name = "… " + ", ".join(
            counted(number, _NOUNS.get(kind, kind)).replace(" ", " more ", 1)
            for kind, number in kinds.sort("count", descending=True, maintain_order=True).rows()
        )
        return self._sum(groups, "rest", (name,), int(groups[0]))

    def _own(self, node: _Node) -> list[_Node]:
        """Return a span's own time, that of the whole chain, as far as it is worth a row.

        The root's is partly that of waiting for devices at its end.
        """
        own = node.totals["self_ns"]
        if node.tail != node.groups[0]:
            below = self._below(node.tail)
            on_host = self._table["on_host"].to_numpy()[below]
            inside = self._totals(below[on_host])["latency_ns"]
            own = node.totals["latency_ns"] - inside
        wait = min(self._wait_ns, own) if int(node.groups[0]) == 0 else 0.0
        parts = {"own time": own - wait, "waiting for devices": wait}
        return [
            _Node("own", (name,), node.groups, node.tail, node.count, _only_latency(part))
            for name, part in parts.items()
            if part > 0 and part >= self._own_least_ns
        ]

    def _totals(self, groups: Ints) -> dict[str, float]:
        values = {name: numbers[groups] for name, numbers in self._numbers.items()}
        totals = {name: _sum(numbers) for name, numbers in values.items()}
        if np.any(np.isfinite(values["latency_ns"]) & np.isnan(values["latency_low_ns"])):
            totals["latency_low_ns"] = float("nan")
        return totals

    def _name(self, group: int) -> str:
        first, last = (printable(self._table[name][group]) for name in ("name", "last_name"))
        return (first or "(no name)") if first == last else f"{first} … {last}"

    def _row(self, node: _Node, *, depth: int, last: bool) -> Row:
        totals = {name: _known(value) for name, value in node.totals.items()}
        low, high = totals["latency_low_ns"], totals["latency_high_ns"]
        latency = totals["latency_ns"]
        return Row(
            depth=depth,
            last=last,
            parent=bool(node.children),
            kind=node.kind,
            name=_chain_name(node.names),
            detail=self._detail(node),
            count=node.count,
            latency_ns=latency,
            margin_ns=None if low is None or high is None else (high - low) / 2,
            overhead_ns=totals["overhead_ns"],
            share=latency / self._model_ns if latency is not None and self._model_ns else None,
            device_ns=totals["device_ns"],
        )

    def _detail(self, node: _Node) -> str:
        if node.kind in _SUMS:
            return ""
        head = self._table.row(int(node.groups[0]), named=True)
        words = []
        if node.kind == "layer":
            words.append(head["label"] if head["label"] != head["name"] else None)
            words.append("backward" if head["phase"] == "backward" else None)
        words.append(f"raised {head['error']}" if head["error"] is not None else None)
        return printable(" ".join(str(word) for word in words if word))


def _heads(spans: pl.DataFrame, first: Ints) -> pl.DataFrame:
    """Return what is told of groups, as their first members have it."""
    label = pl.coalesce(attribute_column(spans, "module_class"), "name")
    phase, error = attribute_column(spans, "phase"), attribute_column(spans, "error")
    return spans.select("kind", "name", phase, error, label=label, on_host=~ON_DEVICE)[first]


def _chain_name(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return names[0]
    space, colons, _ = names[0].rpartition("::")
    arrow = "⋯" if len(names) > 2 else "→"
    return f"{names[0]} {arrow} {names[-1].removeprefix(space + colons)}"


def _only_latency(latency_ns: float) -> dict[str, float]:
    return dict.fromkeys(_NUMBERS, float("nan")) | {"latency_ns": latency_ns}


def _sum(values: NDArray[np.float64]) -> float:
    """Return the sum of what is known; NaN where nothing is: missing is not 0."""
    known = values[np.isfinite(values)]
    return float(known.sum()) if known.size else float("nan")


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
