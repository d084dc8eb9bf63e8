"""Numbers the layers around each operator by the operator's path of layers.

operators        path        layers
MatMul           a, b        0 (a), 1 (a, b)
Add              a           0
MatMul           a, c        0, 2 (a, c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_JOINT = "\0"


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of n operators.

    Attributes:
        number: Row of each operator's path in `layers`.
        layers: `[paths, deepest]`: number of the layer at each depth of a path, -1 where the path
            has ended. Equal numbers mean equal paths up to there.
        parts: Path of each layer, outermost part first.
    """

    number: Integers
    layers: Integers
    parts: tuple[tuple[str, ...], ...]

    def around(self, rows: Any, depth: int) -> Integers:
        """Return the layer at a depth around each of some operators, -1 where there is none."""
        return self.layers[self.number[rows], depth]

    def lengths(self) -> Integers:
        """Return how many layers lie around each operator."""
        return np.count_nonzero(self.layers >= 0, axis=1)[self.number]


def numbered(scopes: pl.Series) -> Paths:
    """Return the numbered paths of operators.

    Args:
        scopes: `List(String)`: layers around each operator, outermost first; null or empty: none.

    >>> paths = numbered(pl.Series([["a", "b"], None, ["a"]]))
    >>> paths.parts, paths.lengths()
    ((('a',), ('a', 'b')), array([2, 0, 1]))
    """
    joined = scopes.cast(pl.List(pl.String)).list.join(_JOINT).fill_null("")
    number = joined.rank("dense").cast(pl.Int64).to_numpy() - 1
    texts = joined.unique().sort().to_list()
    known: dict[tuple[str, ...], int] = {}
    chains = []
    for text in texts:
        parts = tuple(text.split(_JOINT)) if text else ()
        prefixes = [parts[: depth + 1] for depth in range(len(parts))]
        chains.append([known.setdefault(prefix, len(known)) for prefix in prefixes])
    layers = np.full((len(texts), max(map(len, chains), default=0)), -1, np.int64)
    for row, chain in zip(layers, chains, strict=True):
        row[: len(chain)] = chain
    return Paths(number, layers, tuple(known))
