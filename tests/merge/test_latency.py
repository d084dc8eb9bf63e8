"""Why a latency is not exact, of runs merged as they are when a model is measured."""

from __future__ import annotations

from dataclasses import replace

import gpu
import polars as pl
from gpu import Gpu
from simulate import Machine, resnet

from xsp.level import Kind
from xsp.matching.run import Run, ladder
from xsp.reading.merge.assembly import Merged, merge

FEW, COLD = ["few_samples"], ["warm_up_only", "few_samples"]


def simulated(rounds: int) -> list[Run]:
    return Machine(resnet()).measure(rounds)[0]


def reasons(merged: Merged) -> dict[str, list[str] | None]:
    """Return the reasons by kind of span; all spans of a kind must have the same ones."""
    spans = merged.spans.unnest("attributes")
    assert (spans["exact"] == spans["inexact"].is_null()).all()
    found = spans.group_by("kind", maintain_order=True).agg(pl.col("inexact").unique())
    assert (found["inexact"].list.len() == 1).all()
    return {kind: lists[0] for kind, lists in found.rows()}


def codes(merged: Merged) -> set[str]:
    return {warning.code for warning in merged.warnings}


def test_five_runs_of_every_pass_are_exact() -> None:
    merged = merge(simulated(5))
    assert reasons(merged) == {"region": None, "layer": None, "op": None}


def test_a_pass_that_only_warmed_up_is_cold() -> None:
    runs = [
        replace(run, round=-1) if run.pass_.name == "op" else run
        for run in simulated(5)
        if run.pass_.name != "op" or run.round == 0
    ]
    assert reasons(merge(runs)) == {"region": None, "layer": None, "op": COLD}


def test_latencies_of_a_deeper_pass_carry_overhead() -> None:
    merged = merge([run for run in simulated(5) if run.pass_.name != "layer"])
    assert reasons(merged) == {"region": None, "layer": ["includes_overhead"], "op": None}
    assert "carries-overhead" in codes(merged)


def test_a_latency_that_is_not_known_has_no_reason() -> None:
    kinds = [Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL]
    call = gpu.Step(Kind.CALL, "cublasSgemm", (gpu.launch(gpu.Work()),), endless=True)
    device = Gpu([gpu.Step(Kind.OP, "aten::mm", (call,))])
    merged = merge([device.run(pass_, 0) for pass_ in ladder(kinds)])
    row = merged.spans.filter(kind="call").unnest("attributes")
    assert row.select("latency_ns", "exact", "inexact").row(0) == (None, None, None)
    assert "carries-overhead" not in codes(merged)
