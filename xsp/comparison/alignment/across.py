"""Across frameworks: the units of two traces of one architecture in, an alignment out.

Names and classes differ between frameworks, and so does what holds what. What stays is the order
of the layers that compute, their types, the sizes of what comes out of them, and their parameters.
Each pair has a confidence: how much of this agrees. docs/compare.md has the rules.
"""

from __future__ import annotations

import numpy as np

from xsp.comparison.alignment.absorption import Absorption
from xsp.comparison.alignment.alignment import Alignment
from xsp.comparison.alignment.leftover import Joined
from xsp.comparison.alignment.node import Bools, Nodes
from xsp.comparison.alignment.sequence import Floats, Sequence, best_pairs, by_ordinal
from xsp.comparison.alignment.unit import Units
from xsp.evaluation import Ints
from xsp.layer_type import LayerType

# What a confidence is made of, in parts of their sum.
_TYPE, _PARAMETERS, _SHAPE = 0.2, 0.4, 0.4
_RELATED = 0.5  # of a type that is nearly the same
_NEAR, _UNKNOWN = 0.75, 0.5  # of parameters or shapes
_LEAST = 0.55  # of a pair in its order
_LEAST_MOVED = 0.8
_MOVED = 0.9  # what is left of the confidence of a pair that is not in its order
_DOUBTFUL = 0.6  # what is left where two layers that are alike may have changed places
_BESIDE = 3  # units within which two layers that are alike may have done so
_SAME_PATH = 0.95  # of a pair with one path in the model
_REACH = 8  # units around the expected place in which one that moved is looked for
_CELLS = 16_000_000  # of the table of pairs; longer sequences are paired by ordinal

_NEARLY = (
    {LayerType.POOLING.value, LayerType.REDUCTION.value},
    {LayerType.ACTIVATION.value, LayerType.ELEMENTWISE.value},
)


def align_across(nodes: tuple[Nodes, Nodes], units: tuple[Units, Units]) -> Alignment:
    """Return which units of two traces are the same layers of one architecture.

    Args:
        nodes: The nodes of both traces.
        units: What of them is paired.

    Returns:
        An alignment with a confidence for each pair; the roots, which are paired as well, have
        none (NaN).
    """
    a, b = units
    small = len(a) * len(b) <= _CELLS
    confidence = _confidences(a, b) if small else None
    in_a, in_b = _in_order(a, b, confidence)
    partner = np.full(len(a), -1)
    partner[in_a] = in_b
    sure = _of_pairs(confidence, a, b, partner)
    moved = [] if confidence is None else _moved(confidence, partner)
    sure[_doubtful(a, b, partner)] *= _DOUBTFUL
    for i, j in moved:
        partner[i], sure[i] = j, _MOVED * (confidence[i, j] if confidence is not None else 1.0)
    absorbed = Absorption(b, a, _back(partner, len(b))).joined()
    joined = [*Absorption(a, b, partner).joined(), *map(_turned, absorbed)]
    return _alignment(units, partner, sure, np.array([i for i, _ in moved], np.int64), joined)


def _confidences(a: Units, b: Units) -> Floats:
    """Return how much of two units agrees, `[a, b]`; 0 for what cannot be one layer."""
    typed = _agreeing_types(a.type, b.type)
    parameters, equal = _agreeing_parameters(a, b)
    shapes = _agreeing_shapes(a, b)
    found = _TYPE * typed + _PARAMETERS * parameters + _SHAPE * shapes
    weights = equal & (a.parameters[:, None] > 0)
    possible = (typed > 0) & ((shapes > 0) | weights)
    possible |= weights & (shapes == 1.0)
    same_path = (a.module[:, None] == b.module) & (a.module[:, None] >= 0) & (typed > 0)
    found = np.where(same_path, np.maximum(found, _SAME_PATH), found)
    elsewhere = (same_path.any(axis=1)[:, None] | same_path.any(axis=0)) & ~same_path
    possible = (possible & ~elsewhere) | same_path
    result: Floats = np.where(possible & (found >= _LEAST), found, 0.0)
    return result


def _agreeing_types(a: list[str], b: list[str]) -> Floats:
    kinds = sorted({*a, *b})
    table = np.eye(len(kinds))
    for i, one in enumerate(kinds):
        for j, other in enumerate(kinds):
            if one != other and {one, other} in _NEARLY:
                table[i, j] = _RELATED
    number = {kind: place for place, kind in enumerate(kinds)}
    rows, columns = ([number[kind] for kind in side] for side in (a, b))
    found: Floats = table[np.ix_(rows, columns)]
    return found


def _agreeing_parameters(a: Units, b: Units) -> tuple[Floats, Bools]:
    """Return how well the sizes of parameters agree, and which are equal.

    They are near where a bias is beside the weights. What a framework counts of a normalisation
    (its statistics, too?) may be twice of what another does.
    """
    one, other = a.parameters[:, None], b.parameters[None, :]
    unknown = np.isnan(one) | np.isnan(other)
    with np.errstate(invalid="ignore"):
        smaller, larger = np.minimum(one, other), np.maximum(one, other)
        equal = smaller == larger
        normal = a.is_of(LayerType.NORMALISATION)[:, None]
        near = (smaller > 0) & (larger <= smaller * np.where(normal, 2.2, 1.15))
    agreeing = np.select([unknown, equal, near], [_UNKNOWN, 1.0, _NEAR], 0.0)
    return agreeing, equal & ~unknown


def _agreeing_shapes(a: Units, b: Units) -> Floats:
    sizes = {shape: number for number, shape in enumerate({*a.shape, *b.shape})}
    many = {shape: 0 if shape is None else int(np.prod(shape)) for shape in sizes}
    one, other = (np.array([sizes[shape] for shape in side.shape]) for side in (a, b))
    first, second = (np.array([many[shape] for shape in side.shape]) for side in (a, b))
    unknown_a, unknown_b = (np.array([s is None for s in side.shape], np.bool_) for side in (a, b))
    unknown = unknown_a[:, None] | unknown_b
    equal, as_many = one[:, None] == other, first[:, None] == second
    found: Floats = np.select([unknown, equal, as_many], [_UNKNOWN, 1.0, _NEAR], 0.0)
    return found


def _in_order(a: Units, b: Units, confidence: Floats | None) -> tuple[Ints, Ints]:
    """Return the pairs whose confidences, squared, sum to most, of those that keep both orders."""
    if confidence is None:
        return by_ordinal(*_sequences(a, b))
    apart = np.abs(_relative(len(a))[:, None] - _relative(len(b)))
    score = np.where(confidence > 0, confidence**2 + 1e-3 * (1 - apart), 0.0)
    return best_pairs(score, [(0, 0, 0)] * len(a), [(0, 0, 0)] * len(b))


def _relative(many: int) -> Floats:
    return np.arange(many) / max(1, many - 1)


def _sequences(a: Units, b: Units) -> tuple[Sequence, Sequence]:
    """Return units as sequences in which those of one type and shape have one label."""
    kinds = {kind: number for number, kind in enumerate(sorted({*a.type, *b.type}))}
    shapes = {shape: number for number, shape in enumerate({*a.shape, *b.shape})}
    sides = []
    for side in (a, b):
        kind = np.array([kinds[each] for each in side.type], np.int64)
        shape = np.array([shapes[each] for each in side.shape], np.int64)
        sides.append(Sequence(kind, shape, kind, kind))
    return sides[0], sides[1]


def _of_pairs(confidence: Floats | None, a: Units, b: Units, partner: Ints) -> Floats:
    sure = np.full(len(a), np.nan)
    paired = np.flatnonzero(partner >= 0)
    if confidence is not None:
        sure[paired] = confidence[paired, partner[paired]]
        return sure
    for i in paired.tolist():
        known = (a.shape[i] is not None) + (not np.isnan(a.parameters[i]))
        sure[i] = (_LEAST, _LEAST_MOVED, 1.0)[known]
    return sure


def _doubtful(a: Units, b: Units, partner: Ints) -> list[int]:
    """Return paired units that are alike with the next ones, and closer to them on one side.

    So it is where two branches begin alike, and the frameworks order their layers otherwise.
    """
    paired = np.flatnonzero(partner >= 0).tolist()
    found: set[int] = set()
    for at, i in enumerate(paired):
        for k in paired[at + 1 : at + 1 + _BESIDE]:
            apart = k - i, int(partner[k] - partner[i])
            if apart[0] != apart[1] and max(apart) <= _BESIDE and _alike(a, i, k):
                found |= {i, k} if _alike(b, int(partner[i]), int(partner[k])) else set()
    return sorted(found)


def _alike(units: Units, i: int, k: int) -> bool:
    same = units.type[i] == units.type[k] and units.shape[i] == units.shape[k]
    return same and bool(units.parameters[i] == units.parameters[k])


def _moved(confidence: Floats, partner: Ints) -> list[tuple[int, int]]:
    """Return pairs of what is left that agree well, near the place where they are expected."""
    in_a = np.flatnonzero(partner >= 0)
    taken = np.zeros(confidence.shape[1], np.bool_)
    taken[partner[in_a]] = True
    free_a, free_b = np.flatnonzero(partner < 0), np.flatnonzero(~taken)
    if not len(in_a) or not len(free_a) or not len(free_b):
        return []
    apart = np.abs(np.interp(free_a, in_a, partner[in_a])[:, None] - free_b)
    agreeing = confidence[np.ix_(free_a, free_b)]
    at = np.argwhere((agreeing >= _LEAST_MOVED) & (apart <= _REACH))
    best_first = sorted(at.tolist(), key=lambda ij: (-agreeing[ij[0], ij[1]], apart[ij[0], ij[1]]))
    rows, columns, found = set[int](), set[int](), []
    for i, j in best_first:
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            found.append((int(free_a[i]), int(free_b[j])))
    return found


def _back(partner: Ints, many: int) -> Ints:
    back = np.full(many, -1)
    paired = np.flatnonzero(partner >= 0)
    back[partner[paired]] = paired
    return back


def _turned(joined: Joined) -> Joined:
    """Return what is joined, found from the second side, as seen from the first."""
    p, q = joined.pair
    return Joined((q, p), (), joined.more_a, is_fused=False)


def _alignment(
    units: tuple[Units, Units], partner: Ints, sure: Floats, moved: Ints, joined: list[Joined]
) -> Alignment:  # fmt: skip
    """Return pairs of units as pairs of nodes, the roots first, rising on the first side."""
    a, b = units
    paired = np.flatnonzero(partner >= 0)
    paired = paired[np.argsort(a.place[paired], kind="stable")]
    other = partner[paired]
    types = np.array([a.type[i] != b.type[j] for i, j in zip(paired, other, strict=True)], np.bool_)
    parts_a = {x for each in joined for x in each.more_a}
    parts_b = {y for each in joined for y in each.more_b}
    alone_a = [x for x in np.flatnonzero(partner < 0).tolist() if x not in parts_a]
    alone_b = [y for y in np.flatnonzero(_back(partner, len(b)) < 0).tolist() if y not in parts_b]
    return Alignment(
        np.concatenate([[0], a.place[paired]]),
        np.concatenate([[0], b.place[other]]),
        np.concatenate([[False], np.isin(paired, moved)]),
        tuple(_placed(each, a, b) for each in joined),
        np.sort(a.place[alone_a]),
        np.sort(b.place[alone_b]),
        np.concatenate([[False], types]),
        np.concatenate([[np.nan], sure[paired]]),
    )


def _placed(joined: Joined, a: Units, b: Units) -> Joined:
    p, q = joined.pair
    more_a = tuple(int(a.place[x]) for x in joined.more_a)
    more_b = tuple(int(b.place[y]) for y in joined.more_b)
    return Joined((int(a.place[p]), int(b.place[q])), more_a, more_b, joined.is_fused)
