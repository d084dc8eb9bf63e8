from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import unhurried

from xsp.evaluation.ancestry import (
    depths,
    generations,
    highest,
    inverse,
    is_forward,
    lineage,
    nearest,
    nearest_outer,
    rearranged,
    roots_of,
    subtree_sums,
)

Ints = NDArray[np.int64]


@st.composite
def trees(draw: st.DrawFn) -> Ints:
    """Return parents of up to 40 rows in one or several trees, in any sequence."""
    count = draw(st.integers(1, 40))
    parent = np.array([draw(st.integers(-1, i - 1)) for i in range(count)])
    return rearranged(parent, np.array(draw(st.permutations(range(count)))))


def climb(parent: Ints, row: int) -> list[int]:
    """Return the ancestors of a row, the nearest first."""
    found = []
    while (row := int(parent[row])) >= 0:
        found.append(row)
    return found


@unhurried
@given(trees())
def test_depths_count_ancestors(parent: Ints) -> None:
    expected = [len(climb(parent, row)) for row in range(len(parent))]
    assert depths(parent).tolist() == expected
    for depth, rows in enumerate(generations(parent)):
        assert rows.tolist() == np.flatnonzero(np.array(expected) == depth).tolist()


@unhurried
@given(trees(), st.randoms(use_true_random=False))
def test_sums_and_maxima_are_those_of_descendants_and_ancestors(
    parent: Ints, random: Random
) -> None:
    values = np.array([random.randint(0, 99) for _ in parent])
    sums = np.zeros(len(parent))
    for row in range(len(parent)):
        sums[climb(parent, row)] += values[row]
    assert subtree_sums(values.astype(float), parent).tolist() == pytest.approx(sums.tolist())
    several = subtree_sums(np.array([values, -2.0 * values]), parent)
    assert several.tolist() == [pytest.approx(sums.tolist()), pytest.approx((-2 * sums).tolist())]
    assert highest(parent, values).tolist() == [
        max(values[[row, *climb(parent, row)]]) for row in range(len(parent))
    ]


@unhurried
@given(trees(), st.randoms(use_true_random=False))
def test_the_nearest_is_the_first_wanted_on_the_way_up(parent: Ints, random: Random) -> None:
    wanted = np.array([random.random() < 0.4 for _ in parent])
    order = np.array([random.randint(0, 3) for _ in parent])
    rows = np.arange(len(parent))
    for found, inclusive in (
        (nearest(parent, rows, wanted), True),
        (nearest(parent, parent, wanted), False),
    ):
        for row in rows.tolist():
            way = [row] * inclusive + climb(parent, row)
            assert found[row] == next((above for above in way if wanted[above]), -1)
    for row, found_row in enumerate(nearest_outer(parent, order).tolist()):
        way = climb(parent, row)
        assert found_row == next((above for above in way if order[above] <= order[row]), -1)


@unhurried
@given(trees())
def test_a_lineage_is_every_row_with_its_ancestors(parent: Ints) -> None:
    rows = np.arange(0, len(parent), 2)
    ancestors, places = lineage(parent, rows)
    for place, row in enumerate(rows.tolist()):
        assert ancestors[places == place].tolist() == [row, *climb(parent, row)]
    assert roots_of(parent).tolist() == [
        [row, *climb(parent, row)][-1] for row in range(len(parent))
    ]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_rows_that_are_each_others_ancestors_have_no_root(length: int) -> None:
    circle = np.roll(np.arange(length), 1) + 1
    parent = np.array([-1, *circle, length])
    assert parent[roots_of(parent)].tolist().count(-1) == 1


@unhurried
@given(trees(), st.randoms(use_true_random=False))
def test_rows_keep_their_parents_in_any_sequence(parent: Ints, random: Random) -> None:
    sequence = np.array(random.sample(range(len(parent)), len(parent)))
    moved = rearranged(parent, sequence)
    for row, above in enumerate(moved.tolist()):
        assert (sequence[above] if above >= 0 else -1) == parent[sequence[row]]
    assert sequence[inverse(sequence)].tolist() == list(range(len(parent)))


def test_parents_that_come_first_are_forward() -> None:
    assert is_forward(np.array([-1, 0, 1]))
    assert not is_forward(np.array([-1, 2, 0]))
