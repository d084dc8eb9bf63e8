"""Marks in real programs: `record_function`, `xsp.span`, autograd functions, checkpoints, DDP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

import xsp

Nested = list[Any]  # names, and pairs of a name and what lies in the span of that name


class Block(nn.Module):  # type: ignore[misc]
    """Calls its layers as the test's function says."""

    def __init__(self, call: Callable[[Block, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self, x)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(2, 4)


def measured(function: Callable[..., Any], *args: Any) -> xsp.Trace:
    trace = xsp.measure(function, *args, levels=2, runs=2)
    trace.check()
    assert_no_time_counts_twice(trace.spans)
    for _, run in trace.typical_runs.group_by("pass"):
        measured_as = run.rename({"start_ns": "measured_start_ns", "end_ns": "measured_end_ns"})
        assert_no_time_counts_twice(measured_as)
    return trace


def assert_no_time_counts_twice(spans: pl.DataFrame) -> None:
    """Verify that children lie in their parent, one after the other on each thread."""
    began, ended = pl.col("measured_start_ns"), pl.col("measured_end_ns")
    around = spans.select(parent_id="span_id", begin=began, end=ended, home="thread")
    inside = spans.join(around, on="parent_id").filter(pl.col("thread") == pl.col("home"))
    assert inside.filter((began < pl.col("begin")) | (ended > pl.col("end"))).is_empty()
    lane = ["parent_id", "thread"]
    ordered = inside.sort(*lane, began, ended)
    assert ordered.filter(began < ended.shift(1).over(lane)).is_empty()


def tree(trace: xsp.Trace, *marks: str) -> Nested:
    """List the root's region spans, layers and the operators named in `marks`."""
    spans = trace.spans
    parent = dict(zip(spans["span_id"], spans["parent_id"], strict=True))
    shown = {
        span["span_id"]
        for span in spans.select("span_id", "kind", "name").to_dicts()
        if span["kind"] != "op" or span["name"] in marks
    }
    below: dict[int, Nested] = {}
    for number in reversed(spans["span_id"].to_list()[1:]):
        if number in shown:
            around = parent[number]
            while around not in shown:
                around = parent[around]
            name = spans.row(by_predicate=pl.col("span_id") == number, named=True)["name"]
            inside = below.pop(number, [])
            below.setdefault(around, []).insert(0, (name, inside) if inside else name)
    return below.get(spans["span_id"][0], [])


def test_marks_of_pytorch_and_of_xsp_hold_the_layers_that_they_enclose(x: torch.Tensor) -> None:
    def call(block: Block, x: torch.Tensor) -> torch.Tensor:
        with record_function("encoder"):
            x = block.b(block.a(x))
        with xsp.span("decoder"):
            return block.c(x)

    with torch.inference_mode():
        found = tree(measured(Block(call).eval(), x), "encoder")
    assert found == [("Block", [("encoder", ["a", "b"]), ("decoder", ["c"])])]


def test_marks_nest_in_each_other_both_ways(x: torch.Tensor) -> None:
    def call(block: Block, x: torch.Tensor) -> torch.Tensor:
        with record_function("outer"), xsp.span("inner"):
            x = block.a(x)
        with xsp.span("outer"), record_function("inner"):
            x = block.b(x)
            with xsp.span("innermost"):
                return block.c(x)

    with torch.inference_mode():
        found = tree(measured(Block(call).eval(), x), "outer", "inner")
    inner = ("inner", ["b", ("innermost", ["c"])])
    assert found == [("Block", [("outer", [("inner", ["a"])]), ("outer", [inner])])]


def test_a_marked_training_step_keeps_its_layers_in_both_passes(x: torch.Tensor) -> None:
    def call(block: Block, x: torch.Tensor) -> torch.Tensor:
        with record_function("encoder"):
            x = block.a(x)
        with xsp.span("decoder"):
            return block.b(x)

    block = Block(call)

    def step() -> None:
        with record_function("forward pass"):
            loss = block(x).sum()
        with record_function("backward pass"):
            loss.backward()

    assert tree(measured(step), "encoder", "forward pass", "backward pass") == [
        ("forward pass", [("forward", [("Block", [("encoder", ["a"]), ("decoder", ["b"])])])]),
        ("backward pass", [("backward", [("Block", ["b", "a"])])]),
    ]


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_computed_again_lie_in_the_backward_operator_that_asks_for_them(
    x: torch.Tensor, reentrant: bool
) -> None:
    def call(block: Block, x: torch.Tensor) -> torch.Tensor:
        with record_function("checkpointed"):
            return checkpoint(block.b, block.a(x), use_reentrant=reentrant)

    block = Block(call)
    trace = measured(lambda: block(x).sum().backward())
    forward = tree(trace, "checkpointed", "CheckpointFunction")[0]
    inside = ["a", ("CheckpointFunction", ["b"])] if reentrant else ["a", "b"]
    assert forward == ("forward", [("Block", [("checkpointed", inside)])])
    again = trace.spans.filter(pl.col("path").str.contains(r"/backward/.*Backward.*/b$"))
    assert again["kind"].to_list() == ["layer"]


DATA_PARALLEL = """
import sys
import torch, torch.distributed as dist, xsp
from torch import nn

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
x = torch.ones(2, 4)
xsp.measure(lambda: model(x).sum().backward(), levels=2, runs=2).save(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_gloo_available(), reason="this PyTorch has no gloo")
def test_the_marks_of_data_parallel_training_hold_the_model(tmp_path: Path) -> None:
    # In a process of its own, for gloo keeps its sockets as long as the process lives.
    files = [str(tmp_path / name) for name in ("rendezvous", "ddp.xsp")]
    subprocess.run([sys.executable, "-c", DATA_PARALLEL, *files], check=True, capture_output=True)
    trace = xsp.load(files[1])
    assert_no_time_counts_twice(trace.spans)
    (name, below), *_ = tree(trace, "DistributedDataParallel.forward")
    assert name == "forward"
    module = ("module", ["0", "1"])
    assert below == [("DistributedDataParallel", [("DistributedDataParallel.forward", [module])])]


def test_a_mark_in_a_model_that_a_coroutine_calls_lies_in_the_model(x: torch.Tensor) -> None:
    def call(block: Block, x: torch.Tensor) -> torch.Tensor:
        with xsp.span("decoder"):
            return block.a(x)

    block = Block(call).eval()

    async def serve() -> None:
        with xsp.span("request"), torch.inference_mode():
            block(x)

    found = tree(measured(lambda: asyncio.run(serve())))
    assert found == [("request", [("predict", [("Block", [("decoder", ["a"])])])])]
