"""Tables of layers: sums that lose nothing, layers told apart by group, phase and call."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Node, layer, op, pipeline, resnet, trace

import xsp
from xsp.analyses import (
    layer_information,
    layer_latency,
    layer_latency_by_type,
    layer_memory_allocation,
    layer_memory_by_type,
    layer_thirds,
    layer_type_distribution,
)
from xsp.trace import Trace

NAMES = st.sampled_from(["conv", "relu", "block"])
TREES = st.recursive(
    st.builds(op, NAMES, own_ns=st.integers(0, 10_000)),
    lambda below: st.builds(
        lambda name, children, own, size: layer(
            name, name.title(), *children, own_ns=own, allocated_bytes=size
        ),
        NAMES,
        st.lists(below, max_size=4),
        st.integers(1, 10_000),
        st.integers(1, 1 << 20),
    ),
    max_leaves=25,
)


def allocating(node: Node) -> int:
    """Add to what each layer allocates what those inside do; return what the node allocates."""
    inside = sum(allocating(child) for child in node.children)
    if node.kind != "layer":
        return inside
    node.attributes["allocated_bytes"] += inside
    return int(node.attributes["allocated_bytes"])


def outermost(node: Node) -> list[Node]:
    """Return the layers that lie in no other layer."""
    if node.kind == "layer":
        return [node]
    return [found for child in node.children for found in outermost(child)]


@given(st.lists(TREES, min_size=1, max_size=3))
def test_tables_of_layers_lose_nothing_and_count_nothing_twice(parts: list[Node]) -> None:
    root = pipeline("predict", layer("net", "Net", *parts, allocated_bytes=0))
    allocated = allocating(root)
    measured = trace(root)
    took = sum(part.latency_ns for part in outermost(root))
    layers = int((measured.spans["kind"] == "layer").sum())
    by_type, memory = layer_latency_by_type(measured), layer_memory_by_type(measured)
    thirds, numbers = layer_thirds(measured), layer_type_distribution(measured)
    for times in (layer_latency(measured), by_type, thirds):
        assert times["own_ns"].sum() == pytest.approx(took)
    for sizes in (layer_memory_allocation(measured), memory, thirds):
        assert sizes["own_allocated_bytes"].sum() == allocated
    assert numbers["count"].sum() == by_type["count"].sum() == thirds["layers"].sum() == layers
    for shares in (numbers["share_pct"], by_type["share_pct"], thirds["latency_pct"]):
        assert shares.sum() == pytest.approx(100.0)


@given(TREES)
def test_an_own_time_lies_in_its_interval_and_in_the_latency(part: Node) -> None:
    root = pipeline("predict", layer("net", "Net", part))
    table = layer_latency(trace(root))
    assert (table["own_low_ns"] <= table["own_ns"]).all()
    assert (table["own_ns"] <= table["own_high_ns"]).all()
    assert (table["own_ns"] <= table["latency_ns"]).all()


def with_intervals(root: Node, relative: dict[str, float]) -> Trace:
    """Return a trace in which the latency of each layer is known to a part of it."""
    spans = trace(root).spans
    half = spans["name"].replace_strict(relative, default=0.0) * spans["latency_ns"]
    low, high = spans["latency_ns"] - half, spans["latency_ns"] + half
    return Trace(spans.with_columns(latency_low_ns=low, latency_high_ns=high), {"name": "net"})


def test_the_error_that_all_latencies_share_is_no_error_of_the_difference() -> None:
    inner = layer("inner", "Conv2d", own_ns=900_000)
    root = pipeline("predict", layer("outer", "Net", inner, own_ns=100_000), own_ns=0)
    alike = with_intervals(root, {"predict": 0.1, "outer": 0.1, "inner": 0.1})
    outer, leaf = layer_latency(alike).select("own_low_ns", "own_high_ns").rows()
    assert outer == pytest.approx((90_000, 110_000))
    assert leaf == pytest.approx((810_000, 990_000))
    # Without an error of the model the two are independent: 30,000 and 40,000 are 50,000.
    apart = with_intervals(root, {"outer": 0.03, "inner": 40 / 900})
    assert layer_latency(apart).row(0, named=True)["own_high_ns"] == pytest.approx(150_000)


def test_a_sum_has_an_interval_only_where_all_its_parts_have_one() -> None:
    root = pipeline("predict", layer("a", "Linear"), layer("b", "Linear"), layer("c", "ReLU"))
    spans = trace(root).spans
    unknown = pl.when(pl.col("name") != "a").then(pl.col("latency_high_ns"))
    table = layer_latency_by_type(Trace(spans.with_columns(latency_high_ns=unknown), {}))
    rows = {row["type"]: row for row in table.iter_rows(named=True)}
    assert rows["Linear"]["own_ns"] == 4_000
    assert rows["Linear"]["own_high_ns"] is None
    assert rows["ReLU"]["own_high_ns"] == pytest.approx(2_020)


def test_an_unknown_latency_stays_unknown() -> None:
    root = pipeline("predict", layer("a", "Linear"), layer("b", "ReLU"))
    spans = trace(root).spans
    known = pl.when(pl.col("name") != "a").then(pl.col("latency_ns"))
    measured = Trace(spans.with_columns(latency_ns=known), {})
    assert layer_latency(measured)["own_ns"].to_list() == [None, 2_000.0]
    assert layer_latency_by_type(measured)["own_ns"].to_list() == [2_000.0, None]


def test_a_layer_is_named_by_its_path_and_its_call() -> None:
    names = [("net", None, ""), ("relu", None, "act"), ("relu", 1, "act")]
    parts = [layer(name, "Any", module_path=path, call_index=call) for name, call, path in names]
    table = layer_latency(trace(pipeline("predict", *parts, layer("## step ##", None))))  # type: ignore[arg-type]
    assert table["layer"].to_list() == ["net", "act", "act#2", "## step ##"]
    assert table["type"].to_list() == ["Any", "Any", "Any", "## step ##"]


def test_information_has_shapes_in_words() -> None:
    shapes: dict[str, Any] = {
        "input_shapes": [[8, 3, 224, 224], None],
        "output_shapes": [[8, 64], []],
    }
    table = layer_information(trace(pipeline("predict", layer("net", "Net", **shapes))))
    assert table["input_shape"].item() == "8×3×224×224, ?"
    assert table["output_shape"].item() == "8×64, scalar"


def test_memory_says_what_is_kept() -> None:
    sizes = {"allocated_bytes": 300, "freed_bytes": 100, "peak_bytes": 250}
    inner = layer("conv", "Conv2d", **sizes)
    root = pipeline("predict", layer("net", "Net", inner, **(sizes | {"allocated_bytes": 400})))
    table = layer_memory_allocation(trace(root))
    assert table["own_allocated_bytes"].to_list() == [100, 300]
    assert table["kept_bytes"].to_list() == [300, 200]
    assert table["share_pct"].to_list() == [25.0, 75.0]


def test_without_allocations_the_memory_of_layers_is_refused() -> None:
    bare = trace(pipeline("predict", layer("net", "Net")))
    with pytest.raises(xsp.AnalysisError, match="no allocations: measure with levels=2"):
        layer_memory_allocation(bare)


def program() -> Trace:
    """Return the trace of a program that calls two models, one of them 10 times."""

    def net(**more: Any) -> Node:
        parts = [layer(str(i), "Linear", module_path=str(i), **more) for i in range(3)]
        return layer("Net", "Net", *parts, module_path="", **more)

    often = pipeline("Net 8×64", net(calls=10, allocated_bytes=100))
    often.attributes["calls"] = 10
    once = pipeline("Net training step 8×64", net(phase="forward"), net(phase="backward"))
    groups = [{"name": once.name}, {"name": often.name}]
    return trace(pipeline("block", pipeline("epoch", often, once)), groups=groups)


def test_groups_and_phases_are_told_apart() -> None:
    table = layer_latency_by_type(program()).drop("layer_type")
    told = {row[:3]: row[3] for row in table.iter_rows()}
    assert told == {
        ("Net 8×64", None, "Linear"): 30,
        ("Net 8×64", None, "Net"): 10,
        ("Net training step 8×64", "forward", "Linear"): 3,
        ("Net training step 8×64", "forward", "Net"): 1,
        ("Net training step 8×64", "backward", "Linear"): 3,
        ("Net training step 8×64", "backward", "Net"): 1,
    }


def test_memory_of_a_program_is_the_sum_over_all_calls() -> None:
    table = layer_memory_allocation(program())
    assert table["allocated_bytes"].to_list()[:4] == [1_000] * 4
    assert table["allocated_bytes"].null_count() == 8


def test_processes_are_told_apart() -> None:
    parts = [pipeline(f"rank {n}", layer("net", "Net")) for n in range(2)]
    for number, part in enumerate(parts):
        part.attributes["process"] = number
    table = layer_latency(trace(pipeline("run", *parts)))
    assert table["group"].to_list() == ["rank 0", "rank 1"]


def test_layers_replayed_on_a_device_are_left_out_where_there_are_others() -> None:
    replayed = layer("conv", "Conv2d")
    replayed.columns["device"] = 0
    both = trace(pipeline("predict", layer("net", "Net", replayed)))
    assert layer_latency(both)["type"].to_list() == ["Net"]
    assert layer_latency(trace(pipeline("predict", replayed)))["type"].to_list() == ["Conv2d"]


def test_thirds_are_of_the_modules_whatever_runs_backwards() -> None:
    number = count(1)

    def part(name: str, phase: str) -> Node:
        return layer(name, "Linear", own_ns=next(number) * 1_000, module_path=name, phase=phase)

    names = ("a", "b", "c", "d", "e", "f")
    forward = [part(name, "forward") for name in names]
    backward = [part(name, "backward") for name in reversed(names)]
    table = layer_thirds(trace(pipeline("step", *forward, *backward)))
    assert table["phase"].to_list() == ["forward"] * 3 + ["backward"] * 3
    assert table["third"].to_list() == ["first", "middle", "last"] * 2
    assert table["own_ns"].to_list() == [3e3, 7e3, 11e3, 23e3, 19e3, 15e3]
    assert table["most_of"].to_list() == [None, None, "latency", "latency", None, None]
    assert table["latency_pct"].to_list()[:3] == pytest.approx([100 / 7, 100 / 3, 1100 / 21])


def test_thirds_count_the_work_of_what_lies_in_their_layers() -> None:
    def part(name: str, wide: int) -> Node:
        sizes = {"flops": 2 * wide, "problem": f"NN m{wide} n1 k1"}
        product = op("xsp::product", Node("call", "SGEMM", 500, [], sizes))
        return layer(name, "Linear", product, module_path=name)

    table = layer_thirds(trace(pipeline("predict", part("a", 10), part("b", 30), part("c", 20))))
    assert table["flops"].to_list() == [20, 60, 40]
    assert table["accessed_bytes"].to_list() == [84, 244, 164]  # a vector in, one out, a number
    assert table["most_of"].to_list()[1].endswith("flops, accessed")
    assert table["work_source"].to_list() == ["library"] * 3


def test_time_of_devices_stands_beside_that_of_the_host() -> None:
    def part(name: str, *children: Node, device_ns: float) -> Node:
        made = layer(name, name.title(), *children, module_path=name)
        made.columns["device_ns"] = device_ns
        return made

    first, last = part("conv", device_ns=700.0), part("relu", device_ns=100.0)
    measured = trace(pipeline("predict", part("net", first, last, device_ns=900.0)))
    assert layer_latency(measured)["device_ns"].to_list() == [900.0, 700.0, 100.0]
    by_type = layer_latency_by_type(measured).select("type", "own_device_ns", "device_pct")
    assert by_type.sort("own_device_ns").rows() == [
        ("Net", 100.0, pytest.approx(100 / 9)),
        ("Relu", 100.0, pytest.approx(100 / 9)),
        ("Conv", 700.0, pytest.approx(700 / 9)),
    ]
    assert layer_thirds(measured)["device_pct"].to_list() == pytest.approx(
        [100 / 9, 700 / 9, 100 / 9]
    )


def test_layers_are_numbered_as_they_began() -> None:
    table = layer_information(trace(resnet()))
    assert table["index"].to_list() == list(range(1, table.height + 1))
    spans = trace(resnet()).spans
    starts = dict(zip(spans["path"], spans["start_ns"], strict=True))
    assert (np.diff([starts[path] for path in table["path"]]) >= 0).all()
