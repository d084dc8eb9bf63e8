"""Records of an NVIDIA H200 (CUDA 13.0, PyTorch 2.11) become trees.

The recordings are of the functions of tests/gpu/scenes.py, by `scripts/gpu recordings`.
"""

from __future__ import annotations

import re
import zipfile
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from xsp.testing import replay
from xsp.trace import Trace
from xsp.trace.coverage import attribution

KEPT = Path(__file__).parents[3] / "data" / "cupti"


@cache
def trace(name: str) -> Trace:
    return replay(KEPT / f"{name}.xsprec")


def spans(name: str, kind: str) -> pl.DataFrame:
    found = trace(name).spans
    above = found.select(parent_id="span_id", above="name", above_kind="kind")
    return found.filter(kind=kind).join(above, on="parent_id", how="left").unnest("attributes")


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.xsprec")), ids=lambda path: path.stem)
def test_every_kernel_lies_under_an_operator(path: Path) -> None:
    found = attribution(trace(path.stem).spans)
    assert found is not None
    assert found.operator == pytest.approx(1.0)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.xsprec")), ids=lambda path: path.stem)
def test_recordings_tell_nothing_of_who_made_them(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert not re.findall(rb"/(?:work|root|tmp/site|opt)/[^\"\0]*", content)
    assert b'"host_id": ""' in content or b'"host_id":""' in content


def test_each_kernel_says_what_it_ran_with() -> None:
    kernels = spans("attention", "kernel")
    assert kernels.height == 44
    for known in ("grid", "block", "registers", "full_name"):
        assert kernels[known].null_count() == 0, known
    assert (kernels["latency_ns"] > 500).all()
    root = trace("attention").spans.row(0, named=True)
    assert root["device_ns"] == pytest.approx(
        kernels["latency_ns"].sum(), rel=0.02
    )  # with what is set


def test_products_of_cublas_hold_their_launches_and_know_their_operations() -> None:
    calls = spans("attention", "call").filter(name="cublasLtMatmul")
    assert calls.height == 16
    # Eight sequences of 64 tokens, 256 wide: the first product makes queries, keys and values.
    assert calls["flops"][0] == 2 * (8 * 64) * 256 * (3 * 256)
    launches = spans("attention", "launch")
    assert launches.filter(above="cublasLtMatmul").height >= 16


def test_calls_of_cudnn_end_where_it_says_so() -> None:
    calls = spans("convolutions", "call").filter(name="cudnnBackendExecute")
    assert calls.height == 20
    assert set(calls["placement"]) == {"ends"}
    assert calls["latency_ns"].null_count() == 0
    launches = spans("convolutions", "launch").filter(above="cudnnBackendExecute")
    assert launches["parent_id"].n_unique() == 20


def test_the_backward_pass_on_autograds_thread_lies_in_what_waits_for_it() -> None:
    layers = spans("training", "layer").filter(pl.col("phase") == "backward")
    assert layers.filter(above="backward", name="Sequential").height == 1
    assert spans("training", "region").filter(name="backward")["device_ns"][0] > 500_000
    on_engine = spans("training", "op").filter(pl.col("name").str.starts_with("autograd::engine"))
    assert set(on_engine.filter(above_kind="region")["above"]) == {"backward"}


@pytest.mark.parametrize("name", ["graphed", "reduced"])
def test_kernels_of_a_graph_lie_under_what_captured_them(name: str) -> None:
    kernels = spans(name, "kernel").filter(pl.col("captured_node").is_not_null())
    assert kernels.height >= 40
    assert not any("GraphLaunch" in above for above in kernels["above"])


def test_names_of_generated_kernels_list_the_operators() -> None:
    kernels = spans("compiled", "kernel")
    triton = kernels.filter(pl.col("name").str.starts_with("triton_"))
    assert triton.height == 13
    assert triton["name"].str.contains("fused").all()


def test_streams_are_told_apart() -> None:
    assert spans("two_streams", "kernel")["stream"].n_unique() == 2
