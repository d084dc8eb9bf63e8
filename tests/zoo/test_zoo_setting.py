from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.zoo import numbers, precisions, ways_to_run, wished


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8", (8,)),
        ("4,1,2,2", (1, 2, 4)),
        ("1..256", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("3..20", (3, 6, 12, 20)),
        ("1..4, 6", (1, 2, 4, 6)),
        ("5..5", (5,)),
    ],
)
def test_numbers_are_listed_or_double(text: str, found: tuple[int, ...]) -> None:
    assert numbers(text) == found


@given(st.lists(st.integers(1, 10_000), min_size=1))
def test_a_list_of_numbers_comes_back_ascending_and_each_once(values: list[int]) -> None:
    assert numbers(",".join(map(str, values))) == tuple(sorted(set(values)))


@pytest.mark.parametrize(
    ("function", "text", "said"),
    [
        (numbers, "", "has an empty place"),
        (numbers, "1,,2", "has an empty place"),
        (numbers, "0", "'0' is no whole number from 1"),
        (numbers, "-1", "'-1' is no whole number from 1"),
        (numbers, "1.5", "is no whole number from 1"),
        (numbers, "²", "is no whole number from 1"),
        (numbers, "8..2", "'8..2' ends before it begins"),
        (numbers, "1..", "'' is no whole number from 1"),
        (precisions, "float23", r"no precision 'float23'; did you mean float32"),
        (ways_to_run, "maybe", "neither no .* nor yes"),
        (wished, ["seq"], "'seq' is no setting: write NAME=VALUE"),
        (wished, ["2x=3"], "is no setting"),
        (wished, ["x="], "has an empty place"),
        (wished, ["batch=3"], "batch has an option of its own: --batch 3"),
        (wished, ["seq=1", "sequence=2"], "sequence stands twice"),
    ],
)
def test_what_is_no_list_of_settings_is_refused(
    function: Callable[[Any], Any], text: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        function(text)
