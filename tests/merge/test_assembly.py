from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from simulate import QUIET, Machine, Noise, Tree, resnet, transformer

from xsp.errors import MeasurementError
from xsp.evaluation.run import Run, Rung, ladder
from xsp.evaluation.summary import trimmed_mean
from xsp.level import Kind
from xsp.merge import assembly as merging
from xsp.merge.assembly import Merged
from xsp.provider.row import span_rows
from xsp.trace import integrity

BUSY = Noise(
    jitter=0.01,
    span_jitter=0.01,
    drift=0.003,
    interference=0.3,
    interference_ns=50_000,
    outliers=0.03,
)

COLUMNS = [
    *("span_id", "parent_id", "level", "kind", "name", "path", "start_ns", "end_ns"),
    *("latency_ns", "latency_low_ns", "latency_high_ns", "self_ns", "overhead_ns", "device_ns"),
    *("measured_start_ns", "measured_end_ns", "runs", "thread", "device", "stream"),
    *("correlation_id", "attributes"),
]


def merge(runs: Sequence[Run], **settings: Any) -> Merged:
    merged = merging.merge(runs, **settings)
    integrity.check(merged.spans)
    return merged


def latency(merged: Merged) -> np.ndarray:
    return merged.spans["latency_ns"].to_numpy()


def errors(merged: Merged, truth: np.ndarray) -> np.ndarray:
    return np.abs(latency(merged) / trimmed_mean(truth) - 1)


def of_kind(tree: Tree, kind: Kind) -> np.ndarray:
    return np.array([each is kind for each in tree.kind])


def named(tree: Tree, prefix: str) -> np.ndarray:
    return np.array([name.startswith(prefix) for name in tree.name])


def codes(merged: Merged) -> list[str]:
    return [problem.code for problem in merged.problems]


def message(merged: Merged, code: str) -> str:
    return next(problem.message for problem in merged.problems if problem.code == code)


@pytest.mark.parametrize("layer_cost", [0, 300, 100_000])
def test_without_noise_layers_are_exact(layer_cost: float) -> None:
    tree = transformer(layer_cost=layer_cost)
    runs, truth = Machine(tree).measure(3)
    found = errors(merge(runs), truth)
    assert found[~of_kind(tree, Kind.OP)].max() < 1e-3


@pytest.mark.parametrize("op_cost", [500, 100_000])
def test_without_noise_operators_that_cost_alike_are_exact(op_cost: float) -> None:
    runs, truth = Machine(resnet(op_cost=op_cost)).measure(3)
    assert errors(merge(runs), truth).max() < 1e-3


def test_operators_that_cost_differently_share_what_their_layer_grew_by() -> None:
    tree = transformer()
    runs, truth = Machine(tree).measure(3)
    merged = merge(runs)
    outer = of_kind(tree, Kind.OP) & np.array([name == "aten::linear" for name in tree.name])
    apart = np.abs(latency(merged) - trimmed_mean(truth))
    assert apart[outer].max() <= (3000 - 500) / 2 + 5
    assert apart[of_kind(tree, Kind.OP) & ~outer].max() <= 1


def test_small_blocks_come_out_within_one_per_cent_on_a_busy_machine() -> None:
    tree = transformer()
    found = []
    for seed in range(4):
        runs, truth = Machine(tree, BUSY, seed).measure(50)
        found.append(errors(merge(runs), truth))
    blocks, layers = (np.array(found)[:, chosen] for chosen in _blocks_and_layers(tree))
    assert np.median(blocks) < 0.005
    assert np.median(layers) < 0.005
    assert np.quantile(layers, 0.95) < 0.015


def _blocks_and_layers(tree: Tree) -> tuple[np.ndarray, np.ndarray]:
    return named(tree, "block"), of_kind(tree, Kind.LAYER)


def test_bottlenecks_are_not_disturbed_by_a_share_that_noise_hides() -> None:
    tree = resnet()
    runs, truth = Machine(tree, replace(BUSY, jitter=0.01), seed=5).measure(30)
    assert errors(merge(runs), truth)[named(tree, "block")].max() < 0.01


@pytest.mark.parametrize("wasteful", ["layer", "op"])
def test_waste_of_100_us_per_span_is_taken_out_on_a_busy_machine(wasteful: str) -> None:
    waste = {f"{wasteful}_cost": 100_000.0}
    tree = resnet(**waste)
    runs, truth = Machine(tree, BUSY, seed=1).measure(40)
    merged = merge(runs)
    found = errors(merged, truth)[of_kind(tree, Kind.LAYER)]
    assert np.median(found) < 0.01
    assert np.quantile(found, 0.95) < 0.02
    share = merged.rungs.filter(pl.col("rung") == wasteful)["cost_per_span_ns"][0]
    assert share == pytest.approx(100_000, rel=0.03)


def test_intervals_hold_the_truth() -> None:
    tree = transformer()
    truth = trimmed_mean(Machine(tree).measure(1)[1])
    noise = Noise(jitter=0.01, span_jitter=0.01)
    held = []
    for seed in range(5):
        spans = merge(Machine(tree, noise, seed).measure(30)[0]).spans
        low, high = (spans[f"latency_{end}_ns"].to_numpy() for end in ("low", "high"))
        held.append((low <= truth) & (truth <= high))
    assert np.mean(np.array(held)[:, of_kind(tree, Kind.LAYER)]) > 0.9


def test_a_healthy_measurement_has_no_problems() -> None:
    noise = Noise(jitter=0.005, span_jitter=0.01)
    for tree in (transformer(), resnet()):
        assert merge(Machine(tree, noise).measure(40)[0]).problems == ()


def test_columns_order_and_identity() -> None:
    tree = transformer(blocks=2)
    spans = merge(Machine(tree).measure(2)[0]).spans
    assert spans.columns == COLUMNS
    assert spans["parent_id"].null_count() == 1
    assert spans["span_id"].n_unique() == spans["path"].n_unique() == len(tree.name)
    assert spans["path"].to_list() == tree.names()
    position = {span: i for i, span in enumerate(spans["span_id"])}
    above = [position[parent] for parent in spans["parent_id"][1:]]
    assert above == tree.parent[1:]
    assert spans["level"].unique().sort().to_list() == ["framework", "model"]
    assert spans["device_ns"].null_count() == spans.height


def test_self_time_and_overhead_add_up() -> None:
    tree = resnet()
    spans = merge(Machine(tree).measure(2)[0]).spans
    children = np.zeros(spans.height)
    for i, parent in enumerate(tree.parent[1:], 1):
        children[parent] += spans["latency_ns"][i]
    whole = spans["self_ns"].to_numpy() + children
    assert whole == pytest.approx(spans["latency_ns"].to_numpy(), rel=1e-6)
    records = sum(tree.cost_ns)
    assert spans["overhead_ns"][0] == pytest.approx(records, abs=2)


def test_the_timeline_is_drawn_without_overhead() -> None:
    runs, _ = Machine(resnet()).measure(2)
    exact = merge(runs).spans
    drawn = (exact["end_ns"] - exact["start_ns"]).to_numpy()
    assert np.abs(drawn - exact["latency_ns"].to_numpy()).max() <= 1


def test_each_latency_says_how_many_runs_it_rests_on() -> None:
    runs, _ = Machine(resnet()).measure(4)
    op_runs = [run for run in runs if run.rung.name == "op"]
    spans = merge([run for run in runs if run.rung.name != "op"] + op_runs[:3]).spans
    counts = dict(spans.group_by("kind").agg(pl.col("runs").unique().first()).iter_rows())
    assert counts == {"pipeline": 4, "layer": 4, "op": 3}


def test_rungs_tell_overhead_and_shares() -> None:
    tree = resnet()
    rungs = merge(Machine(tree).measure(3)[0]).rungs
    assert rungs["rung"].to_list() == ["bare", "pipeline", "layer", "op"]
    layers = sum(of_kind(tree, Kind.LAYER))
    assert rungs["overhead_ns"].to_list()[:3] == pytest.approx([0, 0, layers * 300], abs=2)
    assert rungs["spans"].to_list() == [0, 1, 1 + layers, len(tree.name)]
    assert rungs["cost_per_span_ns"].to_list()[2:] == pytest.approx([300, 1000], rel=1e-3)
    assert rungs["cost_per_span_ns"].to_list()[:2] == [None, None]


def test_the_users_own_pipeline_spans_cost_too() -> None:
    tree = Tree()
    root = tree.add(Kind.PIPELINE, "evaluation", own=50_000)
    for name in ("pre-process", "predict", "post-process"):
        outer = tree.add(Kind.PIPELINE, name, parent=root, own=20_000, cost=5_000)
        inner = tree.add(Kind.LAYER, "Net", parent=outer, own=30_000, cost=300)
        tree.add(Kind.LAYER, "fc", parent=inner, own=200_000, cost=300)
    runs, truth = Machine(tree).measure(3)
    merged = merge(runs)
    assert errors(merged, truth).max() < 1e-4
    assert merged.rungs["cost_per_span_ns"][1] == pytest.approx(5_000, rel=1e-3)


def test_processes_of_different_speed_are_brought_to_one_scale() -> None:
    tree = resnet()
    runs, truth = Machine(tree).measure(5, speeds=[1.0, 1.05, 0.95])
    merged = merge(runs)
    assert errors(merged, truth)[~of_kind(tree, Kind.OP)].max() < 2e-3
    assert "differs by 5.2%" in message(merged, "processes-differ")


def test_processes_that_differ_by_noise_alone_are_left_alone() -> None:
    noise = Noise(jitter=0.01, span_jitter=0.01)
    runs, truth = Machine(transformer(), noise).measure(40, speeds=[1.0, 1.0, 1.0])
    merged = merge(runs)
    assert "processes-differ" not in codes(merged)
    assert np.median(errors(merged, truth)) < 0.01


def test_without_layer_runs_layers_come_from_the_operators_and_are_said_to() -> None:
    tree = transformer()
    runs, truth = Machine(tree).measure(5)
    merged = merge([run for run in runs if run.rung.name != "layer"])
    layers = of_kind(tree, Kind.LAYER)
    exact = merged.spans["attributes"].struct.field("exact").to_numpy()
    assert not exact[layers].any()
    assert exact[0]
    assert "layer spans" in message(merged, "carries-overhead")
    measured = merged.spans["measured_end_ns"] - merged.spans["measured_start_ns"]
    raw = np.abs(measured.to_numpy() / trimmed_mean(truth) - 1)
    assert np.median(errors(merged, truth)[layers]) < np.median(raw[layers]) / 2


def test_without_pipeline_runs_the_model_comes_from_the_bare_ones() -> None:
    runs, truth = Machine(resnet()).measure(3)
    merged = merge([run for run in runs if run.rung.name != "pipeline"])
    assert errors(merged, truth).max() < 1e-3
    assert codes(merged) == []


def test_one_rung_alone_is_shown_as_measured() -> None:
    runs, _ = Machine(resnet()).measure(3, kinds=[Kind.PIPELINE, Kind.LAYER, Kind.OP])
    merged = merge([run for run in runs if run.rung.name == "op"])
    spans = merged.spans
    measured = (spans["measured_end_ns"] - spans["measured_start_ns"]).to_numpy()
    assert latency(merged) == pytest.approx(measured)
    assert "pipeline spans, layer spans" in message(merged, "carries-overhead")


def test_one_run_of_each_rung_is_merged_without_intervals() -> None:
    merged = merge(Machine(resnet()).measure(1)[0])
    assert merged.spans["latency_low_ns"].null_count() == merged.spans.height
    assert "single run" in message(merged, "wide-interval")


def test_a_wide_interval_is_said() -> None:
    merged = merge(Machine(resnet(), Noise(jitter=0.3)).measure(5)[0])
    assert "±" in message(merged, "wide-interval")


def test_nothing_recorded_cannot_be_merged() -> None:
    with pytest.raises(MeasurementError, match="was the model called"):
        merge([Run(Rung(frozenset()), 1000)])
    with pytest.raises(MeasurementError):
        merge([])


def test_wrong_arguments_are_named() -> None:
    runs, _ = Machine(resnet()).measure(1)
    with pytest.raises(ValueError, match="'mode'"):
        merge(runs, statistic="mode")


def test_any_runs_can_be_merged() -> None:
    random = np.random.default_rng(0)
    for seed in range(30):
        runs: list[Run] = []
        for number in range(int(random.integers(1, 6))):
            tree = random_tree(int(random.integers(1, 12)), seed + int(random.integers(0, 2)))
            machine = Machine(tree, BUSY, seed)
            runs += [machine.run(rung, number) for rung in RUNGS if random.random() < 0.7]
        if any(run.rows is not None for run in runs):
            assert merge(runs).spans.height


def random_tree(size: int, seed: int) -> Tree:
    random = np.random.default_rng(seed)
    tree = Tree()
    tree.add(Kind.PIPELINE, "predict", own=float(random.uniform(0, 1e5)) + 1)
    for _ in range(size):
        parent = int(random.integers(0, len(tree.kind)))
        kinds = [kind for kind in KINDS if kind.order >= tree.kind[parent].order]
        kind = kinds[int(random.integers(0, len(kinds)))]
        own, cost = random.uniform(0, 1e5, 2)
        tree.add(kind, f"s{random.integers(0, 3)}", parent=parent, own=float(own), cost=float(cost))
    return tree


KINDS = (Kind.PIPELINE, Kind.LAYER, Kind.OP)
RUNGS = ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP})


def hand_run(rung: Rung, spans: list[tuple[str, str, int, int, int]], /, **columns: object) -> Run:
    kinds, names, starts, ends, parents = zip(*spans, strict=True)
    values = {"kind": kinds, "name": names, "start_ns": starts, "end_ns": ends, "thread": 1}
    rows = span_rows({**values, **columns}).with_columns(parent=pl.Series(parents, dtype=pl.Int64))
    return Run(rung, ends[0] - starts[0], rows)


def test_spans_of_other_runs_are_counted_and_named() -> None:
    usual = [("pipeline", "predict", 0, 100, -1), ("layer", "left", 10, 50, 0)]
    other = [("pipeline", "predict", 0, 100, -1), ("layer", "right", 10, 50, 0)]
    runs = [Run(RUNGS[0], 100), Run(RUNGS[0], 100)]
    runs += [hand_run(RUNGS[1], usual[:1]) for _ in range(2)]
    runs += [hand_run(RUNGS[2], spans) for spans in (usual, usual, other)]
    merged = merge(runs)
    assert merged.spans["name"].to_list() == ["predict", "left"]
    assert "1 span of other runs" in message(merged, "unmatched")
    assert "right" in message(merged, "unmatched")
    assert "1 of 3 runs of rung layer" in message(merged, "structure-varies")
    assert merged.spans["runs"].to_list() == [2, 2]


def test_a_span_that_its_own_rung_never_saw_comes_from_a_deeper_one() -> None:
    deep = [
        ("pipeline", "predict", 0, 100_000, -1),
        ("layer", "conv", 10_000, 50_000, 0),
        ("layer", "late", 60_000, 90_000, 0),
        ("op", "aten::relu", 70_000, 80_000, 2),
    ]
    runs = [Run(RUNGS[0], 100_000), hand_run(RUNGS[1], deep[:1]), hand_run(RUNGS[2], deep[:2])]
    merged = merge([*runs, hand_run(RUNGS[3], deep)])
    assert "late" in message(merged, "unmatched")
    exact = merged.spans["attributes"].struct.field("inexact").to_list()
    assert exact == [["few"], ["few"], ["carried", "few", "varies"], ["few"]]
    assert latency(merged)[2] == pytest.approx(30_000, rel=0.1)
    assert "carries-overhead" not in codes(merged)


def renamed(rung: Rung, layer: str) -> Run:
    """A layer whose name is not always the same, of 78 us; 20 operators in one cost 1 us each."""
    cost = 1000 if rung.order > Kind.LAYER.order else 0
    end = 88_000 + 21 * cost
    spans = [("pipeline", "predict", 0, end + 10_000, -1)]
    if rung.order >= Kind.LAYER.order:
        spans.append(("layer", layer, 10_000, end, 0))
    if cost:
        spans.append(("op", "outer", 10_500, end - 500, 1))
        starts = range(11_500, 11_500 + 20 * 3000, 3000)
        spans += [("op", "inner", start, start + 2000, 2) for start in starts]
    return hand_run(rung, spans)


@pytest.mark.parametrize("layer", ["fc", "other"])
def test_costs_are_known_where_a_rung_sees_other_layers_than_the_rung_above(layer: str) -> None:
    runs = [Run(RUNGS[0], 98_000)] * 3
    for rung, name in zip(RUNGS[1:], ("", "fc", layer), strict=True):
        runs += [renamed(rung, name)] * 5
    merged = merge(runs)
    assert latency(merged)[2] == pytest.approx(78_000, rel=1e-3)
    assert merged.spans["attributes"].struct.field("exact").to_list()[2]
    assert merged.rungs["cost_per_span_ns"][-1] == pytest.approx(1000, rel=1e-3)


def dropping(rung: Rung, absent: np.ndarray) -> Run:
    """Layers `block`, of which the first has 2 us, the others 100 us; those absent are skipped."""
    tree = Tree()
    root = tree.add(Kind.PIPELINE, "predict", own=5_000)
    for number in np.flatnonzero(~absent):
        block = tree.add(Kind.LAYER, "block", parent=root, own=1_000, cost=300)
        tree.add(Kind.OP, "relu", parent=block, own=99_000 if number else 1_000, cost=900)
    return Machine(tree).run(rung)


@pytest.mark.parametrize("marked", [True, False])
def test_spans_that_a_profiler_may_leave_out_make_no_other_path(marked: bool) -> None:
    usual = [("pipeline", "predict", 0, 100, -1), ("layer", "left", 10, 50, 0)]
    other = [*usual, ("layer", "brief", 60, 61, 0)]
    runs = [Run(RUNGS[0], 100) for _ in range(3)] + [hand_run(RUNGS[1], usual[:1])] * 3
    for spans in (usual, usual, other):
        run = hand_run(RUNGS[2], spans)
        rows = run.rows.with_columns(
            pl.when((pl.col("name") == "brief") & marked).then(True).alias("attr.unsteady")
        )
        runs.append(replace(run, rows=rows))
    found = {problem.code for problem in merge(runs).problems}
    assert ("structure-varies" in found, "unmatched" in found) == (not marked, not marked)


def test_a_span_is_not_taken_for_its_sibling_where_one_is_skipped() -> None:
    random = np.random.default_rng(0)
    runs = []
    for rung in RUNGS:
        skipped = [np.array([random.random() < 0.3, False, False]) for _ in range(30)]
        runs += [dropping(rung, absent) for absent in skipped]
    merged = merge(runs)
    layers = merged.spans.filter(kind="layer")
    assert layers["latency_ns"].to_list() == pytest.approx([2e3, 1e5, 1e5], rel=0.01)
    assert (layers["runs"] < 30).all()
    assert "as many siblings of its name" in message(merged, "structure-varies")


def test_names_that_cost_differently_are_told_apart() -> None:
    random = np.random.default_rng(0)
    tree, costs = Tree(), random.uniform(500, 3000, 8)
    root = tree.add(Kind.PIPELINE, "predict", own=5_000)
    for number in range(40):
        layer = tree.add(Kind.LAYER, f"layer{number}", parent=root, own=2_000, cost=300)
        for _ in range(int(random.integers(1, 4))):
            op = int(random.integers(8))
            outer = tree.add(Kind.OP, f"op{op}", parent=layer, own=9_000, cost=costs[op])
            op = int(random.integers(8))
            tree.add(Kind.OP, f"op{op}", parent=outer, own=5_000, cost=costs[op])
    runs, truth = Machine(tree, Noise(jitter=0.01, span_jitter=0.01)).measure(30)
    operators = of_kind(tree, Kind.OP)
    assert np.quantile(errors(merge(runs), truth)[operators], 0.95) < 0.04


def backward(rung: Rung, cost: int) -> Run:
    """A layer, called and then differentiated: three operators, made into a derived layer."""
    at = 50_000 + (300 if rung.order >= 1 else 0)
    spans = [("pipeline", "step", 0, at + 50_000 + 3 * cost, -1)]
    if rung.order >= 1:
        spans.append(("layer", "fc", 150, at - 150, 0))
    if rung.order < 2:
        return hand_run(rung, spans)
    first, step = at + 10_000 + cost // 2, 10_000 + cost
    ends = first, first + 2 * step + 10_000
    spans.append(("layer", "fc", *ends, 0))
    spans += [("op", f"grad{i}", first + i * step, first + i * step + 10_000, 2) for i in range(3)]
    ways = ["recorded", "recorded", "derived", *["recorded"] * 3]
    return hand_run(rung, spans, provenance=ways)


@pytest.mark.parametrize("cost", [0, 1000, 100_000])
def test_a_layer_derived_from_backward_operators_carries_none_of_their_cost(cost: int) -> None:
    runs = [Run(RUNGS[0], 100_000)] * 5
    for rung in RUNGS[1:]:
        runs += [backward(rung, cost if rung.order == 2 else 0)] * 5
    merged = merge(runs)
    assert merged.spans["path"].to_list()[:3] == ["step", "step/fc", "step/fc#2"]
    assert latency(merged)[1:] == pytest.approx([50_000, 30_000, 1e4, 1e4, 1e4], abs=10)
    inexact = merged.spans["attributes"].struct.field("inexact").to_list()
    assert inexact == [None, None, ["derived"], None, None, None]
    assert "carries-overhead" not in codes(merged)


def test_detail_runs_give_attributes_and_never_a_latency() -> None:
    spans = [("pipeline", "predict", 0, 1000, -1), ("layer", "conv", 100, 900, 0)]
    slow = [("pipeline", "predict", 0, 9000, -1), ("layer", "conv", 100, 8000, 0)]
    classes = {"attr.module_class": [None, "Conv2d"]}
    bytes_ = {"attr.peak_bytes": [None, 42], "attr.module_class": [None, "other"]}
    detail = hand_run(Rung(RUNGS[2].kinds, detail=True), slow, **bytes_)
    runs = [Run(RUNGS[0], 1000), hand_run(RUNGS[1], spans[:1]), detail]
    merged = merge([*runs, hand_run(RUNGS[2], spans, **classes)])
    assert latency(merged).tolist() == [1000, 800]
    assert merged.spans["attributes"].to_list()[1] == {
        "module_class": "Conv2d",
        "peak_bytes": 42,
        "exact": False,
        "inexact": ["few"],
        "scaled_ns": None,
    }
    assert merged.rungs["rung"].to_list() == ["bare", "pipeline", "layer", "detail"]
    assert merged.rungs["latency_ns"][-1] is None


def test_spans_on_several_threads_are_kept_apart() -> None:
    spans = [
        ("pipeline", "predict", 0, 1000, -1),
        ("layer", "left", 100, 900, 0),
        ("layer", "right", 100, 900, 0),
    ]
    runs = [Run(RUNGS[0], 1000), hand_run(RUNGS[1], spans[:1])]
    merged = merge([*runs, hand_run(RUNGS[2], spans, thread=[1, 1, 2])])
    assert latency(merged).tolist() == [1000, 800, 800]
    assert merged.spans["self_ns"].to_list() == [200, 800, 800]
    assert merged.spans["start_ns"].to_list() == [0, 100, 100]


def test_a_profiler_that_stays_behind_is_seen() -> None:
    machine = Machine(resnet(), QUIET)
    runs, _ = machine.measure(40)
    slowed = [
        replace(run, latency_ns=int(run.latency_ns * (1.05 if run.round >= 30 else 1.0)))
        if run.rung.order < 0
        else run
        for run in runs
    ]
    assert "5.0% slower at the end" in message(merge(slowed), "residual")


def test_overhead_that_the_shares_do_not_explain_is_said() -> None:
    runs, _ = Machine(resnet(), Noise(jitter=0.001)).measure(40)
    slower = [
        replace(run, latency_ns=int(run.latency_ns * 0.9)) if run.rung.order < 0 else run
        for run in runs
    ]
    assert "%" in message(merge(slower), "prediction")


def test_a_parent_whose_operators_cost_far_more_is_named() -> None:
    tree = resnet()
    for i, name in enumerate(tree.name):
        if name == "aten::mkldnn" and i < 30:
            tree.cost_ns[i] = 400_000
    runs, _ = Machine(tree, Noise(jitter=0.001, span_jitter=0.001)).measure(20)
    assert "µs elsewhere" in message(merge(runs), "share-outlier")


@pytest.mark.parametrize("statistic", ["median", "mean", "min"])
def test_other_statistics_on_request(statistic: str) -> None:
    runs, truth = Machine(resnet()).measure(3)
    assert errors(merge(runs, statistic=statistic), truth).max() < 1e-3


def test_the_minimum_has_no_interval_and_is_not_said_to_rest_on_one_run() -> None:
    runs, _ = Machine(resnet()).measure(3)
    merged = merge(runs, statistic="min")
    ends = merged.spans.select("latency_low_ns", "latency_high_ns")
    assert sum(ends.null_count().row(0)) == 2 * ends.height
    assert "wide-interval" not in codes(merged)
