"""Absorption: paired units in, units that the other side does within the partner of another out.

One framework folds normalisations into convolutions, makes activations where it multiplies, or
pads where it convolves; another one has layers of their own for these.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xsp.comparison.alignment.leftover import Joined
from xsp.comparison.alignment.unit import Units
from xsp.evaluation import Ints
from xsp.layer_type import LayerType

_BEHIND = 4  # units in which the convolution of a normalisation is looked for


class Absorption:
    """Units of one side that have no partner, and may be in that of another.

    Args:
        a: Units of the one side.
        b: Units of the other side.
        partner: Number of the partner of each unit of `a`, -1 for none.
    """

    def __init__(self, a: Units, b: Units, partner: Ints) -> None:
        self._a, self._b, self._partner = a, b, partner
        self._into: dict[int, int] = {}  # units that were absorbed, and the paired one
        self._products = a.is_of(LayerType.CONVOLUTION, LayerType.MATMUL)
        self._folds = not b.is_of(LayerType.NORMALISATION).any()

    def joined(self) -> Iterator[Joined]:
        """Yield what became part of a pair."""
        normal = self._a.is_of(LayerType.NORMALISATION)
        active = self._a.is_of(LayerType.ACTIVATION)
        for x in np.flatnonzero(self._partner < 0).tolist():
            if normal[x]:
                p = self._folded(x)
            elif active[x]:
                p = self._activated(x)
            else:
                p = self._padded(x) if self._a.pads[x] else None
            if p is not None:
                self._into[x] = p
                yield Joined((p, int(self._partner[p])), (x,), (), is_fused=True)

    def _folded(self, x: int) -> int | None:
        """Return the product before a normalisation whose partner took the normalisation in.

        Its parameters say so, being others, or that there is no normalisation on the other side.
        """
        for p in range(x - 1, max(-1, x - 1 - _BEHIND), -1):
            if self._products[p] and self._partner[p] >= 0 and self._may_hold(p, x):
                return p if self._folds or self._has_other_parameters(p) else None
        return None

    def _may_hold(self, p: int, x: int) -> bool:
        shapes = self._a.shape[p], self._a.shape[x]
        return p not in self._into.values() and (None in shapes or shapes[0] == shapes[1])

    def _has_other_parameters(self, p: int) -> bool:
        """Return whether the partner of a unit has other parameters; one that fuses, others or not.

        An unknown size is no other size.
        """
        q = self._partner[p]
        one, other = self._a.parameters[p], self._b.parameters[q]
        known = not (np.isnan(one) or np.isnan(other))
        return bool(self._b.fuses[q]) or (known and bool(one != other))

    def _activated(self, x: int) -> int | None:
        """Return the unit right before an activation whose partner makes the activation."""
        p = self._into.get(x - 1, x - 1)
        q = self._partner[p] if p >= 0 else -1
        return p if q >= 0 and self._b.fuses[q] else None

    def _padded(self, x: int) -> int | None:
        """Return the convolution or pooling right behind a padding."""
        p = x + 1
        padding = self._a.is_of(LayerType.CONVOLUTION, LayerType.POOLING)
        return p if p < len(self._a) and padding[p] and self._partner[p] >= 0 else None
