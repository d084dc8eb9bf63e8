from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from simulate import Machine, Tree, resnet

from xsp.evaluation.run import Run, Rung, ladder
from xsp.evaluation.run_table import ROOT
from xsp.level import Kind
from xsp.merge.assembly import merge
from xsp.merge.ladder import climb
from xsp.provider.row import span_rows

RUNGS = ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP})


def hand_run(rung: Rung, latency_ns: int, spans: list[tuple[str, str, int, int, int]]) -> Run:
    kind, name, start, end, parent = zip(*spans, strict=True)
    columns = {"kind": kind, "name": name, "start_ns": start, "end_ns": end, "thread": 1}
    rows = span_rows(columns).with_columns(parent=pl.Series(parent, dtype=pl.Int64))
    return Run(rung, latency_ns, rows)


def test_spans_are_columns_in_the_order_of_the_run_that_is_shown() -> None:
    spans = [("pipeline", "p", 0, 100, -1), ("layer", "b", 10, 40, 0), ("layer", "a", 50, 90, 0)]
    swapped = [("pipeline", "p", 5, 90, -1), ("layer", "a", 15, 35, 0), ("layer", "b", 60, 70, 0)]
    found = climb([hand_run(RUNGS[2], 101, spans), hand_run(RUNGS[2], 102, swapped)])
    assert found.shown == 0
    assert found.durations(found.deepest).tolist() == [[101, 30, 40], [102, 10, 20]]


def test_what_a_run_lacks_is_missing_and_what_it_has_beside_is_left_out() -> None:
    spans = [("pipeline", "p", 0, 100, -1), ("layer", "a", 10, 40, 0)]
    other = [("pipeline", "p", 0, 100, -1), ("layer", "b", 10, 40, 0)]
    found = climb([hand_run(RUNGS[2], 100, rows) for rows in (spans, spans, other)])
    durations = found.durations(found.deepest)
    assert durations[:, 0].tolist() == [100, 100, 100]
    assert durations[:2, 1].tolist() == [30, 30]
    assert np.isnan(durations[2, 1])


def test_own_time_is_less_what_children_seen_on_both_rungs_cover() -> None:
    layers = [("pipeline", "p", 0, 90, -1), ("layer", "a", 10, 50, 0), ("layer", "b", 40, 70, 0)]
    spans = [
        *[("pipeline", "p", 0, 100, -1), ("layer", "a", 10, 60, 0), ("layer", "b", 40, 80, 0)],
        ("op", "o", 12, 20, 1),
    ]
    found = climb([hand_run(RUNGS[2], 90, layers), hand_run(RUNGS[3], 100, spans)])
    shared = found.shared(found.deepest, found.rungs[0])
    assert found.of_paths(shared).tolist() == [True, True, True, False]
    assert found.own_times(found.deepest, shared).tolist() == [[30, 50, 40, 8]]
    assert found.own_times(found.rungs[0], shared)[0, :3].tolist() == [30, 40, 30]


def test_own_time_holds_children_that_one_of_the_rungs_never_saw() -> None:
    layers = [("pipeline", "p", 0, 90, -1), ("layer", "a", 10, 50, 0), ("layer", "c", 60, 70, 0)]
    spans = [("pipeline", "p", 0, 99, -1), ("layer", "a", 10, 60, 0), ("layer", "b", 70, 80, 0)]
    runs = [
        hand_run(RUNGS[2], 90, layers),
        hand_run(RUNGS[3], 99, [*spans, ("op", "o", 72, 78, 2)]),
    ]
    found = climb(runs)
    shared = found.shared(found.deepest, found.rungs[0])
    assert found.of_paths(shared).tolist() == [True, True, False, False]
    assert found.own_times(found.deepest, shared)[0, ROOT] == 49
    assert found.own_times(found.rungs[0], shared)[0, ROOT] == 50


RELUS = [("relu", 10, 12), ("relu", 20, 120), ("add", 130, 140)]


def alike(names: list[tuple[str, int, int]], rung: Rung = RUNGS[3]) -> Run:
    """A run with a layer of operators, each with an operator inside."""
    spans = [("pipeline", "p", 0, 200, -1), ("layer", "fc", 5, 190, 0)]
    if rung.order > Kind.LAYER.order:
        for name, start, end in names:
            spans.append(("op", name, start, end, 1))
            spans.append(("op", "inner", start, end, len(spans) - 1))
    return hand_run(rung, 200, spans)


def test_siblings_of_one_name_are_not_matched_where_one_of_them_is_missing() -> None:
    found = climb([alike(RELUS), alike(RELUS), alike(RELUS[1:])])
    times = found.durations(found.deepest)
    assert times[0].tolist() == [200, 185, 2, 2, 100, 100, 10, 10]
    assert np.isnan(times[2]).tolist() == [False, False, True, True, True, True, False, False]
    assert times[2, 6] == 10


def test_siblings_of_one_name_are_not_matched_where_there_are_more_of_them() -> None:
    found = climb([alike(RELUS), alike(RELUS), alike([*RELUS, ("relu", 150, 160)])])
    times = found.durations(found.deepest)
    assert np.isnan(times[2]).tolist() == [False, False, True, True, True, True, False, False]


def test_spans_whose_place_is_empty_in_too_many_runs_vary() -> None:
    usual, other = [alike(RELUS)], [alike(RELUS[1:])]
    seldom = climb([alike(RELUS, RUNGS[2]), *usual * 39, *other])
    assert not seldom.varies.any()
    often = climb([alike(RELUS, RUNGS[2]), *usual * 9, *other])
    assert often.varies.tolist() == [False, False, True, True, True, True, False, False]


def test_a_span_that_its_own_rung_never_saw_varies() -> None:
    spans = [("pipeline", "p", 0, 100, -1), ("layer", "a", 10, 40, 0)]
    found = climb([hand_run(RUNGS[2], 100, spans[:1]), hand_run(RUNGS[3], 100, spans)])
    assert found.varies.tolist() == [False, True]


def test_the_bare_rung_tells_of_the_root_alone() -> None:
    spans = [("pipeline", "p", 0, 100, -1), ("layer", "a", 10, 40, 0)]
    found = climb([Run(RUNGS[0], 90), hand_run(RUNGS[2], 100, spans)])
    bare = found.durations(found.rungs[0])
    assert bare[:, 0].tolist() == [90]
    assert np.isnan(bare[:, 1]).all()


def test_one_run_may_be_given_several_times() -> None:
    run = hand_run(RUNGS[2], 100, [("pipeline", "p", 0, 100, -1), ("layer", "a", 10, 40, 0)])
    found = climb([run, run, run])
    assert found.durations(found.deepest).tolist() == [[100, 30]] * 3


def test_each_process_is_brought_to_the_scale_of_all() -> None:
    runs, _ = Machine(resnet()).measure(4, speeds=[1.0, 1.2, 0.8])
    found = climb(runs)
    means = [found.durations(rung)[:, 0].mean() for rung in found.rungs[:2]]
    assert means[0] == pytest.approx(means[1], rel=1e-3)


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Queries made of frames, an entry each: polars turns even `filter` and `select` into one."""
    made: list[None] = []
    original = pl.DataFrame.lazy

    def counted(frame: pl.DataFrame) -> pl.LazyFrame:
        made.append(None)
        return original(frame)

    monkeypatch.setattr(pl.DataFrame, "lazy", counted)
    return made


def test_many_runs_take_no_more_queries_than_few(queries: list[None]) -> None:
    tree = Tree()
    root = tree.add(Kind.PIPELINE, "predict", own=2_000)
    layer = tree.add(Kind.LAYER, "fc", parent=root, own=1_000, cost=300)
    tree.add(Kind.OP, "aten::linear", parent=layer, own=5_000, cost=900)
    counts = []
    for rounds in (5, 50):
        runs, _ = Machine(tree).measure(rounds)
        del queries[:]
        merge(runs)
        counts.append(len(queries))
    assert counts[0] == counts[1] > 0
