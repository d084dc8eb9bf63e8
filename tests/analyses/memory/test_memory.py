"""Memory held, alive, allocated: on known answers, and on models whose tensors are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Node, layer, op, pipeline, trace

import xsp
from xsp.analyses import layer_memory, memory_peak, operator_memory_allocation
from xsp.answer.analyses.memory.held import held
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace


def with_memory(node: Node, changes: list[int]) -> Node:
    """Return a span with the memory of its allocations and releases, children included.

    Args:
        node: The span; its children have memory, and their `changes`, already.
        changes: Allocations, and negative releases, in their order.
    """
    level = np.cumsum([0, *changes])
    node.attributes |= {
        "allocated_bytes": sum(change for change in changes if change > 0),
        "freed_bytes": -sum(change for change in changes if change < 0),
        "peak_bytes": int(level.max()),
    }
    return node


@st.composite
def chains(draw: st.DrawFn) -> tuple[Node, list[int]]:
    """Return a span of spans of leaves, each with what it allocates and frees of its own."""
    children: list[Node] = []
    changes: list[int] = []
    for index in range(draw(st.integers(1, 4))):
        own: list[int] = []
        leaves = []
        for leaf in range(draw(st.integers(0, 3))):
            size, back = draw(st.integers(0, 100)), draw(st.integers(0, 50))
            moved = [size, -min(size, back)]
            leaves.append(with_memory(op(f"leaf{leaf}"), moved))
            own += moved
        own.append(-draw(st.integers(0, max(sum(own), 0))))
        children.append(with_memory(layer(f"l{index}", "L", *leaves), own))
        changes += [*own, -draw(st.integers(0, max(sum(changes) + sum(own), 0)))]
    return with_memory(layer("net", "Net", *children), changes), changes


@given(chains())
def test_the_highest_leaf_agrees_with_the_recorded_peaks(made: tuple[Node, list[int]]) -> None:
    node, changes = made
    measured = trace(pipeline("predict", node))
    memory = held(Tree.of(measured))
    # No span is drawn higher than the one around it, whose peak is recorded.
    inside = memory.parent >= 0
    assert (memory.highest[inside] <= memory.highest[memory.parent[inside]]).all()
    assert memory.highest.max() == int(np.cumsum([0, *changes]).max())
    table = memory_peak(measured)
    assert (table["alive_bytes"] > 0).all()


def test_temporaries_are_those_of_the_operator_that_frees_them() -> None:
    copy = with_memory(op("aten::empty"), [80])
    output = with_memory(op("aten::empty"), [40])
    conv = with_memory(op("aten::mkldnn_convolution", copy, output), [80, 40, -80])
    wrapper = with_memory(op("aten::conv2d", conv), [80, 40, -80])
    table = operator_memory_allocation(trace(pipeline("predict", wrapper)))
    rows = {row["operator"]: row for row in table.iter_rows(named=True)}
    assert table["operator"][0] == "aten::mkldnn_convolution"
    assert rows["aten::mkldnn_convolution"]["temporary_bytes"] == 80
    assert rows["aten::conv2d"]["temporary_bytes"] == 0
    assert rows["aten::conv2d"]["allocated_bytes"] == 120
    assert rows["aten::empty"]["own_allocated_bytes"] == 120
    assert rows["aten::conv2d"]["kept_bytes"] == 40
    assert rows["aten::mkldnn_convolution"]["temporary_share_pct"] == pytest.approx(100 * 80 / 120)


def test_parameters_of_modules_called_inside_belong_to_these() -> None:
    inner = with_memory(layer("fc", "Linear", module_path="fc", parameter_bytes=400), [64])
    again = with_memory(layer("fc", "Linear", module_path="fc", parameter_bytes=400), [64])
    about: dict[str, Any] = {"module_path": "", "parameter_bytes": 500, "buffer_bytes": 12}
    net = with_memory(layer("net", "Net", inner, again, **about), [64, 64, 8, -64])
    table = layer_memory(trace(pipeline("predict", net)))
    rows = {row["layer"]: row for row in table.iter_rows(named=True)}
    assert rows[""]["parameter_bytes"] == 100
    assert rows[""]["buffer_bytes"] == 12
    assert rows[""]["allocated_bytes"] == 8
    assert (rows["fc"]["parameter_bytes"], rows["fc"]["allocated_bytes"]) == (400, 128)
    assert (rows["fc"]["calls"], rows["fc"]["peak_bytes"]) == (2, 64)


def test_sizes_that_are_not_recorded_are_null() -> None:
    node = layer("fc", "Linear", op("aten::mm"), module_path="fc")
    node.attributes |= {"allocated_bytes": 10, "freed_bytes": 0, "buffer_bytes": None}
    measured = trace(pipeline("predict", node))
    assert layer_memory(measured)["buffer_bytes"].to_list() == [None]
    assert not memory_peak(measured)["recorded"].any()
    with pytest.raises(xsp.AnalysisError, match="no allocations: measure with levels=2"):
        memory_peak(trace(pipeline("predict", op("aten::mm"))))


@pytest.fixture(scope="module")
def mlp() -> Trace:
    """Return a model whose tensors are known: 64 rows of 256 and of 512 floats."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 512), nn.Linear(512, 2))
    with torch.inference_mode():
        return xsp.measure(model, torch.ones(64, 128), levels=2, runs=3)


SMALL, LARGE = 64 * 256 * 4, 64 * 512 * 4


def test_the_peak_of_a_real_model_is_the_layer_with_the_largest_input_and_output(
    mlp: Trace,
) -> None:
    table = memory_peak(mlp)
    assert table["peak_bytes"][0] == SMALL + LARGE
    alive = dict(table.select("layer", "alive_bytes").iter_rows())
    assert alive == {"2": LARGE, "1": SMALL}


def test_the_layers_of_a_real_model_have_their_parameters_and_activations(mlp: Trace) -> None:
    table = layer_memory(mlp).filter(pl.col("layer") != "")
    assert table["parameter_bytes"].to_list() == [
        (128 * 256 + 256) * 4, 0, (256 * 512 + 512) * 4, (512 * 2 + 2) * 4,
    ]  # fmt: skip
    assert table["kept_bytes"].to_list() == [SMALL, SMALL, LARGE, 64 * 2 * 4]
    assert layer_memory(mlp)["parameter_bytes"][0] == 0
