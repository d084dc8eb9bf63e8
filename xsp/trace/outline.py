"""The outline of a trace: its tree folded and cut to so many rows, before it is drawn anywhere."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.provider import on_device
from xsp.quantity import counted, duration, printable
from xsp.trace import similarity as shape

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
_NUMBERS = (
    *("latency_ns", "latency_low_ns", "latency_high_ns", "overhead_ns", "self_ns", "device_ns"),
)

Numbers = dict[str, npt.NDArray[np.float64]]


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
    """Spans shown as one row; `tails` are the spans whose children hang below it."""

    members: shape.Rows
    tails: shape.Rows
    names: tuple[str, ...]
    totals: dict[str, float]
    kind: str
    count: int
    children: list[_Node] = field(default_factory=list)


def outline(spans: pl.DataFrame, *, rows: int | None = 60, smallest: float = 0.01) -> Outline:
    """Return the outline of a trace's tree.

    The largest spans are opened first, until there are so many rows. Siblings
    next to each other that look alike are one row; so is a chain of operators
    that only call one another.

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
    """Holds the arrays that every step of one outline reads."""

    def __init__(self, spans: pl.DataFrame, smallest: float) -> None:
        self._spans = spans
        self._tree = shape.structure(spans)
        self._kinds = spans["kind"]
        self._numbers: Numbers = {
            name: spans[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
            for name in _NUMBERS
        }
        # What is short on the host may keep a device busy for long.
        self._weights = np.fmax(
            np.nan_to_num(self._numbers["latency_ns"]), self._numbers["device_ns"]
        )
        self._on_host = ~on_device(spans)
        self._classes = shape.field(spans, "module_class")
        self._phases = shape.field(spans, "phase")
        self._errors = shape.field(spans, "error")
        self._labels = spans.select("kind", label=pl.coalesce(self._classes, pl.col("name")))
        self._model_ns = self._root_ns()
        self._wait_ns = shape.field(spans, "device_wait_ns", pl.Float64)[0] or 0.0
        self._least_ns = smallest * self._model_ns
        self._own_least_ns = max(smallest, 0.01) * self._model_ns

    def grow(self, rows: int) -> _Node:
        """Return the root with as many rows below it as fit, the largest spans opened first."""
        root = self._node(np.zeros(1, dtype=np.int64))
        left, ticket = rows - 1, count()
        fewest = max(3, min(_FEWEST, rows // 4))
        heap = [(0.0, next(ticket), root)] if self._tree.order.size else []
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

    def _root_ns(self) -> float:
        latency = self._numbers["latency_ns"][0]
        if np.isfinite(latency):
            return float(latency)
        return float(self._spans["end_ns"][0] - self._spans["start_ns"][0])

    def _score(self, node: _Node) -> float:
        tails = node.tails
        closed = self._tree.starts[tails[0]] == self._tree.starts[tails[0] + 1]
        if closed or node.kind in _SUMS:
            return 0.0
        weight = float(self._weights[node.members].sum())
        if self._least_ns and weight < self._least_ns:
            return 0.0
        first = self._kinds[int(self._tree.children(tails[:1])[0, 0])]
        return max(weight, 1e-9) * (1.0 if first in _MODULES else _OPERATOR_WEIGHT)

    def _children(self, node: _Node, most: int) -> list[_Node]:
        """Return what hangs below a node: large groups, then the rest, then its own time."""
        kids = self._tree.children(node.tails)
        edges = _edges(self._tree.shapes[kids[0]])
        weights = self._group_sums(kids, edges)
        shown = weights >= self._least_ns
        if (~shown).sum() == 1 and shown.any():
            shown[:] = True
        if shown.sum() > most:
            shown[np.argsort(-weights, kind="stable")[most - 2 :]] = False
        bounds = [*edges.tolist(), kids.shape[1]]
        children = [
            self._node(kids[:, bounds[g] : bounds[g + 1]].ravel())
            for g in np.flatnonzero(shown).tolist()
        ]
        hidden = np.repeat(~shown, np.diff(bounds))
        children += self._summed(kids[:, hidden], most - len(children) - 1)
        children += self._own(node)
        # Opened, it would say no more than it does closed.
        return [] if all(child.kind in ("rest", "own") for child in children) else children

    def _group_sums(self, kids: shape.Rows, edges: shape.Rows) -> npt.NDArray[np.float64]:
        return np.asarray(np.add.reduceat(self._weights[kids].sum(axis=0), edges))

    def _node(self, members: shape.Rows) -> _Node:
        tails, names = members, [self._group_name(members)]
        kind = self._kinds[int(members[0])]
        while kind == "op" and (below := self._next_called(tails)) is not None:
            tails = below
            names.append(self._group_name(tails))
        return _Node(members, tails, tuple(names), self._totals(members), kind, len(members))

    def _next_called(self, rows: shape.Rows) -> shape.Rows | None:
        """Return the one operator that does the work of these, None where there is no such."""
        kids = self._tree.children(rows)
        if not kids.shape[1]:
            return None
        latencies = np.nan_to_num(self._numbers["latency_ns"])[kids].sum(axis=0)
        largest = int(latencies.argmax())
        others = latencies.sum() - latencies[largest]
        alone = kids.shape[1] == 1 or others < self._least_ns
        enough = latencies[largest] >= _CHAIN_SHARE * self._totals(rows)["latency_ns"]
        if not (alone and enough and self._kinds[int(kids[0, largest])] == "op"):
            return None
        called: shape.Rows = kids[:, largest]
        return called

    def _summed(self, kids: shape.Rows, most: int) -> list[_Node]:
        """Return hidden children summed up: by class or name where it is much, then the rest."""
        rows = kids.ravel()
        if not rows.size:
            return []
        if self._weights[rows].sum() < _MUCH * self._least_ns:
            return [self._rest(rows)]
        alike = (
            self._labels[rows]
            .with_columns(row=rows, weight=self._weights[rows])
            .group_by("kind", "label", maintain_order=True)
            .agg(pl.col("weight").sum(), pl.col("row"))
            .sort("weight", descending=True, maintain_order=True)
        )
        large = (alike["weight"] >= self._least_ns) & (alike["row"].list.len() > 1)
        groups = alike.filter(large).head(max(most - 1, 0))
        nodes = [
            self._collected(label, np.asarray(members, dtype=np.int64))
            for label, members in groups.select("label", "row").iter_rows()
        ]
        left = rows[~self._among(rows, nodes)]
        return [*nodes, self._rest(left)] if left.size else nodes

    def _among(self, rows: shape.Rows, nodes: list[_Node]) -> npt.NDArray[np.bool_]:
        taken = np.zeros(self._spans.height, dtype=np.bool_)
        for node in nodes:
            taken[node.members] = True
        among: npt.NDArray[np.bool_] = taken[rows]
        return among

    def _collected(self, label: str, members: shape.Rows) -> _Node:
        name = f"… {printable(label)}"
        return _Node(members, members, (name,), self._totals(members), "some", len(members))

    def _rest(self, members: shape.Rows) -> _Node:
        kinds = self._kinds.gather(members).value_counts(sort=True).rows()
        name = "… " + ", ".join(
            counted(number, _NOUNS.get(kind, kind)).replace(" ", " more ", 1)
            for kind, number in kinds
        )
        return _Node(members, members, (name,), self._totals(members), "rest", len(members))

    def _own(self, node: _Node) -> list[_Node]:
        """Return a span's own time, that of the whole chain, as far as it is worth a row.

        The root's is partly that of waiting for devices at its end.
        """
        inside = self._tree.children(node.tails)
        own = node.totals["self_ns"]
        if node.tails is not node.members:
            inside = inside.ravel()[self._on_host[inside.ravel()]]
            own = node.totals["latency_ns"] - self._totals(inside)["latency_ns"]
        wait = min(self._wait_ns, own) if int(node.members[0]) == 0 else 0.0
        parts = {"own time": own - wait, "waiting for devices": wait}
        return [
            self._time_of(node, name, part)
            for name, part in parts.items()
            if part > 0 and part >= self._own_least_ns
        ]

    def _time_of(self, node: _Node, name: str, latency_ns: float) -> _Node:
        totals = dict.fromkeys(_NUMBERS, float("nan")) | {"latency_ns": latency_ns}
        return _Node(node.members, node.members, (name,), totals, "own", node.count)

    def _totals(self, rows: shape.Rows) -> dict[str, float]:
        return {name: _sum(values[rows]) for name, values in self._numbers.items()}

    def _group_name(self, members: shape.Rows) -> str:
        first, last = (printable(self._spans["name"][int(members[i])]) for i in (0, -1))
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
        row = int(node.members[0])
        words = [self._classes[row] if node.kind == "layer" else None]
        if words[0] == self._spans["name"][row]:
            words = []
        if node.kind == "layer" and self._phases[row] == "backward":
            words.append("backward")
        if self._errors[row] is not None:
            words.append(f"raised {self._errors[row]}")
        return printable(" ".join(str(word) for word in words if word))


def _chain_name(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return names[0]
    space, colons, _ = names[0].rpartition("::")
    arrow = "⋯" if len(names) > 2 else "→"
    return f"{names[0]} {arrow} {names[-1].removeprefix(space + colons)}"


def _edges(shapes: shape.Hashes) -> shape.Rows:
    """Return where each run of equal shapes begins.

    >>> _edges(np.array([7, 7, 5, 7], dtype=np.uint64)).tolist()
    [0, 2, 3]
    """
    return np.flatnonzero(np.concatenate(([True], shapes[1:] != shapes[:-1]))).astype(np.int64)


def _sum(values: npt.NDArray[np.float64]) -> float:
    """Return the sum of what is known; NaN where nothing is: missing is not 0."""
    known = values[np.isfinite(values)]
    return float(known.sum()) if known.size else float("nan")


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
