from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from xsp.matching.ancestry import generations
from xsp.matching.path import path_keys, path_names
from xsp.provider.row import span_rows


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[str]]:
    count = draw(st.integers(1, 40))
    parent = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, count)]
    return parent, [draw(st.sampled_from(["a", "b", "a/b", "a#2", "\\"])) for _ in parent]


def rows(parent: list[int], names: list[str], kinds: list[str] | None = None) -> pl.DataFrame:
    kinds = kinds or ["region"] + ["layer"] * (len(parent) - 1)
    frame = span_rows({"kind": kinds, "name": names, "start_ns": 0, "end_ns": 1})
    return frame.with_columns(parent=pl.Series(parent, dtype=pl.Int64))


@given(trees())
def test_paths_and_their_hashes_are_unique(tree: tuple[list[int], list[str]]) -> None:
    parent, names = tree
    keys = path_keys(rows(parent, names))
    above = np.array(parent)
    paths = path_names(pl.Series(names), above, list(generations(above)))
    assert len(set(paths)) == len(set(keys.tolist())) == len(parent)
    assert (keys != 0).all()


def test_hashes_stay_the_same_from_version_to_version() -> None:
    keys = path_keys(rows([-1, 0], ["model", "conv1"]))
    assert [f"{key:016x}" for key in keys.tolist()] == ["9e3779b97f4a7c15", "d2a72ea81da73727"]
