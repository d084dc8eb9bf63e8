from __future__ import annotations

import gpu
import numpy as np
import polars as pl
from gpu import Gpu, Step, Work, launch
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.merge.assembly import merge
from xsp.trace import integrity

WORKING = [kind.value for kind in DEVICE_ACTIVITIES]


def drawn(device: Gpu, rounds: int = 2) -> pl.DataFrame:
    spans = merge(device.measure(rounds)).spans
    integrity.check(spans)
    return spans


def assert_in_order(spans: pl.DataFrame) -> None:
    """Verify that what queued on a stream does so on the timeline, and has its own length."""
    queued = spans.filter(pl.col("kind").is_in(WORKING))
    length = (queued["end_ns"] - queued["start_ns"]).to_numpy()
    assert (np.abs(length - queued["latency_ns"].to_numpy()) <= 0.5).all()
    for _, stream in queued.group_by("device", "stream"):
        by_time = stream.sort("measured_start_ns")
        assert (by_time["start_ns"].to_numpy()[1:] >= by_time["end_ns"].to_numpy()[:-1]).all()


def assert_after_launch(spans: pl.DataFrame) -> None:
    executed = spans.filter(pl.col("device").is_not_null())
    launches = spans.filter(pl.col("kind") == "launch").unique("correlation_id", keep="last")
    pairs = executed.join(launches, on="correlation_id", suffix="_of_launch")
    assert (pairs["start_ns"] >= pairs["start_ns_of_launch"]).all()


@unhurried
@given(gpu.models(), st.booleans(), st.sampled_from([0, 40]), st.sampled_from([0.0, 0.2]))
def test_kernels_follow_their_launches_and_queue_on_their_streams(
    model: tuple[Step, ...], drain: bool, cost_ns: int, noise: float
) -> None:
    spans = drawn(Gpu(model, drain=drain, cost_ns=cost_ns, noise=noise))
    if noise == 0.0:  # else the shown run's launches and kernels are not those of the others
        assert_after_launch(spans)
    assert_in_order(spans)


def test_without_overhead_kernels_are_drawn_where_they_ran() -> None:
    spans = drawn(Gpu(gpu.transformer(), drain=False)).filter(pl.col("device").is_not_null())
    moved = (spans["start_ns"] - spans["measured_start_ns"]).abs().to_numpy()
    assert moved.max() <= 1


def test_kernels_move_with_their_launches() -> None:
    step = Step(Kind.OP, "mm", (launch(Work(length_ns=100, delay_ns=50)),), own_ns=2_000)
    costly = drawn(Gpu([step] * 5, cost_ns=10_000))
    kernels, launches = (costly.filter(pl.col("kind") == kind) for kind in ("kernel", "launch"))
    delay = (kernels["start_ns"] - launches["start_ns"]).to_list()
    assert delay == [50] * 5
    # Each evaluation is as long as five operators, and no longer as the profiler made it.
    assert costly["end_ns"][0] < 5 * 4_000
    assert costly["measured_end_ns"][0] > 5 * 20_000


def test_a_kernel_may_outlast_its_layer() -> None:
    slow = Step(Kind.LAYER, "fc", (launch(Work(length_ns=90_000)),))
    spans = drawn(Gpu([slow]))
    layer, kernel = (spans.row(i, named=True) for i in (1, 3))
    assert (layer["kind"], kernel["kind"]) == ("layer", "kernel")
    assert kernel["end_ns"] > layer["end_ns"] + 50_000


def test_a_kernel_without_launch_keeps_its_place() -> None:
    run = Gpu(gpu.transformer()).measure(1)[-1]
    assert run.rows is not None
    lost = run.rows.with_columns(correlation_id=pl.lit(None, pl.Int64))
    spans = merge([type(run)(run.rung, run.latency_ns, lost)]).spans
    integrity.check(spans)
    assert_in_order(spans)
