"""Tables of layers: sums that lose nothing, layers told apart by group, phase and call."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Node, layer, op, pipeline, trace

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
def test_an_self_time_lies_in_its_interval_and_in_the_latency(part: Node) -> None:
    root = pipeline("predict", layer("net", "Net", part))
    table = layer_latency(trace(root))
    assert (table["own_low_ns"] <= table["own_ns"]).all()
    assert (table["own_ns"] <= table["own_high_ns"]).all()
    assert (table["own_ns"] <= table["latency_ns"]).all()


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


def test_without_allocations_the_memory_of_layers_is_refused() -> None:
    bare = trace(pipeline("predict", layer("net", "Net")))
    with pytest.raises(xsp.AnalysisError, match="no allocations: measure with levels=2"):
        layer_memory_allocation(bare)


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
