from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from simulate import Machine, Noise, Tree, resnet, transformer

from xsp.errors import MeasurementError
from xsp.level import Kind
from xsp.matching.run import Pass, Run, ladder
from xsp.matching.summary import trimmed_mean
from xsp.provider.row import span_rows
from xsp.reading.merge import assembly as merging
from xsp.reading.merge.assembly import Merged
from xsp.trace import integrity

BUSY = Noise(
    jitter=0.01,
    span_jitter=0.01,
    drift=0.003,
    interference=0.3,
    interference_ns=50_000,
    outliers=0.03,
)


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


def message(merged: Merged, code: str) -> str:
    return next(warning.message for warning in merged.warnings if warning.code == code)


@pytest.mark.parametrize("layer_cost", [0, 300, 100_000])
def test_without_noise_layers_are_exact(layer_cost: float) -> None:
    tree = transformer(layer_cost=layer_cost)
    runs, truth = Machine(tree).measure(3)
    found = errors(merge(runs), truth)
    assert found[~of_kind(tree, Kind.OP)].max() < 1e-3


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


@pytest.mark.parametrize("wasteful", ["layer", "op"])
def test_waste_of_100_us_per_span_is_taken_out_on_a_busy_machine(wasteful: str) -> None:
    waste = {f"{wasteful}_cost": 100_000.0}
    tree = resnet(**waste)
    runs, truth = Machine(tree, BUSY, seed=1).measure(40)
    merged = merge(runs)
    found = errors(merged, truth)[of_kind(tree, Kind.LAYER)]
    assert np.median(found) < 0.01
    assert np.quantile(found, 0.95) < 0.02
    share = merged.passes.filter(pl.col("pass") == wasteful)["cost_per_span_ns"][0]
    assert share == pytest.approx(100_000, rel=0.03)


def test_a_healthy_measurement_has_no_warnings() -> None:
    noise = Noise(jitter=0.005, span_jitter=0.01)
    for tree in (transformer(), resnet()):
        assert merge(Machine(tree, noise).measure(40)[0]).warnings == ()


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


def test_without_layer_runs_layers_come_from_the_operators_and_are_said_to() -> None:
    tree = transformer()
    runs, truth = Machine(tree).measure(5)
    merged = merge([run for run in runs if run.pass_.name != "layer"])
    layers = of_kind(tree, Kind.LAYER)
    exact = merged.spans["attributes"].struct.field("exact").to_numpy()
    assert not exact[layers].any()
    assert exact[0]
    assert "layer spans" in message(merged, "carries-overhead")
    measured = merged.spans["measured_end_ns"] - merged.spans["measured_start_ns"]
    raw = np.abs(measured.to_numpy() / trimmed_mean(truth) - 1)
    assert np.median(errors(merged, truth)[layers]) < np.median(raw[layers]) / 2


def test_one_pass_alone_is_shown_as_measured() -> None:
    runs, _ = Machine(resnet()).measure(3, kinds=[Kind.REGION, Kind.LAYER, Kind.OP])
    merged = merge([run for run in runs if run.pass_.name == "op"])
    spans = merged.spans
    measured = (spans["measured_end_ns"] - spans["measured_start_ns"]).to_numpy()
    assert latency(merged) == pytest.approx(measured)
    assert "region spans, layer spans" in message(merged, "carries-overhead")


def test_a_wide_interval_is_said() -> None:
    merged = merge(Machine(resnet(), Noise(jitter=0.3)).measure(5)[0])
    assert "±" in message(merged, "wide-interval")


def test_nothing_recorded_cannot_be_merged() -> None:
    with pytest.raises(MeasurementError, match="was the model called"):
        merge([Run(Pass(frozenset()), 1000)])
    with pytest.raises(MeasurementError):
        merge([])


def test_any_runs_can_be_merged() -> None:
    random = np.random.default_rng(0)
    for seed in range(30):
        runs: list[Run] = []
        for number in range(int(random.integers(1, 6))):
            tree = random_tree(int(random.integers(1, 12)), seed + int(random.integers(0, 2)))
            machine = Machine(tree, BUSY, seed)
            runs += [machine.run(pass_, number) for pass_ in PASSES if random.random() < 0.7]
        if any(run.rows is not None for run in runs):
            assert merge(runs).spans.height


def random_tree(size: int, seed: int) -> Tree:
    random = np.random.default_rng(seed)
    tree = Tree()
    tree.add(Kind.REGION, "predict", own=float(random.uniform(0, 1e5)) + 1)
    for _ in range(size):
        parent = int(random.integers(0, len(tree.kind)))
        kinds = [kind for kind in KINDS if kind.order >= tree.kind[parent].order]
        kind = kinds[int(random.integers(0, len(kinds)))]
        own, cost = random.uniform(0, 1e5, 2)
        tree.add(kind, f"s{random.integers(0, 3)}", parent=parent, own=float(own), cost=float(cost))
    return tree


KINDS = (Kind.REGION, Kind.LAYER, Kind.OP)
PASSES = ladder({Kind.REGION, Kind.LAYER, Kind.OP})


def hand_run(pass_: Pass, spans: list[tuple[str, str, int, int, int]], /, **columns: object) -> Run:
    kinds, names, starts, ends, parents = zip(*spans, strict=True)
    values = {"kind": kinds, "name": names, "start_ns": starts, "end_ns": ends, "thread": 1}
    rows = span_rows({**values, **columns}).with_columns(parent=pl.Series(parents, dtype=pl.Int64))
    return Run(pass_, ends[0] - starts[0], rows)


def test_spans_of_other_runs_are_counted_and_named() -> None:
    usual = [("region", "predict", 0, 100, -1), ("layer", "left", 10, 50, 0)]
    other = [("region", "predict", 0, 100, -1), ("layer", "right", 10, 50, 0)]
    runs = [Run(PASSES[0], 100), Run(PASSES[0], 100)]
    runs += [hand_run(PASSES[1], usual[:1]) for _ in range(2)]
    runs += [hand_run(PASSES[2], spans) for spans in (usual, usual, other)]
    merged = merge(runs)
    assert merged.spans["name"].to_list() == ["predict", "left"]
    assert "1 span of other runs" in message(merged, "unmatched")
    assert "right" in message(merged, "unmatched")
    assert "1 of 3 runs of pass layer" in message(merged, "structure-varies")
    assert merged.spans["runs"].to_list() == [2, 2]


def test_detail_runs_give_attributes_and_never_a_latency() -> None:
    spans = [("region", "predict", 0, 1000, -1), ("layer", "conv", 100, 900, 0)]
    slow = [("region", "predict", 0, 9000, -1), ("layer", "conv", 100, 8000, 0)]
    classes = {"attr.module_class": [None, "Conv2d"]}
    bytes_ = {"attr.peak_bytes": [None, 42], "attr.module_class": [None, "other"]}
    detail = hand_run(Pass(PASSES[2].kinds, detail=True), slow, **bytes_)
    runs = [Run(PASSES[0], 1000), hand_run(PASSES[1], spans[:1]), detail]
    merged = merge([*runs, hand_run(PASSES[2], spans, **classes)])
    assert latency(merged).tolist() == [1000, 800]
    assert merged.spans["attributes"].to_list()[1] == {
        "module_class": "Conv2d",
        "peak_bytes": 42,
        "exact": False,
        "inexact": ["few_samples"],
        "scaled_ns": None,
    }
    assert merged.passes["pass"].to_list() == ["bare", "region", "layer", "detail"]
    assert merged.passes["latency_ns"][-1] is None


def test_spans_on_several_threads_are_kept_apart() -> None:
    spans = [
        ("region", "predict", 0, 1000, -1),
        ("layer", "left", 100, 900, 0),
        ("layer", "right", 100, 900, 0),
    ]
    runs = [Run(PASSES[0], 1000), hand_run(PASSES[1], spans[:1])]
    merged = merge([*runs, hand_run(PASSES[2], spans, thread=[1, 1, 2])])
    assert latency(merged).tolist() == [1000, 800, 800]
    assert merged.spans["self_ns"].to_list() == [200, 800, 800]
    assert merged.spans["start_ns"].to_list() == [0, 100, 100]


def test_overhead_that_the_shares_do_not_explain_is_said() -> None:
    runs, _ = Machine(resnet(), Noise(jitter=0.001)).measure(40)
    slower = [
        replace(run, latency_ns=int(run.latency_ns * 0.9)) if run.pass_.order < 0 else run
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


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_other_statistics_on_request(statistic: str) -> None:
    runs, truth = Machine(resnet()).measure(3)
    assert errors(merge(runs, statistic=statistic), truth).max() < 1e-3
