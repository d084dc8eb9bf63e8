from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from xsp.inexact import Inexact, codes_of, legend, lists_of, marks, reasons_of, united

CODES = st.lists(st.integers(0, 2 ** len(Inexact) - 1), max_size=20)


def array(codes: list[int]) -> np.ndarray:
    return np.array(codes, dtype=np.uint8)


@given(CODES)
def test_reasons_survive_being_written_as_lists(codes: list[int]) -> None:
    assert codes_of(lists_of(array(codes))).tolist() == codes


def test_reasons_of_files_of_later_versions_are_passed_over() -> None:
    lists = pl.Series([["few", "unheard of"], [], None], dtype=pl.List(pl.String))
    assert [reasons_of(code) for code in codes_of(lists)] == [(Inexact.FEW,), (), ()]


@given(CODES)
def test_a_group_has_the_reasons_of_all_its_members(codes: list[int]) -> None:
    group = np.arange(len(codes)) % 2
    union = united(array(codes), group, 2)
    for number in range(2):
        members = {reason for code in codes[number::2] for reason in reasons_of(code)}
        assert set(reasons_of(union[number])) == members


def test_each_reason_has_a_mark_of_one_character_and_its_own() -> None:
    assert sorted(map(len, map(marks, [[one] for one in Inexact]))) == [1] * len(Inexact)
    assert len(set(marks(Inexact))) == len(Inexact)


def test_the_legend_explains_what_is_there_and_nothing_else() -> None:
    assert legend([Inexact.FEW, Inexact.CARRIED, Inexact.FEW]) == (
        "+ still with overhead · ? in fewer than 5 runs"
    )
    assert legend([]) == ""
