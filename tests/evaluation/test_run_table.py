from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xsp.evaluation.path import path_keys
from xsp.evaluation.run import Run, Rung
from xsp.evaluation.run_table import observe
from xsp.level import Kind
from xsp.testing import rows

EVERYTHING = Rung(frozenset(Kind))


def run(names: str) -> Run:
    """Return a run with a layer in the root for each letter."""
    frame = rows("pipeline predict 0 99", *(f"layer {name} 1 2" for name in names))
    parent = frame.with_row_index("parent").select("parent").to_series().cast(int).clip(0, 1) - 1
    return Run(EVERYTHING, 99, frame.with_columns(parent=parent))


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=30))
def test_a_span_has_the_same_key_and_number_in_every_run_alike_or_not(runs: list[str]) -> None:
    seen = observe([run(names) for names in runs])
    alone = {names: path_keys(run(names).rows).tolist() for names in runs}  # type: ignore[arg-type]
    assert [seen.key[seen.of(i)].tolist() for i in range(len(runs))] == [alone[n] for n in runs]
    numbers: dict[int, int] = {}
    expected = [numbers.setdefault(key, len(numbers)) for key in seen.key.tolist()]
    assert seen.path.tolist() == expected


def test_a_structure_that_was_forgotten_among_many_of_its_height_is_found_again() -> None:
    first = run("ab")
    others = [run(f"a{letter}") for letter in "cdefghijklmnop"]
    seen = observe([first, *others, first])
    assert seen.key[seen.of(0)].tolist() == seen.key[seen.of(len(others) + 1)].tolist()
    assert seen.path[seen.of(0)].tolist() == seen.path[seen.of(len(others) + 1)].tolist()
