"""Drives a ladder by hand, and makes runs with a known truth from a tree and noise.

For tests of merging alone, which choose rounds, passes and processes themselves. On the machine of
`simulator` time passes, and the plan and the session decide what is evaluated when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from simulator.machine import Layout, shown_parents, span_columns
from simulator.tree import Tree

from xsp.level import Kind
from xsp.matching.run import Pass, Run, ladder
from xsp.provider.row import span_rows

__all__ = ["QUIET", "Machine", "Noise", "Tree", "resnet", "transformer"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Noise of a shared machine in a measurement; none by default."""

    jitter: float = 0.0  # of a whole run
    span_jitter: float = 0.0  # of each span's self time
    drift: float = 0.0  # step of a random walk from round to round
    interference: float = 0.0  # events per run
    interference_ns: float = 0.0  # mean length of one
    outliers: float = 0.0  # part of the runs that take half as long again


QUIET = Noise()


class Machine:
    """Runs a tree under any pass."""

    def __init__(self, tree: Tree, noise: Noise = QUIET, seed: int = 0) -> None:
        self.tree = tree
        self.noise = noise
        self.random = np.random.default_rng(seed)
        self._speed = 1.0

    def measure(
        self, rounds: int, *, kinds: Sequence[Kind] = (), speeds: Sequence[float] = ()
    ) -> tuple[list[Run], Floats]:
        """Return the runs of interleaved rounds, and true latencies `[rounds, spans]`.

        With `speeds`, each pass has a process of its own, that much slower than the
        machine, with bare runs beside its own.
        """
        passes = ladder(kinds or set(self.tree.kind))
        runs, truth = [], []
        for number in range(rounds):
            self._speed *= 1 + self.noise.drift * self.random.standard_normal()
            for place, pass_ in enumerate(passes):
                if speeds and pass_.kinds:
                    runs.append(self.run(passes[0], number, place, speeds[place - 1]))
                if pass_.kinds or not speeds:
                    at = (place, speeds[place - 1]) if speeds else (0, 1.0)
                    runs.append(self.run(pass_, number, *at))
            truth.append(self.durations(frozenset()))
        return runs, np.array(truth)

    def durations(self, recorded: frozenset[Kind]) -> Floats:
        tree, own = self.tree, self._self_times()
        total = own.copy()
        for i in range(len(own) - 1, 0, -1):
            cost = tree.cost_ns[i] if tree.kind[i] in recorded else 0.0
            total[tree.parent[i]] += total[i] + cost
        return np.asarray(total)

    def run(self, pass_: Pass, number: int = 0, process: int = 0, speed: float = 1.0) -> Run:
        own, cost = speed * self._self_times()[None], np.array(self.tree.cost_ns)[None]
        layout = Layout(self.tree, pass_.kinds)
        starts, ends, total = layout.place(own, cost, np.zeros_like(cost))
        latency = round(total[0])
        if not pass_.kinds:
            return Run(pass_, latency, None, process, number)
        times = (
            1_000_000 + np.rint(np.insert(bounds, 0, whole, axis=1)).astype(np.int64)
            for bounds, whole in ((starts, 0), (ends, total))
        )
        rows = span_rows(span_columns(self.tree, [0, *layout.shown], *times))
        parents = [-1, *shown_parents(self.tree, layout.shown)]
        return Run(pass_, latency, rows.with_columns(parent=pl.Series(parents)), process, number)

    def _self_times(self) -> Floats:
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


def transformer(
    *, blocks: int = 6, layer_ns: float = 11_500.0, own_ns: float = 400.0, layer_cost: float = 300.0
) -> Tree:
    """Return small blocks of 12 layers each; operators cost 0.5 to 3 us to record."""
    random = np.random.default_rng(1)
    tree = Tree()
    root = tree.add(Kind.REGION, "predict", own=2_000)
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
    root = tree.add(Kind.REGION, "predict", own=300_000)
    model = tree.add(Kind.LAYER, "ResNet", parent=root, own=700_000, cost=layer_cost)
    for number in range(16):
        block = tree.add(Kind.LAYER, f"block{number}", parent=model, own=60_000, cost=layer_cost)
        for inner in range(8):
            layer = tree.add(Kind.LAYER, f"conv{inner}", parent=block, own=2_000, cost=layer_cost)
            outer = tree.add(Kind.OP, "aten::conv2d", parent=layer, own=3_000, cost=op_cost)
            tree.add(Kind.OP, "aten::mkldnn", parent=outer, own=175_000, cost=op_cost)
    return tree
