from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from xsp.evaluation.ancestry import generations
from xsp.evaluation.path import path_keys, path_names
from xsp.provider.row import PROVENANCE, span_rows


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[str]]:
    count = draw(st.integers(1, 40))
    parent = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, count)]
    return parent, [draw(st.sampled_from(["a", "b", "a/b", "a#2", "\\"])) for _ in parent]


def rows(parent: list[int], names: list[str], kinds: list[str] | None = None) -> pl.DataFrame:
    kinds = kinds or ["pipeline"] + ["layer"] * (len(parent) - 1)
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


@given(trees())
def test_runs_one_after_the_other_hash_as_each_does_alone(
    tree: tuple[list[int], list[str]],
) -> None:
    parent, names = tree
    both = parent + [-1 if above < 0 else above + len(parent) for above in parent]
    kinds = (["pipeline"] + ["layer"] * (len(parent) - 1)) * 2
    keys = path_keys(rows(both, names * 2, kinds))
    assert keys.tolist() == path_keys(rows(parent, names)).tolist() * 2


def test_spans_of_deeper_rungs_do_not_change_the_paths_of_others() -> None:
    alone = path_keys(rows([-1, 0, 0], ["m", "conv", "conv"]))
    kinds = ["pipeline", "layer", "op", "layer", "op"]
    beside = path_keys(rows([-1, 0, 1, 0, 0], ["m", "conv", "x", "conv", "conv"], kinds))
    assert beside[[0, 1, 3]].tolist() == alone.tolist()


def test_a_derived_layer_is_not_another_call_of_the_layer_it_is_named_after() -> None:
    frame = rows([-1, 0, 0, 0], ["m", "conv", "conv", "conv"])
    derived = pl.Series(["recorded", "recorded", "derived", "recorded"], dtype=PROVENANCE)
    keys = path_keys(frame.with_columns(provenance=derived))
    assert keys[[0, 1, 3]].tolist() == path_keys(rows([-1, 0, 0], ["m", "conv", "conv"])).tolist()


def test_a_derived_layer_is_no_part_of_the_paths_of_layers_in_it() -> None:
    frame = rows([-1, 0, 1, 2, 0], ["m", "block", "conv", "conv", "conv"])
    derived = pl.Series(["recorded", *["derived"] * 2, *["recorded"] * 2], dtype=PROVENANCE)
    keys = path_keys(frame.with_columns(provenance=derived))
    assert keys[[0, 3, 4]].tolist() == path_keys(rows([-1, 0, 0], ["m", "conv", "conv"])).tolist()
    assert len(set(keys.tolist())) == 5


def test_hashes_stay_the_same_from_version_to_version() -> None:
    keys = path_keys(rows([-1, 0], ["model", "conv1"]))
    assert [f"{key:016x}" for key in keys.tolist()] == ["9e3779b97f4a7c15", "d2a72ea81da73727"]


def test_hashes_of_spans_that_take_their_latency_from_another_rung_stay_the_same() -> None:
    kinds = ["pipeline", "layer", "op", "call", "call", "op"]
    frame = rows([-1, 0, 1, 0, 2, 0], ["m", "fc", "mm", "nccl", "gemm", "mm"], kinds)
    ways = ["recorded", "derived", "recorded", "marker", "ended_by_launch", "replayed"]
    keys = path_keys(frame.with_columns(provenance=pl.Series(ways, dtype=PROVENANCE)))
    assert [f"{key:016x}" for key in keys.tolist()] == [
        *("9e3779b97f4a7c15", "698b9b4ca6a98a4b", "ab278c19e868dbce"),
        *("346414482049b8ce", "3a722e3d2fe9db7c", "94b7394d94a70c3b"),
    ]
