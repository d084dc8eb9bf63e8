"""Modules nested by path, on known answers, random trees and a tiny real model."""

from __future__ import annotations

import polars as pl
import pytest
from samples import Node, op, pipeline, trace

import xsp
from xsp.analyses import module_latency


def module(path: str, kind: str, *children: Node, own_ns: int = 0) -> Node:
    name = path.rsplit(".", 1)[-1] or kind
    about = {"module_path": path, "module_class": kind, "phase": "forward"}
    return Node("layer", name, own_ns, list(children), about)


def blocks(*sizes: int) -> Node:
    """Return a model whose blocks are in a list, which is no module that is called."""
    made = [
        module(f"h.{i}", "Block", module(f"h.{i}.mlp", "Mlp", op("aten::mm", own_ns=size)),
               own_ns=10)
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    return pipeline("predict", module("", "Net", *made, own_ns=100), own_ns=0)


def test_each_module_and_each_name_on_the_way_is_a_row() -> None:
    table = module_latency(trace(blocks(500, 700)))
    assert table["module"].to_list() == ["", "h", "h.0", "h.0.mlp", "h.1", "h.1.mlp"]
    assert table["depth"].to_list() == [0, 1, 2, 3, 2, 3]
    assert table["latency_ns"].to_list() == [1_320, 1_220, 510, 500, 710, 700]
    assert table["own_ns"].to_list() == [100, None, 10, 500, 10, 700]
    assert table["calls"].to_list() == [1, 0, 1, 1, 1, 1]
    assert table["own_ns"].sum() == 1_320


def test_repeated_blocks_fold_into_one_row() -> None:
    table = module_latency(trace(blocks(500, 700, 900)), fold=True)
    assert table["module"].to_list() == ["", "h", "h.*", "h.*.mlp"]
    assert table["modules"].to_list() == [1, 1, 3, 3]
    assert table["latency_ns"].to_list() == [2_230, 2_130, 2_130, 2_100]
    assert table["share_pct"].to_list()[0] == pytest.approx(100)


def test_layers_of_a_real_model_are_all_there() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    measured = xsp.measure(model, torch.ones(4, 8), levels=2, runs=3)
    table = module_latency(measured)
    assert table["module"].to_list() == ["", "0", "1", "2"]
    layers = measured.spans.filter(pl.col("kind") == "layer")["latency_ns"]
    assert table["latency_ns"].to_list() == pytest.approx(layers.to_list())


def test_devices_work_for_a_module_and_for_all_below() -> None:
    worked = [{"device_ns": ns} for ns in (900.0, 300.0, 600.0)]
    blocks = [module(f"h.{i}", "Block", own_ns=10) for i in range(2)]
    for block, columns in zip(blocks, worked[1:], strict=True):
        block.columns = columns
    net = module("", "Net", *blocks, own_ns=100)
    net.columns = worked[0]
    root = pipeline("predict", net)
    root.columns = worked[0]
    table = module_latency(trace(root))
    assert table["module"].to_list() == ["", "h", "h.0", "h.1"]
    assert table["device_ns"].to_list() == [900, 900, 300, 600]
    assert table["device_share_pct"].to_list() == pytest.approx([100, 100, 100 / 3, 200 / 3])
    assert module_latency(trace(pipeline("p", net.children[0])))[
        "device_ns"
    ].unique().to_list() == [300]
    assert module_latency(trace(pipeline("p", module("", "Net"))))["device_ns"].to_list() == [None]
