"""Nsight Compute: pages as `ncu --csv` prints them in, metrics of kernels out."""

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
from xsp.importers.ncu import NsightCompute
from xsp.importers.ncu.number import numbers
from xsp.importers.ncu.unit import unit

REAL = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

KERNEL = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
DETAILS = (*KERNEL, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
RULES = (*DETAILS, "Rule Name", "Rule Type", "Rule Description")
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
    assert NsightCompute().recognises(source)
    (metrics,) = NsightCompute().read(source)
    assert isinstance(metrics, KernelMetrics)
    return metrics


def row(metrics: KernelMetrics, at: int = 0) -> dict[str, Any]:
    return metrics.rows.row(at, named=True)


def codes(metrics: KernelMetrics) -> list[str]:
    return [problem.code for problem in metrics.problems]


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
    assert not metrics.problems


def test_metrics_of_one_name_and_two_units_are_two_attributes(tmp_path: Path) -> None:
    lines = details(("Memory Throughput", "%", "61.84"), ("Memory Throughput", "Gbyte/s", "1.50"))
    told = row(read(tmp_path, page(*lines)))
    assert told["attr.ncu.memory_throughput_pct"] == 61.84
    assert told["attr.ncu.memory_throughput_bytes_per_s"] == 1.5e9


def test_rules_are_kept_in_words(tmp_path: Path) -> None:
    metric = line((*kernel(), "Section", "Duration", "us", "1.5"))
    rule = line((*kernel(), "Section", "", "", "", "Bottleneck", "OPT", "Use less, or more"))
    told = row(read(tmp_path, page(metric, rule, header=RULES)))
    assert told["attr.ncu.rules"] == ["Bottleneck: Use less, or more"]
    assert told["duration_ns"] == 1_500


def test_raw_page_has_units_in_a_line_of_their_own(tmp_path: Path) -> None:
    names = (
        *("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"),
        *("sm__warps_active.avg.pct_of_peak_sustained_active", "launch__func_cache_config"),
    )
    text = raw(
        ("Mbyte", "Kbyte", "usecond", "%", ""),
        ("2.50", "512.25", "1,234.50", "97.1", "CachePreferNone"),
        ("0.00", "1", "2.00", "n/a", "CachePreferL1"),
        names=names,
    )
    metrics = read(tmp_path, text)
    assert metrics.rows["attr.dram_read_bytes"].to_list() == [2_500_000, 0]
    assert metrics.rows["attr.dram_write_bytes"].to_list() == [512_250, 1_000]
    assert metrics.rows["duration_ns"].to_list() == [1_234_500, 2_000]
    assert metrics.rows["attr.achieved_occupancy_pct"].to_list() == [97.1, None]
    assert metrics.rows["attr.ncu.launch__func_cache_config"][1] == "CachePreferL1"
    (problem,) = metrics.problems
    assert problem.code == "not-measured"
    assert "1 value (sm__warps_active" in problem.message


def test_equal_lines_of_the_raw_page_are_kernels_of_their_own(tmp_path: Path) -> None:
    twice = line((*kernel(3), "5"))
    text = page(twice, twice, header=(*KERNEL, "launch__registers_per_thread"))
    assert read(tmp_path, text).rows["attr.registers"].to_list() == [5, 5]


SASS = [f"{width}{name}" for width in "dfh" for name in ("add", "mul", "fma")]


def counters(*names: str) -> list[str]:
    return [f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in names]


def test_flops_are_all_additions_and_multiplications(tmp_path: Path) -> None:
    values = [str(10**at) for at in range(9)]
    metrics = read(tmp_path, raw([""] * 9, values, names=counters(*SASS)))
    # add, mul and fma of each width: a fused multiply-add is two operations.
    assert row(metrics)["attr.flops"] == 211_211_211
    assert codes(metrics) == ["no-tensor-cores"]


def test_flops_are_unknown_where_a_part_was_not_counted(tmp_path: Path) -> None:
    metrics = read(tmp_path, raw([""] * 8, ["1"] * 8, names=counters(*SASS[1:])))
    assert "attr.flops" not in metrics.rows.columns
    text = raw([""] * 9, ["n/a", *["1"] * 8], ["1"] * 9, names=counters(*SASS))
    assert read(tmp_path, text).rows["attr.flops"].to_list() == [None, 12]


def test_operations_of_tensor_cores_are_added_where_counted(tmp_path: Path) -> None:
    names = [*counters(*SASS), "sm__ops_path_tensor_src_fp16_dst_fp32.sum"]
    names += ["sm__ops_path_tensor_src_int8.sum"]  # no floating-point operations
    metrics = read(tmp_path, raw([""] * 11, [*["0"] * 9, "4096", "77"], names=names))
    assert row(metrics)["attr.flops"] == 4_096
    assert not metrics.problems


def test_what_is_printed_around_the_table_is_passed_over(tmp_path: Path) -> None:
    text = (
        '==PROF== Connected to process 7\nloss: "0.5, 1"\n"stray quote\n'
        + page(*details(("Duration", "ns", "5")))
        + "==PROF== Disconnected from process 7\nbye, bye\n"
    )
    assert read(tmp_path, text).rows["duration_ns"].to_list() == [5]


def test_tables_one_after_the_other_are_of_different_kernels(tmp_path: Path) -> None:
    one = page(*details(("Duration", "ns", "5")))
    assert read(tmp_path, one + one).rows["duration_ns"].to_list() == [5, 5]


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


def test_cut_lines_are_counted(tmp_path: Path) -> None:
    whole = page(*details(("Duration", "ns", "7"), ("L2 Hit Rate", "%", "61.84")))
    assert codes(read(tmp_path, whole[:-4])) == ["cut-short"]
    short = raw(("",), ["1"], ["2"], names=["launch__registers_per_thread"]).rstrip('\n"2')
    metrics = read(tmp_path, short.rstrip(",") + "\n")
    assert codes(metrics) == ["cut-short"]
    assert metrics.rows.height == 1


def test_a_metric_that_is_told_twice_is_kept_once(tmp_path: Path) -> None:
    same = details(("Duration", "ns", "7"), ("Duration", "ns", "7"))
    metrics = read(tmp_path, page(*same))
    assert (row(metrics)["duration_ns"], codes(metrics)) == (7, [])
    metrics = read(tmp_path, page(*same, *details(("Duration", "ns", "9"))))
    assert (row(metrics)["duration_ns"], codes(metrics)) == (7, ["told-twice"])


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


def test_a_number_that_can_be_read_in_two_ways_is_left_out(tmp_path: Path) -> None:
    lines = details(("Duration", "ns", "12,345"), ("Threads", "thread", "7"))
    metrics = read(tmp_path, page(*lines))
    assert row(metrics)["duration_ns"] is None
    (problem,) = metrics.problems
    assert problem.code == "ambiguous-number"
    assert "duration_ns" in problem.message


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
def test_other_files_are_not_recognised(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    assert not NsightCompute().recognises(Source(path))


def test_a_summary_has_no_single_kernels(tmp_path: Path) -> None:
    header = ("Process ID", "Process Name", "Kernel Name", "Invocations", "Metric Name", "Average")
    with pytest.raises(TraceFormatError, match="without --print-summary"):
        read(tmp_path, page(line(header), header=header))


@pytest.mark.skipif(not (REAL / "ncu").exists(), reason="needs real traces (XSP_TRACES)")
def test_the_real_file() -> None:
    source = Source(REAL / "ncu" / "t4-copy.csv")
    assert NsightCompute().recognises(source)
    (metrics,) = NsightCompute().read(source)
    assert isinstance(metrics, KernelMetrics)
    told = row(metrics)
    assert (told["name"], told["duration_ns"]) == ("copy_blocked", 21_058_944)
    assert told["attr.achieved_occupancy_pct"] == 96.26
    assert told["attr.ncu.dram_frequency_hz"] == 4_963_609_951.19
    assert told["attr.ncu.memory_throughput_bytes_per_s"] == 196_456_177_859.63
    assert len(told["attr.ncu.rules"]) == 11
    assert len([name for name in told if name.startswith("attr.ncu.")]) == 73
    assert not metrics.problems


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


@given(st.sampled_from(sorted(LOCALES)), st.lists(st.integers(0, 10**9), min_size=1))
def test_numbers_are_never_read_wrongly(locale: str, drawn: list[int]) -> None:
    texts = [written(value, locale, 0) for value in drawn]
    found = numbers(texts)
    for value, read_as, ambiguous in zip(drawn, found.values, found.ambiguous, strict=True):
        assert read_as == value or (read_as is None and ambiguous)


@given(st.lists(st.text("0123456789.,' -+eE\u00a0n/a%", max_size=12)))
def test_no_text_makes_reading_fail(texts: list[str]) -> None:
    found = numbers(texts)
    assert len(found.values) == len(found.ambiguous) == len(found.unknown) == len(texts)
    assert not (found.values.is_not_null() & (found.ambiguous | found.unknown)).any()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0,123", 0.123),
        ("1234,567", 1234.567),
        ("12,34,567.5", 1_234_567.5),
        ("-1.5e+06", -1.5e6),
        ("1e400", None),
        ("12 (1; 5; 6)", 12.0),
        ("(1; 2)", None),
        ("7.5.1", None),
        ("\u0663", None),
    ],
)
def test_numbers_that_stand_alone(text: str, value: float | None) -> None:
    assert numbers([text]).values.to_list() == [value]


def test_texts_that_contradict_each_other_decide_nothing() -> None:
    found = numbers(["1.234,5", "1,234.5", "1,234"])
    assert found.values.to_list() == [1234.5, 1234.5, None]
    assert found.ambiguous.to_list() == [False, False, True]


@pytest.mark.parametrize("word", ["", "/", "byte/", "/s", "%/%", "Kernel", "\u00b5s/\u00b5s"])
def test_no_unit_makes_reading_fail(word: str) -> None:
    factor, name = unit(word)
    assert factor > 0
    assert " " not in name
