"""Costs of recording each span of a tree, outside and inside of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.tree import Tree
from xsp.level import Kind

Floats = NDArray[np.float64]
Random = np.random.Generator

COSTS = ("equal", "kind", "heavy", "inside", "big", "none")

_LAYER_NS, _OP_NS = 300.0, 1_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of recording each span, in ns.

    Attributes:
        outside_ns: Mean cost before the span's start and after its end, one number per span.
        inside_ns: Cost between start and end of the span itself.
        spread: Standard deviation of the logarithm of the cost of single events.
        rare: Share of the events that cost `rare_ns` more.
        rare_ns: See `rare`.
    """

    outside_ns: Floats
    inside_ns: Floats
    spread: float = 0.0
    rare: float = 0.0
    rare_ns: float = 0.0

    @property
    def varies(self) -> bool:
        """Whether events of one span differ in cost."""
        return self.spread > 0 or self.rare > 0

    def draw(self, random: Random, evaluations: int) -> Floats:
        """Return `[steps, spans]`: the cost outside of each span in each step."""
        shape = (evaluations, len(self.outside_ns))
        if not self.varies:
            return np.broadcast_to(self.outside_ns, shape)
        factor = np.exp(self.spread * random.standard_normal(shape) - self.spread**2 / 2)
        return self.outside_ns * factor + self.rare_ns * (random.random(shape) < self.rare)


def cost_of(tree: Tree, name: str) -> Cost:
    """Return the costs of one of `COSTS` for a tree.

    Raises:
        ValueError: There are no such costs.
    """
    random = np.random.default_rng(7)
    layer = np.array([kind is Kind.LAYER for kind in tree.kind])
    op = np.array([kind is Kind.OP for kind in tree.kind])
    equal = np.where(op, _OP_NS, np.where(layer, _LAYER_NS, 0.0))
    nothing = np.zeros(len(equal))
    if name == "equal":
        return Cost(equal, nothing)
    if name == "kind":
        return Cost(np.where(op, _by_name(tree, random), equal), nothing)
    if name == "heavy":
        uneven = equal * random.lognormal(-0.5, 1.0, len(equal))
        return Cost(uneven, nothing, spread=0.5, rare=0.005, rare_ns=40_000.0)
    if name == "inside":
        return Cost(equal / 2, equal / 2)
    if name == "big":
        return Cost(np.where(op, 20_000.0, np.where(layer, 6_000.0, 0.0)), nothing)
    if name == "none":
        return Cost(nothing, nothing)
    raise ValueError(f"there are no costs {name!r}; there are {', '.join(COSTS)}")


def _by_name(tree: Tree, random: Random) -> Floats:
    names = sorted(set(tree.name))
    costs = dict(zip(names, random.uniform(500, 3_000, len(names)), strict=True))
    return np.array([costs[name] for name in tree.name])
