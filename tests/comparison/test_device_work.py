"""What devices did is compared by kernel, by operator and its shapes, and by span."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from recorded_steps import recorded
from samples import Node, pipeline, trace

import xsp
from xsp.answer.comparison import parse_condition
from xsp.show.cli import app as cli
from xsp.trace import Trace

FC, HEAD = "fc/aten::mm/gemm", "head/aten::mm/gemm_head"
RARE = "norm/aten::fill_/fill"


def steps(*fc_ns: int, more: Mapping[str, int] | None = None) -> Trace:
    """Return a recording in whose steps the kernel of `fc` takes so long."""
    return recorded(*({FC: length, HEAD: 50_000, **(more or {})} for length in fc_ns))


def by(found: xsp.Comparison, sort: str) -> dict[str, tuple[float, str | None]]:
    """Return difference in ns and verdict by kernel or operator."""
    rows = found.by_device.filter(pl.col("by") == sort)
    return {
        f"{row['kernel'] or row['operator']} {row['shapes'] or ''}".strip(): (
            row["difference_ns"],
            row["verdict"],
        )
        for row in rows.iter_rows(named=True)
    }


BEFORE = steps(100_000, 101_000, 102_000, 100_000, 102_000, 101_000)
AFTER = steps(300_000, 301_000, 302_000, 300_000, 302_000, 301_000)


def test_the_kernel_the_operator_and_the_layer_that_got_slower_are_told() -> None:
    found = xsp.compare(BEFORE, AFTER, names=("before", "after"))
    assert by(found, "kernel") == {"gemm": (200_000, "slower"), "gemm_head": (0, "not significant")}
    assert by(found, "operator") == {"aten::mm": (200_000, "slower")}
    assert by(found, "operator and shapes") == {"aten::mm 64×64": (200_000, "slower")}
    own = {
        row["path_a"].rpartition("/")[2]: (row["own_device_difference_ns"], row["device_verdict"])
        for row in found.table.iter_rows(named=True)
    }
    assert own["fc"] == (200_000, "slower")
    assert own["Net"] == (0, "slower")
    assert own["head"] == (0, "not significant")
    assert set(found.table["verdict"]) == {"not significant"}
    assert ": no significant difference; device time 151 µs, 351 µs: " in found.text()
    assert "1 kernel unchanged within their error bars" in found.text()
    assert "| `Net/fc` | +200 ± 2 µs |" in found.markdown()
    assert "device time by kernel" in found._repr_html_()


def test_shapes_of_one_operator_are_apart() -> None:
    def sized(mm_ns: int) -> Trace:
        work = {"a/aten::mm/gemm": mm_ns, "b/aten::bmm/gemm": 40_000, "c/aten::mm/gemm": 30_000}
        return recorded(work, work, work, sizes={"aten::mm": 8, "aten::bmm": 16})

    found = xsp.compare(sized(20_000), sized(25_000))
    assert by(found, "operator and shapes") == {
        "aten::mm 8×8": (5_000, "slower"),
        "aten::bmm 16×16": (0, "not significant"),
    }
    assert by(found, "kernel") == {"gemm": (5_000, "slower")}


def test_what_one_recording_alone_has_is_told_as_that() -> None:
    more = {"norm/aten::norm/norm_kernel": 20_000}
    found = xsp.compare(steps(100_000, 100_000), steps(100_000, 100_000, more=more))
    assert by(found, "kernel")["norm_kernel"] == (20_000, None)
    (line,) = [line for line in found.text().splitlines() if line.endswith(" norm_kernel")]
    assert "only there" in line


def with_a_rare_kernel(fc_ns: int) -> Trace:
    """Return six steps, of which only the fourth, that of the middle latency, fills a tensor."""
    work = [{FC: fc_ns + 1_000 * number, HEAD: 50_000} for number in range(6)]
    work[3][RARE] = 1_000
    return recorded(*work)


def test_a_rare_kernel_takes_no_interval_away() -> None:
    found = xsp.compare(with_a_rare_kernel(100_000), with_a_rare_kernel(300_000))
    device = found.summary.filter(pl.col("quantity") == "device_ns").row(0, named=True)
    assert device["verdict"] == "slower"
    assert device["difference_low"] < 200_000 < device["difference_high"]
    assert by(found, "kernel")["fill"] == (0, "not significant")
    (outcome,) = parse_condition("device time > 5%").outcomes(found)
    assert outcome.holds


def test_a_rare_kernel_takes_no_interval_away_where_xsp_measured() -> None:
    def measured(gemm_ns: int) -> Trace:
        where = {"device": 0, "stream": 7}
        rare = where | {"latency_low_ns": None, "latency_high_ns": None}
        kernels = [Node("kernel", "gemm", gemm_ns, [], {}, where),
                   Node("kernel", "fill", 1_000, [], {}, rare)]  # fmt: skip
        root = pipeline("predict", *kernels, own_ns=500_000)
        root.columns = {"device_ns": gemm_ns + 1_000.0}
        return trace(root, intervals="across 3 processes")

    found = xsp.compare(measured(100_000), measured(200_000))
    device = found.summary.filter(pl.col("quantity") == "device_ns").row(0, named=True)
    assert (device["difference"], device["verdict"]) == (100_000, "slower")
    assert by(found, "kernel") == {"gemm": (100_000, "slower"), "fill": (0, "not significant")}


def test_of_single_steps_there_is_no_interval_and_that_is_said() -> None:
    found = xsp.compare(steps(100_000), steps(300_000), names=("a", "b"))
    assert by(found, "kernel") == {"gemm": (200_000, "unknown"), "gemm_head": (0, "unknown")}
    assert found.by_device["difference_low_ns"].null_count() == found.by_device.height
    assert any(
        note.startswith("a: it is one step, and there is no interval") for note in found.notes
    )
    assert "1 kernel with a difference below 1 % of the device time" in found.text()
    (outcome,) = parse_condition("kernel:gemm > 5%").outcomes(found)
    assert outcome.holds is None


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("device time > 5%", 5),
        ("layer:fc device time > 150us", 5),
        ("layer:fc device > 150us", 5),
        ("layer:fc > 5%", 0),
        ("layer:head device time > 5%", 0),
        ("kernel:gemm > 190%", 5),
        ("kernel:gemm > 210%", 0),
        ("operator:aten::mm > 5%", 5),
        ("operator:aten::nm > 5%", 3),
    ],
)
def test_a_pull_request_fails_for_what_a_device_does(
    condition: str, code: int, tmp_path: Path
) -> None:
    files = [
        str(trace.save(tmp_path / f"{name}.xsp"))
        for name, trace in {"before": BEFORE, "after": AFTER}.items()
    ]
    assert cli.run(["compare", *files, "--fail-if", condition]) == code


def test_a_trace_without_a_device_has_no_device_columns_to_show() -> None:
    host = recorded({}, {})
    found = xsp.compare(host, host)
    assert found.by_device.height == 0
    assert found.table["device_a_ns"].null_count() == found.table.height
    assert "device time" not in found.text()
    assert "device time" not in found.markdown()


def noisy(seed: int, factor: float = 1.0) -> Trace:
    """Return six steps of eight kernels, each with a spread of 1 % from step to step."""
    random = np.random.default_rng(seed)
    lengths = 20_000 + 3_000 * np.arange(8)
    work = []
    for _ in range(6):
        taken = lengths * np.where(np.arange(8) == 4, factor, 1.0) * random.normal(1, 0.01, 8)
        work.append({f"l{n}/op{n}/k{n}": round(each) for n, each in enumerate(taken)})
    return recorded(*work)


def test_equal_recordings_are_seldom_called_different() -> None:
    pairs = 40
    called = {"whole": 0, "kernel": 0}
    for seed in range(pairs):
        found = xsp.compare(noisy(2 * seed), noisy(2 * seed + 1))
        whole = found.summary.filter(pl.col("quantity") == "device_ns")["verdict"][0]
        called["whole"] += whole != "not significant"
        verdicts = {verdict for _, verdict in by(found, "kernel").values()}
        called["kernel"] += verdicts != {"not significant"}
    assert called["whole"] <= 0.05 * pairs
    assert called["kernel"] <= 0.05 * pairs


def test_five_percent_at_six_steps_is_found() -> None:
    pairs = 15
    found = [
        by(xsp.compare(noisy(2 * seed), noisy(2 * seed + 1, 1.05)), "kernel")["k4"][1]
        for seed in range(1_000, 1_000 + pairs)
    ]
    assert found.count("slower") >= 0.8 * pairs


def test_a_recording_keeps_the_latency_of_each_step() -> None:
    table = xsp.analyses.step_latency(steps(100_000, 200_000))
    assert table["step"].to_list() == ["ProfilerStep#0", "ProfilerStep#1"]
    assert table["latency_ns"].to_list() == [2_000_000, 2_000_000]
    assert table["device_ns"].to_list() == [150_000, 250_000]
    assert xsp.analyses.step_latency(recorded({}, {}))["device_ns"].to_list() == [None, None]
