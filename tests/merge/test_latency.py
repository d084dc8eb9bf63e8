"""Why a latency is not exact, of runs merged as they are when a model is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import gpu
import polars as pl
import pytest
from gpu import Gpu
from simulate import Machine, resnet

from xsp.evaluation.run import Run, ladder
from xsp.level import Kind
from xsp.merge.assembly import Merged, merge

FEW, COLD = ["few"], ["cold", "few"]


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
    return {problem.code for problem in merged.problems}


def test_five_runs_of_every_rung_are_exact() -> None:
    merged = merge(simulated(5))
    assert reasons(merged) == {"pipeline": None, "layer": None, "op": None}


def test_four_runs_of_a_rung_are_few() -> None:
    runs = [run for run in simulated(5) if run.rung.name != "layer" or run.round < 4]
    merged = merge(runs)
    assert reasons(merged) == {"pipeline": None, "layer": FEW, "op": None}
    assert "carries-overhead" not in codes(merged)


def test_a_rung_that_only_warmed_up_is_cold() -> None:
    runs = [
        replace(run, round=-1) if run.rung.name == "op" else run
        for run in simulated(5)
        if run.rung.name != "op" or run.round == 0
    ]
    assert reasons(merge(runs)) == {"pipeline": None, "layer": None, "op": COLD}


def test_one_run_that_is_not_the_first_makes_a_rung_warm() -> None:
    runs = [replace(run, round=min(run.round - 1, 0)) for run in simulated(2)]
    assert {run.round for run in runs} == {-1, 0}
    assert reasons(merge(runs)) == {"pipeline": FEW, "layer": FEW, "op": FEW}


@pytest.mark.parametrize("process", [0, 1, 7])
def test_a_first_evaluation_is_cold_in_any_process(process: int) -> None:
    runs = [replace(run, round=-1, process=process) for run in simulated(1)]
    assert reasons(merge(runs)) == {"pipeline": COLD, "layer": COLD, "op": COLD}


def test_latencies_of_a_deeper_rung_carry_overhead() -> None:
    merged = merge([run for run in simulated(5) if run.rung.name != "layer"])
    assert reasons(merged) == {"pipeline": None, "layer": ["carried"], "op": None}
    assert "carries-overhead" in codes(merged)


def without(run: Run, name: str) -> Run:
    """Return the run as if the spans of a name, which must be innermost, had not been there."""
    assert run.rows is not None
    left = run.rows.filter(pl.col("name") != name)
    place = {row: i for i, row in enumerate((run.rows["name"] != name).arg_true())}
    return replace(run, rows=left.with_columns(pl.col("parent").replace(place)))


def lacking(runs: Sequence[Run], share: float) -> list[Run]:
    return [
        without(run, "aten::mkldnn") if run.rung.name == "op" and run.round < share * 20 else run
        for run in runs
    ]


@pytest.mark.parametrize(("share", "said"), [(0.05, None), (0.1, ["varies"])])
def test_a_span_that_many_runs_lack_varies(share: float, said: list[str] | None) -> None:
    spans = merge(lacking(simulated(20), share)).spans.unnest("attributes")
    varying = spans.filter(name="aten::mkldnn")
    assert varying["runs"].unique().to_list() == [round(20 * (1 - share))]
    assert varying["inexact"].unique().to_list() == [said]
    assert spans.filter(pl.col("name") != "aten::mkldnn")["exact"].all()


def test_kernels_have_their_own_times_and_are_exact_from_five_runs_on() -> None:
    few, enough = (reasons(merge(Gpu(gpu.transformer()).measure(n))) for n in (4, 5))
    assert few["kernel"] == FEW
    assert enough["kernel"] is None


def test_a_latency_that_is_not_known_has_no_reason() -> None:
    kinds = [Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL]
    call = gpu.Step(Kind.CALL, "cublasSgemm", (gpu.launch(gpu.Work()),), endless=True)
    device = Gpu([gpu.Step(Kind.OP, "aten::mm", (call,))])
    merged = merge([device.run(rung, 0) for rung in ladder(kinds)])
    row = merged.spans.filter(kind="call").unnest("attributes")
    assert row.select("latency_ns", "exact", "inexact").row(0) == (None, None, None)
    assert "carries-overhead" not in codes(merged)
