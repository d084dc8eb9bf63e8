"""Sequences of siblings: what is alike in two of them in, which of one is which of the other out.

Two siblings that are paired score; the pairing with the highest score in all is taken, of those
that keep the order of both sequences. The score of a pair is made so that same name and type come
before same type, and same type before same name. Names that are numbers, as those in a sequence of
modules, count only where all else is equal: a block that is inserted renumbers those behind.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import Ints

Labels = list[tuple[int, int, int]]
Floats = NDArray[np.float64]

_NAMED, _TYPED, _CONTENT = 5.0, 3.0, 1.0
_SAME_NAME_ONLY = 2.0
# Less than any other score, however many siblings there are.
_NUMBERED = 1e-5
# Larger tables of scores would take too long: 2,000 by 2,000 siblings that differ.
_CELLS = 4_000_000


@dataclass(frozen=True, slots=True)
class Sequence:
    """Siblings, each described by numbers that are equal where siblings are alike.

    Attributes:
        kind: Kind and phase.
        name: Name; -1 and below for names that are numbers, each number its own.
        type: Class of the module, or the name where there is none.
        content: What lies inside.
    """

    kind: Ints
    name: Ints
    type: Ints
    content: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def part(self, begin: int, end: int) -> Sequence:
        """Return the siblings from one place to another."""
        cut = slice(begin, end)
        return Sequence(self.kind[cut], self.name[cut], self.type[cut], self.content[cut])


def pair_in_order(a: Sequence, b: Sequence) -> tuple[Ints, Ints]:
    """Return the places in two sequences of what is paired, both rising.

    >>> def of(*names):
    ...     names = np.array(names)
    ...     return Sequence(names * 0, names, names, names * 0)
    >>> pair_in_order(of(1, 2, 3, 4), of(1, 3, 5, 4))
    (array([0, 2, 3]), array([0, 1, 3]))
    """
    head = _equal_begin(a, b)
    tail = _equal_end(a, b, head)
    inner_a, inner_b = a.part(head, len(a) - tail), b.part(head, len(b) - tail)
    small = len(inner_a) * len(inner_b) <= _CELLS
    in_a, in_b = (_best if small else by_ordinal)(inner_a, inner_b)
    begin, end = np.arange(head), np.arange(-tail, 0)
    return (
        np.concatenate([begin, in_a + head, end + len(a)]),
        np.concatenate([begin, in_b + head, end + len(b)]),
    )


def _equal_begin(a: Sequence, b: Sequence) -> int:
    shorter = min(len(a), len(b))
    unequal = np.flatnonzero(~_equal(a.part(0, shorter), b.part(0, shorter)))
    return int(unequal[0]) if len(unequal) else shorter


def _equal_end(a: Sequence, b: Sequence, head: int) -> int:
    shorter = min(len(a), len(b)) - head
    ends = (each.part(len(each) - shorter, len(each)) for each in (a, b))
    unequal = np.flatnonzero(~_equal(*ends))
    return shorter - 1 - int(unequal[-1]) if len(unequal) else shorter


def _equal(a: Sequence, b: Sequence) -> NDArray[np.bool_]:
    kinds = (a.kind == b.kind) & (a.type == b.type)
    equal: NDArray[np.bool_] = kinds & (a.name == b.name) & (a.content == b.content)
    return equal


def _best(a: Sequence, b: Sequence) -> tuple[Ints, Ints]:
    return best_pairs(_scores(a, b), _labels(a), _labels(b))


def best_pairs(score: Floats, a: Labels, b: Labels) -> tuple[Ints, Ints]:
    """Return the pairs that score highest in all, by the table of all beginnings of both.

    Args:
        score: Score of each pair, `[a, b]`; 0 for what cannot be paired.
        a: What decides of the first sequence, where either of two could be left out.
        b: The same of the second.
    """
    table = np.zeros((len(a) + 1, len(b) + 1))
    for row in range(len(a)):
        paired = np.maximum(table[row, 1:], table[row, :-1] + score[row])
        np.maximum.accumulate(paired, out=table[row + 1, 1:])
    return _way_back(table, a, b)


def _labels(of: Sequence) -> list[tuple[int, int, int]]:
    return list(zip(of.type.tolist(), of.name.tolist(), of.content.tolist(), strict=True))


def _way_back(table: Floats, a: Labels, b: Labels) -> tuple[Ints, Ints]:
    """Return the pairs by which the score in the last corner of the table came about.

    Where either of two siblings could be left out, their labels decide, so that it is the same
    one whichever of the sequences comes first.
    """
    row, column = len(a), len(b)
    pairs: list[tuple[int, int]] = []
    while row and column:
        without_a = table[row, column] == table[row - 1, column]
        without_b = table[row, column] == table[row, column - 1]
        if without_a and not (without_b and a[row - 1] < b[column - 1]):
            row -= 1
        elif without_b:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    found = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _scores(a: Sequence, b: Sequence) -> Floats:
    """Return the score of each pair, `[a, b]`; 0 for what cannot be paired."""
    name = a.name[:, None] == b.name
    numbered = np.broadcast_to((a.name < 0)[:, None], name.shape)
    typed = _TYPED + _CONTENT * (a.content[:, None] == b.content)
    named = np.where(name, np.where(numbered, _NUMBERED, _NAMED), 0.0)
    same_type = a.type[:, None] == b.type
    other_type = np.where(name & ~numbered, _SAME_NAME_ONLY, 0.0)
    score: Floats = np.where(same_type, typed + named, other_type)
    return score * (a.kind[:, None] == b.kind)


def by_ordinal(a: Sequence, b: Sequence) -> tuple[Ints, Ints]:
    """Return pairs of one name, type and ordinal among such, as many as keep the order."""
    known = {key: place for place, key in enumerate(_ordinal_keys(b))}
    shared = [(i, known[key]) for i, key in enumerate(_ordinal_keys(a)) if key in known]
    kept = _longest_rise([place for _, place in shared])
    found = np.array([shared[i] for i in kept], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _ordinal_keys(of: Sequence) -> list[tuple[int, int, int, int]]:
    seen: dict[tuple[int, int, int], int] = {}
    keys: list[tuple[int, int, int, int]] = []
    for key in zip(of.kind.tolist(), of.name.tolist(), of.type.tolist(), strict=True):
        seen[key] = ordinal = seen.get(key, -1) + 1
        keys.append((*key, ordinal))
    return keys


def _longest_rise(values: list[int]) -> list[int]:
    """Return the places of a longest rising subsequence (Schensted 1961).

    >>> _longest_rise([5, 1, 2, 9, 3])
    [1, 2, 4]
    """
    ends: list[int] = []  # the least value that ends a rise of each length
    at: list[int] = []  # its place
    before: list[int] = []
    for place, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(at[length - 1] if length else -1)
        ends[length : length + 1] = [value]
        at[length : length + 1] = [place]
    rise: list[int] = []
    last = at[-1] if at else -1
    while last >= 0:
        rise.append(last)
        last = before[last]
    return rise[::-1]
