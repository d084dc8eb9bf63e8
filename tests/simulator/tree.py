"""Makes random trees of spans with known self times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from xsp.level import Kind

Random = np.random.Generator

_OUTER = ("aten::linear", "aten::conv2d", "aten::layer_norm", "aten::softmax", "aten::gelu")
_INNER = ("aten::addmm", "aten::t", "aten::empty", "aten::copy_", "aten::view", "aten::mul")
_TINY = ("aten::select", "aten::as_strided", "aten::slice", "aten::item")
_MANY = 0.04  # of the leaf layers hold many tiny operators


@dataclass
class Tree:
    """Spans in depth-first order: self time and cost of being recorded, in ns."""

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


def random_tree(spans: int, latency_ns: float, seed: int = 3) -> Tree:
    """Return nested layers with operators in operators; self times are log-normal.

    Args:
        spans: About how many spans.
        latency_ns: The sum of all self times.
        seed: Another seed gives another tree.
    """
    random = np.random.default_rng([seed, spans])
    tree = Tree()
    root = tree.add(Kind.REGION, "predict", own=1.0)
    model = tree.add(Kind.LAYER, "Model", parent=root, own=1.0)
    while len(tree.kind) < spans:
        _grow(tree, model, random, depth=int(random.integers(0, 3)))
    scale = latency_ns / sum(tree.own_ns)
    tree.own_ns = [own * scale for own in tree.own_ns]
    return tree


def _grow(tree: Tree, parent: int, random: Random, depth: int) -> None:
    """Add a layer, with layers inside for as many levels as `depth`."""
    own = 0.05 * random.lognormal()
    layer = tree.add(Kind.LAYER, f"layer{len(tree.kind)}", parent=parent, own=own)
    if depth:
        for _ in range(random.integers(2, 5)):
            _grow(tree, layer, random, depth - 1)
    elif random.random() < _MANY:
        for _ in range(random.integers(20, 80)):
            tree.add(Kind.OP, str(random.choice(_TINY)), parent=layer, own=0.05)
    else:
        for _ in range(random.integers(1, 3)):
            _add_operators(tree, layer, random)


def _add_operators(tree: Tree, layer: int, random: Random) -> None:
    name = str(random.choice(_OUTER))
    outer = tree.add(Kind.OP, name, parent=layer, own=0.1 + 0.2 * random.lognormal())
    for _ in range(random.integers(0, 4)):
        own = random.lognormal(0, 1.0)
        tree.add(Kind.OP, str(random.choice(_INNER)), parent=outer, own=own)


TREES: dict[str, Callable[[], Tree]] = {
    "50 spans, 0.3 ms": lambda: random_tree(50, 0.3e6),
    "200 spans, 2 ms": lambda: random_tree(200, 2e6),
    "2,000 spans, 15 ms": lambda: random_tree(2000, 15e6),
    "200 spans, 0.6 s": lambda: random_tree(200, 0.6e9),  # few steps fit into the budget
}
