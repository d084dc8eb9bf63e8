"""oneDNN inside TensorFlow and XLA, whose copies print only if the environment said so."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from xsp.provider.contract import Records
from xsp_levels.library.onednn import provider as carrier
from xsp_levels.library.onednn.line import parse_header, parse_lines
from xsp_levels.library.onednn.provider import ClockReading, OneDnn, OneDnnRecords

DATA = Path(__file__).parents[3] / "data" / "onednn"
PRINTED = {"ONEDNN_VERBOSE": "profile_exec", "ONEDNN_VERBOSE_TIMESTAMP": "1"}


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        env={**os.environ, **environment},
    )


def rows(name: str) -> pl.DataFrame:
    lines = (DATA / name).read_bytes()
    begin = ClockReading(0, int(parse_lines(lines)[0]["wall_us"][0]) * 1000)
    data = OneDnnRecords(lines, parse_header(lines), None, (begin, begin))
    return OneDnn().spans(Records(data))


def test_tensorflows_primitives_have_work_formats_and_version() -> None:
    found = rows("onednn-3.7-tensorflow.txt")
    convolution = found.filter(pl.col("name") == "convolution").row(0, named=True)
    assert convolution["attr.library"] == "oneDNN 3.7.3"
    assert convolution["attr.formats"] == ("src f32 acdb, wei f32 Acdb32a, bia f32 a, dst f32 acdb")
    assert convolution["attr.flops"] == 2 * 8 * 32 * 30 * 30 * 16 * 9
    product = found.filter(pl.col("name") == "inner_product").row(0, named=True)
    assert product["attr.flops"] == 2 * 8 * 7200 * 10
    gemm = found.filter(pl.col("name") == "gemm_api")
    assert gemm["attr.flops"].to_list() == [2 * 8 * 7200 * 10, 2 * 64**3, 2]
    assert found.filter(~pl.col("name").str.starts_with("create"))["attr.flops"].null_count() == 0


def test_xlas_products_are_rows_and_the_graphs_around_them_are_not() -> None:
    found = rows("onednn-3.7-xla.txt")
    executed = found.filter(~pl.col("name").str.starts_with("create"))
    assert executed["name"].to_list() == ["reorder", "matmul"] * 2
    assert executed["attr.flops"].to_list() == [0, 2 * 256**3] * 2


def test_doctor_says_of_each_framework_whether_its_calls_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processor = tmp_path / "cpuinfo"
    processor.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    monkeypatch.setattr(carrier, "_CPUINFO", processor)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(carrier, "installed", lambda package: True)
    plain = carrier.remark(PRINTED) or ""
    assert plain.startswith("calls are seen of PyTorch and TensorFlow; of JAX where XLA was asked")
    assert plain.endswith("not of ONNX Runtime, whose kernels are MLAS's: they are its nodes")
    asked = PRINTED | {
        "XLA_FLAGS": "--xla_cpu_experimental_onednn_fusion_type=LIBRARY_FUSION_TYPE_DOT"
    }
    assert "TensorFlow and JAX" in (carrier.remark(asked) or "")
    assert "Eigen's" in (carrier.remark(PRINTED | {"TF_ENABLE_ONEDNN_OPTS": "0"}) or "")
    processor.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n")
    assert "only where TF_ENABLE_ONEDNN_OPTS=1" in (carrier.remark(PRINTED) or "")
    assert carrier.remark(PRINTED | {"TF_ENABLE_ONEDNN_OPTS": "1"}) == plain
    silent = carrier.remark({}) or ""
    assert silent.startswith("calls are seen of PyTorch; not of TensorFlow, whose oneDNN has no")
    assert "ONEDNN_VERBOSE=profile_exec and ONEDNN_VERBOSE_TIMESTAMP=1" in silent


TENSORFLOW = """
    import json, sys
    import tensorflow as tf, xsp, polars as pl
    layer = tf.keras.layers.Conv2D(32, 3, activation="relu")
    images = tf.ones((4, 16, 16, 16))
    layer(images)
    call = tf.function(layer)
    trace = xsp.measure(lambda: call(images), levels=3, budget=2)
    spans = {row["span_id"]: row for row in trace.spans.iter_rows(named=True)}
    calls = [row for row in spans.values() if row["kind"] == "call"]
    print("ours", flush=True)
    call(images)
    print(json.dumps({
        "torch": "torch" in sys.modules,
        "warnings": [each.message for each in trace.warnings],
        "parents": sorted({spans[row["parent_id"]]["kind"] for row in calls}),
        "names": sorted({row["name"] for row in calls}),
        "versions": sorted({row["attributes"]["library"] for row in calls}),
        "flops": max((row["attributes"]["flops"] or 0 for row in calls), default=None),
    }))
    """


def measured(**environment: str) -> dict[str, Any]:
    """Measure TensorFlow in a process, and return its sentences about oneDNN's calls."""
    if not carrier.installed("tensorflow"):  # without importing TensorFlow in this process
        pytest.skip("needs TensorFlow: pip install xsp[tensorflow]")
    done = run(TENSORFLOW, TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="1", **environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not found["torch"]
    return found


@pytest.mark.slow
def test_calls_of_tensorflow_lie_in_its_operators_if_the_environment_has_them_printed() -> None:
    found = measured(**PRINTED)
    assert found["parents"] == ["op"]
    assert "convolution" in found["names"]
    assert found["versions"][0].startswith("oneDNN")
    assert found["flops"] == 2 * 4 * 32 * 14 * 14 * 16 * 9


@pytest.mark.slow
def test_calls_of_tensorflow_that_are_not_printed_are_told_to_be_missing() -> None:
    found = measured()
    assert found["names"] == []
    assert any("ONEDNN_VERBOSE=profile_exec" in each for each in found["warnings"])
