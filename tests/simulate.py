"""A machine that is simulated: true latencies, what recording costs, and noise, all known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation.run import Run, Rung, ladder
from xsp.level import Kind
from xsp.provider.row import span_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Tree:
    """Spans in depth-first order: own time and cost of being recorded, in ns."""

    kind: list[Kind] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    own_ns: list[float] = field(default_factory=list)
    cost_ns: list[float] = field(default_factory=list)

    def add(
        self, kind: Kind, name: str, *, parent: int = -1, own: float = 0.0, cost: float = 0.0
    ) -> int:
        self.kind.append(kind)
        self.name.append(name)
        self.parent.append(parent)
        self.own_ns.append(own)
        self.cost_ns.append(cost)
        return len(self.kind) - 1

    def names(self) -> list[str]:
        paths: list[str] = []
        for name, parent in zip(self.name, self.parent, strict=True):
            path = name if parent < 0 else f"{paths[parent]}/{name}"
            paths.append(path if path not in paths else f"{path}#{paths.count(path) + 1}")
        return paths


@dataclass(frozen=True)
class Noise:
    """What a shared machine does to a measurement; nothing by default."""

    jitter: float = 0.0  # of a whole run
    span_jitter: float = 0.0  # of each span's own time
    drift: float = 0.0  # step of a random walk from round to round
    interference: float = 0.0  # events per run
    interference_ns: float = 0.0  # mean length of one
    outliers: float = 0.0  # part of the runs that take half as long again


QUIET = Noise()


class Machine:
    """Runs a tree under any rung."""

    def __init__(self, tree: Tree, noise: Noise = QUIET, seed: int = 0) -> None:
        self.tree = tree
        self.noise = noise
        self.random = np.random.default_rng(seed)
        self._speed = 1.0

    def measure(
        self, rounds: int, *, kinds: Sequence[Kind] = (), speeds: Sequence[float] = ()
    ) -> tuple[list[Run], Floats]:
        """Return the runs of interleaved rounds, and true latencies `[rounds, spans]`.

        With `speeds`, each rung has a process of its own, that much slower than the
        machine, with bare runs beside its own.
        """
        rungs = ladder(kinds or set(self.tree.kind))
        runs, truth = [], []
        for number in range(rounds):
            self._speed *= 1 + self.noise.drift * self.random.standard_normal()
            for place, rung in enumerate(rungs):
                if speeds and rung.kinds:
                    runs.append(self.run(rungs[0], number, place, speeds[place - 1]))
                if rung.kinds or not speeds:
                    at = (place, speeds[place - 1]) if speeds else (0, 1.0)
                    runs.append(self.run(rung, number, *at))
            truth.append(self.durations(frozenset()))
        return runs, np.array(truth)

    def durations(self, recorded: frozenset[Kind]) -> Floats:
        tree, own = self.tree, self._own_times()
        total = own.copy()
        for i in range(len(own) - 1, 0, -1):
            cost = tree.cost_ns[i] if tree.kind[i] in recorded else 0.0
            total[tree.parent[i]] += total[i] + cost
        return np.asarray(total)

    def run(self, rung: Rung, number: int = 0, process: int = 0, speed: float = 1.0) -> Run:
        tree, total = self.tree, speed * self.durations(rung.kinds)
        latency = round(total[0])
        if not rung.kinds:
            return Run(rung, latency, None, process, number)
        children: list[list[int]] = [[] for _ in total]
        for i, parent in enumerate(tree.parent[1:], 1):
            children[parent].append(i)
        start = np.zeros(len(total))
        for i, inside in enumerate(children):
            costs = [tree.cost_ns[c] if tree.kind[c] in rung.kinds else 0.0 for c in inside]
            gap = (total[i] - sum(total[c] for c in inside) - sum(costs)) / (len(inside) + 1)
            now = start[i]
            for child, cost in zip(inside, costs, strict=True):
                now += gap + cost / 2
                start[child] = now
                now += total[child] + cost / 2
        shown = [i for i, kind in enumerate(tree.kind) if kind in rung.kinds or i == 0]
        place = {i: row for row, i in enumerate(shown)}
        parents = [-1] + [place[self._above(i, place)] for i in shown[1:]]
        begin = np.rint(start[shown]).astype(int)
        end = np.rint(start[shown] + total[shown]).astype(int)
        return Run(rung, latency, rows_of(tree, shown, parents, (begin, end)), process, number)

    def _above(self, i: int, place: dict[int, int]) -> int:
        parent = self.tree.parent[i]
        return parent if parent in place else self._above(parent, place)

    def _own_times(self) -> Floats:
        noise, random = self.noise, self.random
        own = np.array(self.tree.own_ns)
        own = own * np.exp(noise.span_jitter * random.standard_normal(len(own)))
        own *= self._speed * np.exp(noise.jitter * random.standard_normal())
        if random.random() < noise.outliers:
            own *= 1.5
        weights = np.array(self.tree.own_ns) / sum(self.tree.own_ns)
        for _ in range(random.poisson(noise.interference)):
            own[random.choice(len(own), p=weights)] += random.exponential(noise.interference_ns)
        return own


def rows_of(
    tree: Tree, shown: Sequence[int], parents: Sequence[int], times: tuple[Ints, Ints]
) -> pl.DataFrame:
    begin, end = times
    rows = span_rows(
        {
            "kind": [tree.kind[i].value for i in shown],
            "name": [tree.name[i] for i in shown],
            "start_ns": begin + 1_000_000,
            "end_ns": end + 1_000_000,
            "thread": 7,
        }
    )
    return rows.with_columns(parent=pl.Series(parents, dtype=pl.Int64))


def transformer(
    *, blocks: int = 6, layer_ns: float = 11_500.0, own_ns: float = 400.0, layer_cost: float = 300.0
) -> Tree:
    """Return small blocks of 12 layers each; operators cost 0.5 to 3 us to record."""
    random = np.random.default_rng(1)
    tree = Tree()
    root = tree.add(Kind.PIPELINE, "predict", own=2_000)
    model = tree.add(Kind.LAYER, "Model", parent=root, own=4_000, cost=layer_cost)
    for number in range(blocks):
        block = tree.add(Kind.LAYER, f"block{number}", parent=model, own=12_000, cost=layer_cost)
        for inner in range(12):
            layer = tree.add(Kind.LAYER, f"layer{inner}", parent=block, own=own_ns, cost=layer_cost)
            outer = tree.add(
                Kind.OP, "aten::linear", parent=layer, own=800, cost=random.uniform(500, 3000)
            )
            tree.add(
                Kind.OP, "aten::addmm", parent=outer, own=layer_ns - own_ns - 800,
                cost=random.uniform(500, 3000),
            )  # fmt: skip
    return tree


def resnet(*, layer_cost: float = 300.0, op_cost: float = 1_000.0) -> Tree:
    """Return 16 bottlenecks of 1.5 ms with 8 layers each, 25 ms in all."""
    tree = Tree()
    root = tree.add(Kind.PIPELINE, "predict", own=300_000)
    model = tree.add(Kind.LAYER, "ResNet", parent=root, own=700_000, cost=layer_cost)
    for number in range(16):
        block = tree.add(Kind.LAYER, f"block{number}", parent=model, own=60_000, cost=layer_cost)
        for inner in range(8):
            layer = tree.add(Kind.LAYER, f"conv{inner}", parent=block, own=2_000, cost=layer_cost)
            outer = tree.add(Kind.OP, "aten::conv2d", parent=layer, own=3_000, cost=op_cost)
            tree.add(Kind.OP, "aten::mkldnn", parent=outer, own=175_000, cost=op_cost)
    return tree
