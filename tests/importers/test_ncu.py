"""Nsight Compute's pages, as `ncu --csv` prints them, and the metrics of their kernels."""

from __future__ import annotations

import codecs
import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import TraceFormatError
from xsp.importers import KernelMetrics, Source
from xsp.reading.importers.ncu import NsightCompute
from xsp.reading.importers.ncu.number import numbers

REAL = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

KERNEL = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
DETAILS = (*KERNEL, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
GEMM = "void gemm<float>(float const*, int)"


def line(values: Sequence[Any]) -> str:
    return ",".join(f'"{value}"' for value in values)


def kernel(number: int = 0, name: str = GEMM) -> tuple[Any, ...]:
    return (number, 7, "python", "box", name, 1, 13, "(128, 1, 1)", "(64, 2, 1)", 0, "8.0")


def details(*metrics: tuple[str, str, str], number: int = 0, name: str = GEMM) -> list[str]:
    return [line((*kernel(number, name), "Section", *metric)) for metric in metrics]


def page(*lines: str, header: Sequence[str] = DETAILS, end: str = "\n") -> str:
    return end.join([line(header), *lines]) + end


def raw(units: Sequence[str], *rows: Sequence[str], names: Sequence[str]) -> str:
    head = (*("" for _ in KERNEL), *units)
    body = [line((*kernel(number), *row)) for number, row in enumerate(rows)]
    return page(line(head), *body, header=(*KERNEL, *names))


def read(tmp_path: Path, content: str | bytes) -> KernelMetrics:
    path = tmp_path / "kernels"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    source = Source(path)
    assert NsightCompute().recognizes(source)
    (metrics,) = NsightCompute().read(source)
    assert isinstance(metrics, KernelMetrics)
    return metrics


def row(metrics: KernelMetrics, at: int = 0) -> dict[str, Any]:
    return metrics.rows.row(at, named=True)


def codes(metrics: KernelMetrics) -> list[str]:
    return [warning.code for warning in metrics.warnings]


def test_details_page_has_a_row_per_kernel(tmp_path: Path) -> None:
    first = details(
        ("Duration", "ns", "12,345"),
        ("L2 Hit Rate", "%", "61.84"),
        ("Achieved Occupancy", "%", "48.5"),
        ("Registers Per Thread", "register/thread", "96"),
        ("Dynamic Shared Memory Per Block", "Kbyte/block", "32.77"),
        ("Function Cache Configuration", "", "CachePreferNone"),
    )
    second = details(("Duration", "ns", "1,002,003"), number=1, name="relu(int)")
    metrics = read(tmp_path, page(*first, *second))
    assert metrics.rows["name"].to_list() == ["gemm", "relu"]
    assert metrics.rows["duration_ns"].to_list() == [12_345, 1_002_003]
    told = row(metrics)
    assert told["attr.full_name"] == GEMM
    assert (told["attr.grid"], told["attr.block"]) == ([64, 2, 1], [128, 1, 1])
    assert (told["device"], told["stream"], told["attr.context"]) == (0, 13, 1)
    assert told["attr.achieved_occupancy_pct"] == 48.5
    assert told["attr.registers"] == 96
    assert told["attr.dynamic_shared_bytes"] == 32_770
    assert told["attr.ncu.l2_hit_rate_pct"] == 61.84
    assert told["attr.ncu.function_cache_configuration"] == "CachePreferNone"
    assert row(metrics, 1)["attr.ncu.l2_hit_rate_pct"] is None
    assert metrics.environment == {"host": "box", "process": "python", "compute_capability": "8.0"}
    assert not metrics.warnings


SASS = [f"{width}{name}" for width in "dfh" for name in ("add", "mul", "fma")]


def counters(*names: str) -> list[str]:
    return [f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in names]


def test_flops_are_all_additions_and_multiplications(tmp_path: Path) -> None:
    values = [str(10**at) for at in range(9)]
    metrics = read(tmp_path, raw([""] * 9, values, names=counters(*SASS)))
    # add, mul and fma of each width: a fused multiply-add is two operations.
    assert row(metrics)["attr.flops"] == 211_211_211
    assert codes(metrics) == ["no-tensor-cores"]


def test_what_is_printed_around_the_table_is_passed_over(tmp_path: Path) -> None:
    text = (
        '==PROF== Connected to process 7\nloss: "0.5, 1"\n"stray quote\n'
        + page(*details(("Duration", "ns", "5")))
        + "==PROF== Disconnected from process 7\nbye, bye\n"
    )
    assert read(tmp_path, text).rows["duration_ns"].to_list() == [5]


@pytest.mark.parametrize(
    "encode",
    [
        pytest.param(lambda text: codecs.BOM_UTF8 + text.encode(), id="byte order mark"),
        pytest.param(lambda text: text.replace("\n", "\r\n").encode(), id="carriage returns"),
        pytest.param(lambda text: text.encode("utf-16"), id="UTF-16, as PowerShell writes it"),
        pytest.param(lambda text: text.encode("latin-1"), id="Latin-1"),
        pytest.param(lambda text: gzip.compress(text.encode()), id="gzip"),
        pytest.param(lambda text: text.rstrip("\n").encode(), id="no line end"),
    ],
)
def test_encodings(tmp_path: Path, encode: Any) -> None:
    text = page(*details(("Größe", "", "1"), ("Duration", "\u00b5s", "1\u00a0234,5")))
    assert read(tmp_path, encode(text)).rows["duration_ns"].to_list() == [1_234_500]


@pytest.mark.parametrize("kept", range(1, 40))
def test_a_value_that_is_cut_short_is_left_out(tmp_path: Path, kept: int) -> None:
    whole = page(*details(("Duration", "us", "7,000.5"), ("L2 Hit Rate", "%", "61,234.25")))
    metrics = read(tmp_path, whole[:-kept])
    assert row(metrics)["duration_ns"] == 7_000_500
    rate = row(metrics).get("attr.ncu.l2_hit_rate_pct")
    assert rate == (61_234.25 if kept == 1 else None)


def test_damaged_values_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [
        *details(("Duration", "ns", "-7"), ("SM Busy", "%", "4.5")),
        *details(("Duration", "ns", "nan"), ("SM Busy", "%", "4,5,6"), number=1),
        *details(("Duration", "ns", "8"), number=2),
    ]
    metrics = read(tmp_path, page(*lines))
    assert metrics.rows["duration_ns"].to_list() == [None, None, 8]
    assert metrics.rows["attr.ncu.sm_busy_pct"].to_list() == [4.5, None, None]
    assert sorted(codes(metrics)) == ["negative-duration", "not-measured", "unreadable-number"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        '"Time (%)","Total Time (ns)","Instances","Name"\n"1","2","3","gemm"\n',
        '{"traceEvents": [{"name": "ID,Kernel Name,"}]}',
        '[{"cat": "Kernel Name"}]',
    ],
)
def test_other_files_are_not_recognized(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    assert not NsightCompute().recognizes(Source(path))


def test_a_summary_has_no_single_kernels(tmp_path: Path) -> None:
    header = ("Process ID", "Process Name", "Kernel Name", "Invocations", "Metric Name", "Average")
    with pytest.raises(TraceFormatError, match="without --print-summary"):
        read(tmp_path, page(line(header), header=header))


@pytest.mark.skipif(not (REAL / "ncu").exists(), reason="needs real traces (XSP_TRACES)")
def test_the_real_file() -> None:
    source = Source(REAL / "ncu" / "t4-copy.csv")
    assert NsightCompute().recognizes(source)
    (metrics,) = NsightCompute().read(source)
    assert isinstance(metrics, KernelMetrics)
    told = row(metrics)
    assert (told["name"], told["duration_ns"]) == ("copy_blocked", 21_058_944)
    assert told["attr.achieved_occupancy_pct"] == 96.26
    assert told["attr.ncu.dram_frequency_hz"] == 4_963_609_951.19
    assert told["attr.ncu.memory_throughput_bytes_per_s"] == 196_456_177_859.63
    assert len(told["attr.ncu.rules"]) == 11
    assert len([name for name in told if name.startswith("attr.ncu.")]) == 73
    assert not metrics.warnings


# Numbers

LOCALES = {
    "C": ("", "."),
    "en": (",", "."),
    "de": (".", ","),
    "fr": ("\u202f", ","),
    "sv": ("\u00a0", ","),
    "ch": ("'", "."),
    "si": (" ", "."),
}


def written(value: float, locale: str, decimals: int) -> str:
    group, point = LOCALES[locale]
    text = f"{value:,.{decimals}f}"
    return text.replace(",", "\0").replace(".", point).replace("\0", group)


@given(
    st.sampled_from(sorted(LOCALES)),
    st.lists(
        st.tuples(
            st.floats(0, 1e12, allow_subnormal=False).map(lambda value: round(value, 3)),
            st.integers(0, 3),
        ),
        min_size=1,
    ),
)
def test_numbers_are_read_as_they_were_written(locale: str, drawn: list[tuple[float, int]]) -> None:
    values = [float(f"{value:.{decimals}f}") for value, decimals in drawn]
    texts = [written(value, locale, decimals) for value, decimals in drawn]
    found = numbers([*texts, written(1_234_567.25, locale, 2)])
    assert not found.ambiguous.any()
    assert found.values.to_list() == [*values, 1_234_567.25]


@given(st.lists(st.text("0123456789.,' -+eE\u00a0n/a%", max_size=12)))
def test_no_text_makes_reading_fail(texts: list[str]) -> None:
    found = numbers(texts)
    assert len(found.values) == len(found.ambiguous) == len(found.unknown) == len(texts)
    assert not (found.values.is_not_null() & (found.ambiguous | found.unknown)).any()
